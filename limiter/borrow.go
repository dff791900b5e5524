package limiter

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// This file is the borrower's side of loans between regions. A node that sees that little of a share is left notifies the
// subject's owner. The owner borrows in the background, ahead of need: one loan per counter at a time, from the region that it
// believes has the most unused quota. The lender debits a loan before it sends it. The borrower credits it to the counter at
// most once, and only in the window and the lineage that it requested the loan for. A loan lost in transit is lost quota.

const (
	// ownerNoticePause is the minimum time between two notifications about one subject.
	ownerNoticePause = 20 * time.Millisecond
	// ownerNoticeSlots is the number of slots that record when owners were notified. Subjects that share a slot share its pause.
	ownerNoticeSlots = 4096
	// loanTimeout bounds how long the borrower waits for a loan.
	loanTimeout = time.Second
	// maxBorrowers bounds the counters whose lenders this node remembers; maxLoans bounds the loans in flight.
	maxBorrowers = 16_384
	maxLoans     = 1024
	// borrowerLife is how long this node remembers a counter's lenders after it last looked for a loan.
	borrowerLife = time.Minute
	// laterPause is how long to wait before asking again a region that had nothing to lend; unknownPause is the same for a region
	// that does not know the limit.
	laterPause, unknownPause = 200 * time.Millisecond, time.Second
	// noLenderPause is how long to wait before looking for a lender again if no region had anything to lend.
	noLenderPause = 250 * time.Millisecond
	// awayPause is how long to wait before asking again a region that did not answer.
	awayPause = 2 * time.Second
)

// loans tracks what this node, as an owner, borrows from other regions and lends to them. Times are readings of the steady
// clock.
type loans struct {
	limiter  *Limiter
	notified [ownerNoticeSlots]atomic.Int64 // when an owner was last notified, by slot
	lending  atomic.Int64                   // requests from other regions that this node is answering

	mu          sync.Mutex // guards the fields below
	borrowers   map[counters.Key]*borrower
	inFlight    int
	silentUntil map[string]int64 // regions that did not answer, and until when not to ask them; at most the regions with shares
}

// borrower is a counter that borrows.
type borrower struct {
	window      int64
	lastUsed    int64 // when it last looked for a lender
	inFlight    bool  // whether a loan is in flight
	pausedUntil int64 // don't look for a lender before then
	lenders     map[string]*lender
}

// lender is what this node knows about a region as a lender to one counter in one window.
type lender struct {
	unused    int64 // units left of its share, as last reported
	notBefore int64 // don't ask it before then
}

func (ls *loans) init(l *Limiter) {
	ls.limiter, ls.borrowers, ls.silentUntil = l, make(map[counters.Key]*borrower), make(map[string]int64)
}

// isNoticeDue reports whether this node should notify the owner of a subject now.
func (ls *loans) isNoticeDue(subject rules.Hash, steady int64) bool {
	slot := &ls.notified[subject.Lo%ownerNoticeSlots]
	last := slot.Load()
	return (steady-last >= int64(ownerNoticePause) || steady < last) && slot.CompareAndSwap(last, steady)
}

// notifyOwners notifies the owners of those subjects whose share is nearly used up.
func (ls *loans) notifyOwners(q *Query, a *Answer) {
	m := ls.limiter.membership
	if m.OtherRegions == nil || a.DecidedBy == ByFallback {
		return
	}
	limits := a.Limits
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		own := limits[:len(h.Limits)]
		limits = limits[len(h.Limits):]
		if h.Rule.Scope == rules.GlobalScope && anyNeedsLoan(own) && ls.isNoticeDue(h.Subject, a.Now.Steady) {
			ls.notifyOwner(q, h)
		}
	}
}

// anyNeedsLoan reports whether one of a rule's limits needs a loan.
func anyNeedsLoan(limits []LimitAnswer) bool {
	for i := range limits {
		la := &limits[i]
		if !la.Full && targetAmount(la.Limit) > 0 && isLoanable(la.Rule, la.Limit) && (!la.Allowed || needsLoan(la.Rule, la.Limit, la.Remaining)) {
			return true
		}
	}
	return false
}

