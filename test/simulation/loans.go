package simulation

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/limiter"
)

// loanRequest is a request for a loan that a process answers itself, as the owner.
type loanRequest struct {
	subject int
	window  int64
	by      *process
}

// ownLoanRequest is the request in body, if p is the owner of what it is about; nil: it isn't, or passes it on. It is called under
// the mutex, at the moment at which p's limiter looks for the owner too.
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

// subjectOf is what a request for a loan is about, −1 if there is no such.
func (w *World) subjectOf(r *limiter.LoanRequest) int {
	return slices.IndexFunc(w.ledger.Subjects, func(s Subject) bool {
		return s.Rule == r.Rule && len(r.Key) == 1 && s.Key == r.Key[0]
	})
}

// noteLoan takes note of what was lent, as the owner's answer says.
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
	if w.cfg.Sabotage == LendForNothing {
		a.by.undebit(&w.ledger.Subjects[a.subject], amount)
	}
}

// undebit is a sabotage: what was lent is put back, and lent all the same.
func (p *process) undebit(s *Subject, amount int64) {
	l, now := s.Limit, p.w.clock.Now()
	_ = p.table.Give(now, s.Counter, &l, l.Taken(l.Advance(algorithms.State{}, now), now), amount)
}

// killEvery is of so many loans the one in whose middle somebody is killed.
const killEvery = 40

// maybeKill kills, now and then, one of those who take part in a loan: the lender, the node that passes it on, or the borrower. A
// crash is a fault inside of regions: where there are none, nobody is.
func (c *farCall) maybeKill(reply []byte) {
	g := c.to.globe
	var r limiter.LoanReply
	if wire.Decode(reply, &r, "reply") != nil || r.Amount == 0 || c.subject < 0 || g.cfg.Calm == 0 {
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

// killSoon kills a node within the time that a message takes to another region and back.
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

// loanKey is what loans are counted by, in which their debits must be with followers before they are told of.
type loanKey struct {
	subject int
	window  int64
	lineage uint64
}

// confirmedLoan looks, at the moment at which a loan is told of, whether all who follow the partition know of it. It is
// called under the mutex.
func (p *process) confirmedLoan(a *loanRequest, amount int64) {
	w := p.w
	s := &w.ledger.Subjects[a.subject]
	if !p.alive || p.phases[s.Partition] != held || s.Limit.Kind != algorithms.FixedWindow {
		return // a bucket's debits drain, and what is not here any more can't be looked at
	}
	if w.lentTotals == nil {
		w.lentTotals = map[loanKey]int64{}
	}
	t := loanKey{a.subject, a.window, p.lineages[s.Partition]}
	w.lentTotals[t] += amount
	var buf [3]int
	nodes := p.followers(s.Partition, buf[:0])
	if len(nodes) == 0 {
		w.ledger.addTooSoon("node %d lends %d of %s %s at %v, and nobody follows it", p.index, amount, s.Rule, s.Key, w.now())
	}
	for _, node := range nodes {
		copied := w.nodes[node].process.records(s.Partition)[s.Counter.LentKey()]
		if has := copied.State.Count; copied.State.Window() != a.window || has < w.lentTotals[t] {
			w.ledger.addTooSoon("node %d lends %d of %s %s at %v, %d in all, while node %d, which follows it, knows of %d",
				p.index, amount, s.Rule, s.Key, w.now(), w.lentTotals[t], node, has)
		}
	}
}
