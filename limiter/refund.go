package limiter

import (
	"context"
	"math"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// localLineage is the lineage of what was taken under a rule with `consistency: local`. No partition has it: only the process
// that took it can give it back.
const localLineage = ^uint64(0)

// debit says what was taken from one subject, where, and when: enough to give it back.
type debit struct {
	subject     uint64
	incarnation uint64        // of the node that decided
	lineage     uint64        // of the counters at that time; zero if the debit can't be given back; or localLineage
	steady      int64         // the time of the decision, on that node's steady clock
	ops         []counters.Op // ops that took their cost
	// when says, by op, when the cost was taken: the number of the window or, for a log, the time of the entry relative to
	// steady. For a bucket or log of a reservation it is Decision.ResetAfter instead.
	when []int64
}

func (d *debit) code(c *wire.Coder) {
	wire.Fixed(c, &d.subject)
	wire.Fixed(c, &d.incarnation)
	wire.Fixed(c, &d.lineage)
	wire.Fixed(c, &d.steady)
	wire.List(c, &d.ops, maxSubjectOps, minOpBytes-1, func(op *counters.Op) {
		op.Key.Subject = d.subject
		wire.Fixed(c, &op.Key.Counter)
		if c.Reads() {
			op.Limit = &algorithms.Limit{}
		}
		codeLimit(c, op)
		wire.Number(c, &op.Cost, algorithms.MaxAmount)
		c.Require(!op.Block)
	})
	wire.List(c, &d.when, maxSubjectOps, 1, func(n *int64) { wire.Varint(c, n) })
	c.Require(len(d.when) == len(d.ops))
}

// refund is a debit on its way back: the cost of a check that another limit refused, the rest of a grant, or what a reservation
// did not use.
type refund struct {
	debit
	hops  int
	grant uint64 // ID of a lease's grant; zero unless from a lease
	made  int64  // wall time at which the reservation was made; zero unless from a reservation
}

// maxRefunds bounds the refunds in one message.
const maxRefunds = 1024

// refundList is the body of MethodRefund.
type refundList struct{ list []refund }

// Code implements wire.Message.
func (r *refundList) Code(c *wire.Coder) {
	wire.List(c, &r.list, maxRefunds, 4*8+2+1+1+8, func(item *refund) {
		item.code(c)
		wire.Number(c, &item.hops, maxHops)
		wire.Number(c, &item.grant, math.MaxInt64)
		wire.Fixed(c, &item.made)
		c.Require(len(item.ops) > 0)
	})
}

// sendRefunds gives the refunds in list back, on this node or at their owners. It sends each only once, because a repeated
// refund would create quota. A lost refund only loses quota.
func (l *Limiter) sendRefunds(list []refund) {
	m := l.membership
	byOwner := map[ring.NodeID][]refund{}
	var frozen []refund
	for i := range list {
		item := &list[i]
		r := partitions.Route{Place: partitions.Here}
		if m != nil {
			r = m.Ownership.Route(ring.PartitionOf(item.subject))
		}
		switch {
		case r.Place == partitions.Here:
			item.give(l)
		case item.hops > maxHops:
			l.reservations.countLostReservation(item)
		case r.Place == partitions.Elsewhere && !r.Owner.IsZero() && r.Owner != m.Self:
			byOwner[r.Owner] = append(byOwner[r.Owner], *item)
		case r.Place == partitions.Frozen:
			item.hops++
			frozen = append(frozen, *item)
		default:
			l.reservations.countLostReservation(item)
		}
	}
	for to, list := range byOwner {
		for some := range slices.Chunk(list, maxRefunds) {
			if m.Peers.Send(to, MethodRefund, wire.Encode(nil, &refundList{some})) != nil {
				for i := range some {
					l.reservations.countLostReservation(&some[i])
				}
			}
		}
	}
	if len(frozen) == 0 {
		return
	}
	if m.spawn(func() {
		ctx, cancel := context.WithTimeout(m.ctx, frozenTimeout)
		defer cancel()
		for i := range frozen {
			m.Ownership.WaitUnfrozen(ctx, ring.PartitionOf(frozen[i].subject))
		}
		l.sendRefunds(frozen)
	}) {
		return
	}
	for i := range frozen {
		l.reservations.countLostReservation(&frozen[i])
	}
}

// give gives r back to this node's counters, if they still have the lineage it was taken in: a grant of this process as far as
// the ledger allows, a reservation as far as it can't have drained since, and a window in full. Otherwise a bucket or a log
// takes back only what this process debited: this node can't read another process's clock, and has no ledger of its grants.
func (r *refund) give(l *Limiter) {
	m := l.membership
	sameLineage := func() bool { return l.sameLineage(r.subject, r.lineage) }
	if !sameLineage() || m != nil && !m.Authority() {
		l.reservations.countLostReservation(r)
		return
	}
	now, sameProcess := l.clock.Now(), r.incarnation == l.incarnation
	if r.grant != 0 && !sameProcess && m.leases.resets.has(m.Boottime(), r.subject) {
		return
	}
	giveOne := func(i int, cost int64) {
		op := &r.ops[i]
		taken := algorithms.TakeRecord{Steady: r.steady, Window: r.when[i], Amount: op.Limit.Amount, Burst: op.Limit.Burst}
		if r.made != 0 {
			if l.table.Refund(now, op.Key, op.Limit, taken, l.remainingLife(&r.debit, i, r.made, now), cost, sameLineage) != nil {
				l.reservations.dropped.Add(1) // the subject was handed over a moment ago
			}
			return
		}
		if r.grant != 0 {
			taken.Steady = now.Steady
		} else if op.Limit.Kind == algorithms.SlidingLog {
			taken.Steady += r.when[i] // see takeRecordAt
		}
		if l.table.Give(now, op.Key, op.Limit, taken, cost, sameLineage) == nil && r.grant != 0 {
			m.counts.returned.Add(1)
		}
	}
	if r.grant != 0 && sameProcess {
		m.leases.granted.Return(m.Boottime(), r.lineage, r.grant, r.ops, func(op *counters.Op) int64 {
			used, _ := l.table.Usage(now, op.Key, op.Limit)
			return used
		}, giveOne)
		return
	}
	for i := range r.ops {
		if op := &r.ops[i]; op.Cost > 0 && (sameProcess || r.made != 0 || op.Limit.Kind.Windowed()) {
			giveOne(i, op.Cost)
		}
	}
}

// countLostReservation counts lost's ops as dropped if it is a reservation's.
func (rs *reservations) countLostReservation(lost *refund) {
	if lost.made != 0 {
		rs.dropped.Add(int64(len(lost.ops)))
	}
}
