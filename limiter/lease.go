package limiter

import (
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// This node as a holder of leases.

// termsOf are the terms of leases for the subject of a hit.
func (m *member) termsOf(r *rules.Rule, limits []*rules.Limit) localcache.Terms {
	t := m.Ring()
	if t == nil || r.Consistency != rules.Hybrid {
		return localcache.Terms{}
	}
	return localcache.TermsOf(r, limits, len(t.Members()))
}

// spend takes ops, of one subject, from its lease. The receipt tells what was spent.
func (l *Limiter) spend(owner ring.NodeID, r *rules.Rule, limits []*rules.Limit, ops []counters.Op, receipt *localcache.Receipt) localcache.Outcome {
	m := l.member
	if r.Consistency != rules.Hybrid || r.Block > 0 || r.OnLimit == rules.DelayCheck || owner == m.Self {
		return localcache.Unknown
	}
	var outcome localcache.Outcome
	if outcome, *receipt = m.leases.Spend(m.Boottime(), owner, ops); outcome == localcache.Unknown {
		return outcome
	}
	// This process may have stood still in between; what was spent too late was not spent, and goes back with the rest.
	if m.Boottime() >= receipt.Until {
		m.leases.Unspend(*receipt, ops)
		return localcache.Unknown
	}
	if receipt.Renew {
		l.renew(owner, m.termsOf(r, limits), ops)
	}
	if outcome == localcache.Spent {
		m.figures.leased.Add(1)
	} else {
		m.figures.remembered.Add(1)
	}
	return outcome
}

// renew fetches the next grant in the background: a question that costs nothing.
func (l *Limiter) renew(owner ring.NodeID, t localcache.Terms, ops []counters.Op) {
	m := l.member
	if t.None() {
		return
	}
	// Nobody waits for it, and an answer that is not heard of is quota lost.
	a := &ask{to: owner, owner: owner, until: time.Now().Add(renewTime), done: make(chan struct{}, 1), renewal: true}
	a.terms = []localcache.Terms{t}
	a.q.flags, a.q.version = flagLast, l.version()
	a.q.revision = m.Ownership.Route(partitionOf(ops[0].Key.Hi)).Revision
	for i := range ops {
		a.q.ops = append(a.q.ops, counters.Op{Key: ops[i].Key, Limit: ops[i].Limit, Shadow: ops[i].Shadow})
	}
	m.figures.renewals.Add(1)
	l.dispatch(a, false)
}

// wish adds to a message's head what this node would like to lease of the subjects that asks are about.
func (l *Limiter) wish(head *question, asks []*ask) {
	a := asks[0]
	if a.terms == nil {
		return
	}
	at, first := l.member.Boottime(), 0
	for subject := range a.terms {
		n := subjectOps(a.q.ops[first:])
		if w, ok := l.member.leases.Wish(at, a.owner, a.terms[subject], a.q.ops[first:first+n], len(asks)); ok {
			head.wishes = append(head.wishes, wish{hi: a.q.ops[first].Key.Hi, holder: l.member.Self, Wish: w})
		}
		first += n
	}
}

// learn takes over what a reply says about leases to the subjects that asks were about.
func (l *Limiter) learn(asks []*ask, sent time.Duration, r *reply, err error) {
	a, m := asks[0], l.member
	if a.terms == nil {
		return
	}
	at := m.Boottime()
	if err != nil || r.status != decided || r.standby {
		if a.renewal {
			m.leases.Unanswered(at, a.q.ops[0].Key.Hi)
		}
		return
	}
	last, n := len(r.admitted)-1, len(a.q.ops)
	results := r.results[last*n:]
	ops := make([]counters.Op, 0, n)
	for i := range a.q.ops {
		op := counters.Op{Key: a.q.ops[i].Key, Limit: a.q.ops[i].Limit, Cost: a.q.ops[i].Cost, Shadow: a.q.ops[i].Shadow}
		op.Decision, op.Full = results[i].Decision, results[i].full
		ops = append(ops, op)
	}
	first := 0
	for subject := range a.terms {
		k, g := subjectOps(ops[first:]), localcache.Grant{}
		for i := range r.grants {
			if r.grants[i].hi == ops[first].Key.Hi && len(r.grants[i].Amounts) == k {
				g = r.grants[i].Grant
			}
		}
		if !a.terms[subject].None() {
			from := localcache.Source{Owner: r.decider, Process: r.process, Lineage: r.lineages[subject]}
			l.hear(sent, at, from, ops[first:first+k], g, a.renewal, r.admitted[last], a.terms[subject].TTL)
		}
		first += k
	}
}

// hear takes over what the owner said about one subject.
func (l *Limiter) hear(sent, at time.Duration, from localcache.Source, ops []counters.Op, g localcache.Grant, renewal, admitted bool, ttl time.Duration) {
	m := l.member
	refused := false
	for i := range ops {
		refused = refused || !ops[i].Decision.Allowed
	}
	// A shadow rule's refusal is no reason not to grant.
	if g.ID != 0 || renewal || admitted && !refused {
		m.leases.Admitted(sent, at, from, ops, g, renewal)
	}
	if refused {
		m.leases.Refused(sent, from, ops, ttl)
	}
}

// fromLease answers asks that waited for a message of their own from the lease that another one brought. It returns
// those that are left.
func (l *Limiter) fromLease(asks []*ask) []*ask {
	left := asks[:0]
	for i, a := range asks {
		if a.terms == nil || len(a.terms) != 1 || a.rule == nil || a.q.flags&flagPeek != 0 {
			return append(left, asks[i:]...)
		}
		outcome := l.spend(a.owner, a.rule, a.limits, a.q.ops, &a.receipt)
		if outcome == localcache.Unknown {
			left = append(left, a)
			continue
		}
		a.leased, a.status = true, decided
		a.admitted = outcome == localcache.Spent || a.rule.Shadow
		if !a.state.CompareAndSwap(askOpen, askAnswered) {
			l.member.leases.Unspend(a.receipt, a.q.ops)
			continue
		}
		a.done <- struct{}{}
	}
	return left
}

// tend gives leases back as they end, until the limiter is closed.
func (l *Limiter) tend() {
	m := l.member
	var ended []localcache.Ended
	for {
		at := m.Boottime()
		ended = m.leases.Ended(at, ended[:0])
		l.giveLeases(ended)
		m.granted.Sweep(at)
		m.loans.sweep(l.clock.Now().Steady)
		timer := time.NewTimer(min(max(m.leases.Next()-m.Boottime(), leastPause), bookPause))
		select {
		case <-m.leases.Wake():
		case <-timer.C:
		case <-m.ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

const (
	// renewTime is how long the answer to a renewal is waited for.
	renewTime = 2 * localcache.MaxTTL
	// leastPause is between two looks at what has ended, so that what ends at nearly one time travels together.
	leastPause = time.Millisecond
	// bookPause is the longest time between two looks at what others hold.
	bookPause = 10 * time.Second
)

// giveLeases gives back what is left of leases that have ended.
func (l *Limiter) giveLeases(ended []localcache.Ended) {
	var list []gift
	for i := range ended {
		if e := &ended[i]; len(e.Ops) > 0 {
			d := debit{hi: e.Ops[0].Key.Hi, process: e.Source.Process, lineage: e.Source.Lineage, ops: e.Ops, when: e.Window}
			list = append(list, gift{debit: d, grant: e.Grant})
		}
	}
	l.giveBack(list)
}

// UseLeases says whether this node leases from others. Without, all that it holds is given back at once: it is leaving.
func (l *Limiter) UseLeases(yes bool) {
	m := l.member
	if m == nil {
		return
	}
	at := m.Boottime()
	m.leases.Use(at, yes)
	l.giveLeases(m.leases.Ended(at, nil))
}
