package simulation

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/limiter"
)

// loanRequest is a request for a loan that a process answers as the owner.
type loanRequest struct {
	subject int
	window  int64
	by      *process
}

// ownLoanRequest decodes the request in body if p is the owner of its subject, and otherwise returns nil. The caller
// holds the mutex, at the moment at which p's limiter looks up the owner, too.
func (p *process) ownLoanRequest(body []byte, m peer.Method) *loanRequest {
	if m != limiter.MethodLend {
		return nil
	}
	var r limiter.LoanRequest
	if wire.Decode(body, &r, "request") != nil {
		return nil
	}
	i := p.w.subjectOf(&r)
	if i < 0 || p.phases[p.w.ledger.Subjects[i].Partition] != held {
		return nil
	}
	return &loanRequest{subject: i, window: r.Window, by: p}
}

// subjectOf returns the index of a loan request's subject, or −1.
func (w *World) subjectOf(r *limiter.LoanRequest) int {
	return slices.IndexFunc(w.ledger.Subjects, func(s Subject) bool {
		return s.Rule == r.Rule && len(r.Key) == 1 && s.Key == r.Key[0]
	})
}

// noteLoan records the loan in the owner's reply.
func (w *World) noteLoan(a *loanRequest, reply []byte) {
	if a == nil {
		return
	}

	var r limiter.LoanReply
	if wire.Decode(reply, &r, "reply") != nil || r.Amount == 0 {
		return
	}

	amount := r.Amount
	g := w.globe
	g.mu.Lock()
	g.ledger.Loans = append(g.ledger.Loans, Loan{At: w.now(), From: w.region, Subject: a.subject, Window: a.window, Amount: amount})
	g.ledger.Counts.Loans++
	g.ledger.Counts.Lent += amount
	g.mu.Unlock()
	w.mu.Lock()
	a.by.confirmedLoan(a, amount)
	w.mu.Unlock()

	if w.config.Sabotage == LendForNothing {
		a.by.undebit(&w.ledger.Subjects[a.subject], amount)
	}
}

// undebit is a sabotage: it gives back the cost of a loan that was made.
func (p *process) undebit(s *Subject, amount int64) {
	l, now := s.Limit, p.w.clock.Now()
	_ = p.table.Amend(now, &counters.Amendment{Ops: []counters.Op{{Key: s.Counter, Limit: &l, Cost: -amount}}})
}

// maybeKill kills a node at one in killEvery loans.
const killEvery = 40

// maybeKill sometimes kills a node that takes part in a loan: the lender, the entry node or the borrower. It does nothing
// if the Config has no faults inside regions.
func (c *farCall) maybeKill(reply []byte) {
	g := c.to.globe
	var r limiter.LoanReply
	if wire.Decode(reply, &r, "reply") != nil || r.Amount == 0 || c.subject < 0 || g.config.Calm == 0 {
		return
	}

	g.mu.Lock()
	n := g.ledger.Counts.Loans
	g.mu.Unlock()

	if n%killEvery != 0 {
		return
	}

	switch (n / killEvery) % 4 {
	case 0, 1:
		c.to.killSoon("lender", func() int { return c.to.holders[g.subjects[c.subject].Partition].node })
	case 2:
		c.to.killSoon("entry node", func() int { return c.target.index })
	default:
		c.from.w.killSoon("borrower", func() int { return c.from.index })
	}
}

// killSoon kills a node within the time of a round trip between regions.
func (w *World) killSoon(name string, node func() int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after(w.randomBetween(0, 3*farWay), func() {
		if w.ledger.Counts.Faults == nil {
			w.ledger.Counts.Faults = map[string]int{}
		}
		w.ledger.Counts.Faults[name]++
		w.crash(node(), w.randomBetween(100*time.Millisecond, 10*time.Second), w.plan.IntN(2) == 0)
	})
}

// loanKey identifies loans whose debits followers must have before the loans are reported.
type loanKey struct {
	subject int
	window  int64
	lineage uint64
}

// confirmedLoan checks, at the moment at which a loan is reported, that all followers of the partition know of it. The
// caller holds the mutex.
func (p *process) confirmedLoan(a *loanRequest, amount int64) {
	w := p.w
	s := &w.ledger.Subjects[a.subject]
	if !p.alive || p.phases[s.Partition] != held || s.Limit.Kind != algorithms.FixedWindow {
		return // a bucket's debits drain, and a lost partition can't be inspected
	}

	if w.lentTotals == nil {
		w.lentTotals = map[loanKey]int64{}
	}

	t := loanKey{a.subject, a.window, p.lineages[s.Partition].Load()}
	w.lentTotals[t] += amount
	var buf [3]int
	nodes := p.followers(s.Partition, buf[:0])
	if len(nodes) == 0 {
		w.ledger.addTooSoon("node %d lends %d of %s %s at %v without a follower", p.index, amount, s.Rule, s.Key, w.now())
	}

	for _, node := range nodes {
		copied := w.nodes[node].process.records(s.Partition)[s.Counter.LentKey()]
		if has := copied.State.Count; copied.State.Window() != a.window || has < w.lentTotals[t] {
			w.ledger.addTooSoon("node %d lends %d of %s %s at %v, %d in all, while its follower, node %d, knows of only %d",
				p.index, amount, s.Rule, s.Key, w.now(), w.lentTotals[t], node, has)
		}
	}
}