// notifyOwner notifies the owner of h's subject that a share is nearly used up. If the message is lost, a later check sends
// another.
func (ls *loans) notifyOwner(q *Query, h *rules.Hit) {
	m := ls.limiter.membership
	r := m.Ownership.Route(ring.PartitionOf(h.Subject.Hi))
	here := r.Place == partitions.Here
	if !here && (r.Place != partitions.Elsewhere || r.Owner.IsZero() || r.Owner == m.Self) {
		return
	}
	ref := subjectRef{version: ls.limiter.version(), Rule: h.Rule.Name, Key: subjectKey(h, q)}
	if here {
		ls.borrow(&ref)
	} else {
		_ = m.Peers.Send(r.Owner, MethodBorrow, wire.Encode(nil, &ref))
	}
}

// borrow requests loans for the limits of an owned subject that are short. It does not wait for them.
func (ls *loans) borrow(ref *subjectRef) {
	m := ls.limiter.membership
	if m.OtherRegions == nil {
		return
	}
	now := ls.limiter.clock.Now()
	for _, d := range ls.dividedLimits(ref, now) {
		if r := m.Ownership.Route(d.partition); r.Place == partitions.Here && m.Authority() {
			ls.borrowFor(ref, &d, now)
		}
	}
}

// loan is a requested loan to a counter on this node.
type loan struct {
	request  LoanRequest
	region   string
	to       dividedLimit
	life     counters.Life
	sent     int64 // on the steady clock
	borrower *borrower
	answered atomic.Bool
}

// borrowFor requests a loan for one limit, unless a loan is already in flight or no region has anything to lend.
func (ls *loans) borrowFor(ref *subjectRef, d *dividedLimit, now algorithms.Instant) {
	m := ls.limiter.membership
	loan := &loan{to: *d, life: ls.limiter.table.Life(d.partition), sent: now.Steady}
	balance := ls.limiter.table.Loans(now, d.key, &d.limit.Limit)
	if !needsLoan(d.rule, d.limit, balance.Remaining) {
		return
	}
	want := balance.Room(m.leases.granted.Returnable(m.Boottime(), d.key.Subject, d.key.Counter))
	if d.limit.Kind == algorithms.FixedWindow {
		want = targetAmount(d.limit) - balance.Remaining
	}
	if want < 1 {
		return
	}
	if loan.region, loan.borrower = ls.chooseLender(d, balance.Window, now.Steady, m.OtherRegions); loan.borrower == nil {
		return
	}
	loan.request = LoanRequest{subjectRef: *ref, limit: d.limit.ID, Window: balance.Window, Want: min(want, algorithms.MaxAmount)}
	loan.request.version = d.active.set.Version
	m.OtherRegions.Go(loan.region, MethodLend, wire.Encode(nil, &loan.request), loanTimeout, func(body []byte, err error) { ls.handleReply(loan, body, err) })
}

// chooseLender picks the region believed to have the most unused quota, and marks a loan as in flight. A region that has not
// reported yet is assumed to have its whole share unused. A region with no share of a fixed window comes last: it may have
// borrowed more than it needs. It returns a nil borrower if there is no region to ask, if a loan to the counter is already
// in flight, or if too many loans are.
func (ls *loans) chooseLender(d *dividedLimit, window, steady int64, far OtherRegions) (region string, _ *borrower) {
	shares := d.active.set.Division(d.rule, d.limit)
	delete(shares, d.active.set.Shares().Region)
	maps.DeleteFunc(shares, func(name string, share int64) bool {
		if d.limit.Kind == algorithms.FixedWindow {
			share = max(1, share)
			shares[name] = share
		}
		return share < 1 || !far.Reachable(name)
	})
	ls.mu.Lock()
	defer ls.mu.Unlock()
	b := ls.borrowerOf(d.key, window, steady)
	if b.inFlight || ls.inFlight >= maxLoans || steady < b.pausedUntil {
		return "", nil
	}
	most := int64(0)
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		unused, after := shares[name], int64(0)
		if heard := b.lenders[name]; heard != nil {
			unused, after = heard.unused, heard.notBefore
		}
		if max(after, ls.silentUntil[name]) <= steady && unused > most {
			region, most = name, unused
		}
	}
	if most == 0 {
		b.pausedUntil = steady + int64(noLenderPause)
		return "", nil
	}
	b.inFlight = true
	ls.inFlight++
	return region, b
}

