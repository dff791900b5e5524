package limiter

import (
	"context"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
)

// This file is the lender's side of loans between regions. The node that
// receives a request forwards it to the subject's owner. The owner debits the
// loan, and answers only once the debit would outlive the owner.

const (
	// forwardTimeout bounds how long a node waits for the owner's answer to another
	// region's request. confirmTimeout bounds how long an owner waits until what it
	// has changed, for a loan or a settlement, would outlive it.
	forwardTimeout = 800 * time.Millisecond
	confirmTimeout = 500 * time.Millisecond
	// maxLending bounds the loan requests that this node answers at once, so that
	// other regions can't crowd out questions from this one.
	maxLending = 1024
)

// serveLoanRequest answers a loan request as the owner, or forwards it to the owner.
// forwarded means that another node of this region has forwarded the request to
// this node, as the owner that the other node knows.
func (lo *loans) serveLoanRequest(body []byte, forwarded bool, to Responder) {
	cp := lo.limiter.cluster
	var req LoanRequest
	if !decodeOrFail(body, &req, "request for a loan", to) {
		return
	}

	d, ok := lo.dividedLimit(&req.subjectRef, req.limit, lo.limiter.clock.Now())
	if !ok {
		answerLoan(to, LoanReply{status: loanUnknown})
		return
	}

	route := cp.Ownership.Route(d.partition)
	switch {
	case forwarded || route.Location == partitions.Here:
		// A request is forwarded only once. If this node is not the owner, its gate
		// is shut, and lend answers loanLater.
		lo.lendInBackground(&req, to)
	case route.Location == partitions.Elsewhere && !route.Owner.IsZero() && route.Owner != cp.Self:
		cp.Peers.Go(route.Owner, MethodLend, body, forwardTimeout, func(reply []byte, err error) {
			if err != nil {
				to.Fail(CodeBusy, "the subject's owner does not answer")
				return
			}
			to.Reply(reply)
		})
	default:
		answerLoan(to, LoanReply{status: loanLater})
	}
}

func answerLoan(to Responder, r LoanReply) { to.Reply(wire.Encode(nil, &r)) }

// lendInBackground answers a request about a subject that this node owns, in a
// goroutine of its own. If too many requests are in flight, it debits nothing
// and answers loanLater.
func (lo *loans) lendInBackground(req *LoanRequest, to Responder) {
	cp := lo.limiter.cluster
	started := false
	inFlight := lo.lending.Add(1)
	if inFlight <= maxLending {
		started = cp.background.Go(func() {
			defer lo.lending.Add(-1)
			answerLoan(to, lo.lend(req))
		})
	}

	if !started {
		lo.lending.Add(-1)
		cp.counts.busy.Add(1)
		answerLoan(to, LoanReply{status: loanLater})
	}
}

// lend makes a loan if there is something to lend. It debits the loan and
// confirms the debit before it answers. If the debit is not confirmed, lend puts
// the loan back, as far as it still can.
func (lo *loans) lend(req *LoanRequest) LoanReply {
	cp := lo.limiter.cluster
	now := lo.limiter.clock.Now()
	d, ok := lo.dividedLimit(&req.subjectRef, req.limit, now)
	if !ok {
		return LoanReply{status: loanUnknown}
	}

	// Read the life before the debit: the loan must not be put back into counters
	// that were reset since.
	life := lo.limiter.table.Life(d.partition)
	generation, authorized := cp.ReadAuthority()
	if cp.Confirmer == nil || !authorized || !cp.Confirmer.CanConfirm(d.partition) {
		return LoanReply{status: loanLater}
	}

	lent, balance, err := lo.debitLoan(&d, now, req.Window, req.Want)
	reply := LoanReply{status: loanMade, Amount: lent, unused: balance.Remaining, rate: d.limit.Amount}

	// At the very beginning of a window, and until a new version of the rules is
	// recorded, this region's limit is lower than its share. It may have something
	// to lend later.
	share := d.active.set.WindowShares(d.rule, d.limit)[d.active.set.DividingVersions().Region]
	switch {
	case err != nil || lent == 0 && d.limit.Capacity() < share:
		return LoanReply{status: loanLater}
	case lent == 0:
		reply.status = loanNothing
		return reply
	}

	ctx, cancel := context.WithTimeout(cp.ctx, confirmTimeout)
	defer cancel()

	if err := cp.Confirmer.Confirm(ctx, d.partition); err != nil || !cp.hasKeptAuthority(generation) {
		later := lo.limiter.clock.Now()
		if d.limit.Kind == algorithms.TokenBucket {
			lent -= d.limit.Drained(time.Duration(later.Steady - now.Steady)) // this much may have refilled since
		}
		lo.limiter.table.Unlend(later, d.key, &d.limit.Limit, req.Window, lent, life)
		return LoanReply{status: loanLater}
	}

	cp.counts.lent.Add(1)
	cp.counts.lentUnits.Add(lent)
	return reply
}

// debitLoan debits what the region asks for, as far as there is something to
// lend.
func (lo *loans) debitLoan(
	d *dividedLimit, now algorithms.Instant, window, want int64,
) (int64, counters.LoanBalance, error) {
	lent, balance, err := lo.limiter.table.DebitLoan(now, d.key, &d.limit.Limit, window, want)
	if !debitFirst { // only in a test of the checkers: see debit_on.go
		lo.limiter.table.Unlend(now, d.key, &d.limit.Limit, window, lent, lo.limiter.table.Life(d.partition))
	}
	return lent, balance, err
}
