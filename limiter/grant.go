package limiter

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter/grants"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// This node as an owner that grants leases.

// grantFor grants the wishes of v's question, as far as the limits allow it. What is granted is debited first.
func (l *Limiter) grantFor(v *visit, now algorithms.Now) {
	q, r, m := &v.question, &v.reply, l.member
	last := len(r.admitted) - 1
	if len(q.wishes) == 0 || q.verb != verbCheck || q.flags&flagPeek != 0 || !r.admitted[last] {
		return
	}
	nodes, _ := m.place()
	results := r.results[last*len(q.ops):]
	first, subject := 0, 0
	for i := range q.wishes {
		w := &q.wishes[i]
		for ; subject < w.subject; subject++ {
			first += subjectOps(q.ops[first:])
		}
		ops := q.ops[first : first+len(w.Want)]
		for j := range ops {
			ops[j].Decision = results[first+j].Decision
		}
		if g, ok := l.grant(now, w, ops, r.lineages[subject], nodes); ok {
			g.subject = subject
			r.grants = append(r.grants, g)
		} else {
			m.figures.ungranted.Add(1)
		}
	}
}

// grant grants one wish.
func (l *Limiter) grant(now algorithms.Now, w *wish, ops []counters.Op, lineage uint64, nodes int) (granted, bool) {
	m := l.member
	g := granted{Grant: localcache.Grant{EndsIn: w.Terms.TTL}}
	for i := range ops {
		if !localcache.Leasable(ops[i].Limit, nodes) {
			return g, false
		}
		if ops[i].Limit.Kind != algorithms.TokenBucket {
			g.EndsIn = min(g.EndsIn, ops[i].Limit.WindowLeft(now))
		}
		g.Windows = append(g.Windows, takenAt(&ops[i], now).Window)
	}
	r := grants.Request{Holder: w.holder, Lineage: lineage, Mine: w.Process == l.process, Wish: &w.Wish, Nodes: nodes, Ops: ops}
	g.ID, g.Amounts = m.book.Grant(m.Boottime(), &r, func(ops []counters.Op) bool {
		if !debitFirst {
			return true
		}
		return l.table.Take(now, ops) == counters.Admitted
	})
	if g.ID != 0 {
		m.figures.granted.Add(1)
	}
	return g, g.ID != 0
}

// returnLeftovers gives back what was not spent of leases: here, or to the owners, once, since a repeated one would make quota. What
// is lost is only cost.
func (l *Limiter) returnLeftovers(list []leftover) {
	m := l.member
	byOwner := map[ring.NodeID][]leftover{}
	var frozen []leftover
	for i := range list {
		o := &list[i]
		r := m.Ownership.Route(partitionOf(o.ops[0].Key.Hi))
		switch {
		case r.Place == partitions.Held:
			l.takeBack(o)
		case o.hops > maxHops:
		case r.Place == partitions.Elsewhere && !r.Owner.IsZero() && r.Owner != m.Self:
			byOwner[r.Owner] = append(byOwner[r.Owner], *o)
		case r.Place == partitions.Frozen:
			o.hops++
			frozen = append(frozen, *o)
		}
	}
	for to, list := range byOwner {
		for some := range slices.Chunk(list, maxLeftovers) {
			_ = m.Peers.Send(m.detour(to), MethodLeftover, appendLeftovers(nil, some))
		}
	}
	if len(frozen) > 0 {
		m.spawn(func() {
			ctx, cancel := context.WithTimeout(m.ctx, frozenTime)
			defer cancel()
			for i := range frozen {
				m.Ownership.Wait(ctx, partitionOf(frozen[i].ops[0].Key.Hi))
			}
			l.returnLeftovers(frozen)
		})
	}
}

// takeBack puts what is left of one lease back into the counters here: of a grant of this process, what its book says;
// of one that came here with the counters, what belongs to a window. A bucket that came from elsewhere can't tell what is
// out of it, and refills by itself.
func (l *Limiter) takeBack(o *leftover) {
	m := l.member
	p := partitionOf(o.ops[0].Key.Hi)
	if o.source.Lineage == 0 || m.Ownership.Lineage(p) != o.source.Lineage || !m.Authority() {
		return
	}
	now := l.clock.Now()
	give := func(i int, cost int64) {
		op := &o.ops[i]
		taken := algorithms.Taken{Steady: now.Steady, Window: o.window[i], Amount: op.Limit.Amount, Burst: op.Limit.Burst}
		if l.table.Give(now, op.Key, op.Limit, taken, cost) == nil {
			m.figures.returned.Add(1)
		}
	}
	if o.source.Process == l.process {
		used := func(op *counters.Op) int64 {
			used, _ := l.table.Usage(now, op.Key, op.Limit)
			return used
		}
		m.book.Return(m.Boottime(), o.source.Lineage, o.grant, o.ops, used, give)
		return
	}
	for i := range o.ops {
		if o.ops[i].Limit.Kind != algorithms.TokenBucket && o.ops[i].Cost > 0 {
			give(i, o.ops[i].Cost)
		}
	}
}

// changed makes all nodes forget what they lease and know of a subject whose counters were changed otherwise.
func (l *Limiter) changed(hi uint64, reset bool) {
	m := l.member
	if m == nil {
		return
	}
	if reset {
		m.book.Forget(hi)
	}
	m.leases.Forget(m.Boottime(), hi)
	m.broadcast(MethodForget, binary.LittleEndian.AppendUint64(nil, hi)) // who is not reached forgets within a lease's life
}