// borrowerOf returns the borrower for a counter in a window, creating it if needed, and forgets the lenders of any other window.
// The caller holds mu.
func (ls *loans) borrowerOf(k counters.Key, window, steady int64) *borrower {
	b := ls.borrowers[k]
	if b == nil {
		if len(ls.borrowers) >= maxBorrowers {
			ls.dropIdleBorrower()
		}
		b = &borrower{window: window}
		ls.borrowers[k] = b
	}
	if b.window != window {
		b.window, b.lenders, b.pausedUntil = window, nil, 0
	}
	b.lastUsed = steady
	return b
}

// dropIdleBorrower drops an arbitrary borrower without a loan in flight. One exists, because maxLoans is less than
// maxBorrowers. The caller holds mu.
func (ls *loans) dropIdleBorrower() {
	for k, b := range ls.borrowers {
		if !b.inFlight {
			delete(ls.borrowers, k)
			return
		}
	}
}

// sweep drops the borrowers that no longer look for loans, and the regions that may be asked again.
func (ls *loans) sweep(steady int64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	maps.DeleteFunc(ls.borrowers, func(_ counters.Key, b *borrower) bool { return !b.inFlight && steady-b.lastUsed > int64(borrowerLife) })
	maps.DeleteFunc(ls.silentUntil, func(_ string, until int64) bool { return steady > until })
}

// handleReply handles the first answer to a loan request and ignores any other.
func (ls *loans) handleReply(loan *loan, body []byte, err error) {
	if !loan.answered.CompareAndSwap(false, true) {
		return
	}
	m, now := ls.limiter.membership, ls.limiter.clock.Now()
	var r LoanReply
	if err == nil {
		err = wire.Decode(body, &r, "reply to a request for a loan")
	}
	if err != nil {
		m.counts.loansFailed.Add(1)
	} else if r.status == loanMade {
		ls.creditLoan(loan, &r, now)
	}
	ls.recordAnswer(loan, &r, err != nil, now.Steady)
}

// recordAnswer records for the next choice what a region answered, or that it did not.
func (ls *loans) recordAnswer(loan *loan, r *LoanReply, failed bool, steady int64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.inFlight--
	loan.borrower.inFlight = false
	if failed {
		ls.silentUntil[loan.region] = steady + int64(awayPause)
		return
	}
	delete(ls.silentUntil, loan.region)
	if loan.borrower.window != loan.request.Window {
		return
	}
	heard := &lender{unused: r.unused}
	switch {
	case r.status == loanLater:
		heard.notBefore = steady + int64(laterPause)
		heard.unused = max(1, r.unused)
	case r.status == loanUnknown:
		heard.notBefore = steady + int64(unknownPause)
		heard.unused = 1
	case loan.to.limit.Kind == algorithms.TokenBucket:
		heard.unused = max(1, r.unused) // it refills
		if r.status == loanNothing {
			heard.notBefore = steady + int64(loan.to.reportLife())
		}
	case r.status == loanNothing:
		heard.unused = 0 // and will stay so until the window ends
	}
	if loan.borrower.lenders == nil {
		loan.borrower.lenders = make(map[string]*lender)
	}
	loan.borrower.lenders[loan.region] = heard
}

// creditLoan credits a loan to its counter, if that is still the counter that requested it. It credits no more than was
// requested. For a token bucket it also leaves out what may have refilled at the lender since.
func (ls *loans) creditLoan(loan *loan, r *LoanReply, now algorithms.Instant) {
	m := ls.limiter.membership
	amount := min(r.Amount, loan.request.Want)
	d, ok := ls.dividedLimit(&loan.request.subjectRef, loan.request.limit, now)
	if !ok || d.key != loan.to.key || !m.Authority() {
		m.counts.unitsLost.Add(amount)
		return
	}
	credit := amount
	if d.limit.Kind == algorithms.TokenBucket {
		lender := algorithms.Limit{Amount: r.rate, Window: d.limit.Limit.Window}
		credit = max(0, amount-lender.Drained(time.Duration(now.Steady-loan.sent)))
	}
	leasedOut := m.leases.granted.Returnable(m.Boottime(), d.key.Subject, d.key.Counter)
	n, err := ls.limiter.table.Borrow(now, d.key, &d.limit.Limit, loan.request.Window, credit, leasedOut, loan.life)
	if err != nil {
		n = 0
	}
	m.counts.unitsLost.Add(amount - n)
	if n > 0 {
		m.counts.borrowed.Add(1)
		m.counts.borrowedUnits.Add(n)
		m.leases.forgetEverywhere(forgetMessage{subject: d.key.Subject, refusalsOnly: true})
	}
}
