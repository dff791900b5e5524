package simulation

import (
	"time"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/rules"
)

// leaseTTL returns the life of a limit's leases.
func leaseTTL(window time.Duration) time.Duration {
	return min(max(window/20, 50*time.Millisecond), 5*time.Second)
}

// closeLedger completes the ledger at the end of the run. The caller holds the mutex.
func (w *World) closeLedger() {
	w.ledger.End = w.now()
	for _, n := range w.nodes {
		if !n.contact {
			until := w.now()
			if n.healedAt > 0 {
				until = n.healedAt
			}
			w.ledger.addCut(n, n.cutAt, until)
		}
	}
}

// check asks a node, unless it is down, about one subject or about several of different rules, and records the answer.
func (w *World) check(node int, cost int64, subjects ...int) {
	q := limiter.Query{Costs: []limiter.UnitCost{{Unit: rules.Requests, Cost: cost}}}
	for _, i := range subjects {
		s := &w.ledger.Subjects[i]
		q.Attributes = append(q.Attributes, rules.Attribute{Name: attributeOf(s.Rule), Value: s.Key})
	}

	p, began, shares := w.readyProcess(node, subjects)
	if p == nil {
		return
	}

	var a limiter.Answer
	err := p.limiter.Check(&q, &a)
	w.mu.Lock()
	gone, ended := !p.alive, w.now()

	for k, i := range subjects {
		shares[k] = max(shares[k], p.ownShare(&w.ledger.Subjects[i]))
	}
	w.mu.Unlock()

	if gone {
		return // the answer is lost with the process
	}
	if err != nil {
		w.ledger.Fail("a check of %v at node %d at %v failed: %v", q.Attributes, node, began, err)
		return
	}

	for k, i := range subjects {
		w.ledger.Note(Check{
			Began: began, Ended: ended, Node: node, Subject: i, Cost: cost, Share: shares[k],
			Admitted: a.Allowed, Joint: len(subjects) > 1, By: a.DecidedBy,
		})
	}
}

// readyProcess returns the process of a node that can decide, and its own share of each subject. p is nil if there is
// none.
func (w *World) readyProcess(node int, subjects []int) (p *process, now time.Duration, shares []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()

	p = w.nodes[node].process
	if !p.alive || !p.ready || w.closed || !p.hasAnyRules() {
		return nil, 0, nil
	}

	for _, i := range subjects {
		s := &w.ledger.Subjects[i]
		shares = append(shares, p.ownShare(s))
		if p.phases[s.Partition] == held {
			p.schedulePushLocked()
		}
	}

	return p, w.now(), shares
}

// ownShare returns what p may spend of a limit alone.
func (p *process) ownShare(s *Subject) int64 {
	if p.view == nil {
		return 0
	}
	return localcache.Share(p.maxShare(s), len(p.view.to.Members()), p.view.to.Rank(p.id))
}
