package limiter

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/localcache"
)

// grantFor grants the wishes of v's question as far as the limits allow. It debits each grant first.
func (x *leases) grantFor(v *visit, now algorithms.Now) {
	q, r, m := &v.question, &v.reply, x.l.member
	last := len(r.admitted) - 1
	if len(q.wishes) == 0 || q.flags&flagPeek != 0 || !r.admitted[last] {
		return
	}
	nodes, _ := m.place()
	results := r.results[last*len(q.ops):]
	for i := range q.wishes {
		w := &q.wishes[i]
		at, subject := findSubject(q.ops, w.hi)
		ops := q.ops[at : at+len(w.Want)]
		for j := range ops {
			ops[j].Decision = results[at+j].Decision
		}
		if g, ok := x.grant(now, w, ops, r.lineages[subject], nodes); ok {
			r.grants = append(r.grants, g)
		} else {
			m.figures.ungranted.Add(1)
		}
	}
}

// grant grants one wish, and reports whether it did.
func (x *leases) grant(now algorithms.Now, w *wish, ops []counters.Op, lineage uint64, nodes int) (granted, bool) {
	m := x.l.member
	g := granted{hi: w.hi, Grant: localcache.Grant{EndsIn: w.Terms.TTL}}
	for i := range ops {
		if !localcache.Leasable(ops[i].Limit, nodes) {
			return g, false
		}
		if ops[i].Limit.Kind != algorithms.TokenBucket {
			g.EndsIn = min(g.EndsIn, ops[i].Limit.WindowLeft(now))
		}
		g.Windows = append(g.Windows, takenAt(&ops[i], now).Window)
	}
	r := localcache.Request{Holder: w.holder, Lineage: lineage, Mine: w.Process == x.l.process, Wish: &w.Wish, Nodes: nodes, Ops: ops}
	g.ID, g.Amounts = x.granted.Grant(m.Boottime(), &r, func(ops []counters.Op) bool {
		if !debitFirst {
			return true
		}
		return x.l.table.Take(now, ops) == counters.Admitted
	})
	if g.ID != 0 {
		m.figures.granted.Add(1)
	}
	return g, g.ID != 0
}

// forget makes all nodes forget what f says. A node that the message does not reach forgets it within a lease's TTL anyway.
func (x *leases) forget(f forgetting) {
	x.held.Forget(x.l.member.Boottime(), f.hi, f.room)
	x.l.member.broadcast(MethodForget, wire.Encode(nil, &f))
}
