package limiter

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// localLineage is the lineage of what was taken under a rule with `consistency:
// local`. No partition has it: only the process that took it can give it back.
const localLineage = ^uint64(0)

// refund is taken costs on their way back: those of a check that another limit
// refused, the rest of a grant, or what a reservation did not use.
type refund struct {
	takenCosts
	hops       int
	grant      uint64 // ID of a lease's grant; zero unless from a lease
	reservedAt int64  // wall time at which the reservation was made; zero unless from a reservation
	late       bool   // the reservation was settled after its end
	// place is the notes.Key.ID of the place of a reservation that came to
	// nothing; zero if there is none. A refund may have a place and no costs.
	place uint64
}

// maxRefunds bounds the refunds in one message.
const maxRefunds = 1024

// refundList is the body of MethodRefund.
type refundList struct{ list []refund }

// Code implements wire.Message.
func (list *refundList) Code(c *wire.Coder) {
	wire.List(c, &list.list, maxRefunds, minRefundBytes, func(item *refund) { item.codeWhole(c) })
}

// minRefundBytes is the minimum size of an encoded refund.
const minRefundBytes = 5*8 + 3 + 1 + 1 + 8 + 1

// codeWhole writes or reads all of the refund that goes to another node.
func (rf *refund) codeWhole(c *wire.Coder) {
	rf.takenCosts.code(c)
	wire.Number(c, &rf.hops, maxHops)
	wire.Number(c, &rf.grant, math.MaxInt64)
	wire.Fixed(c, &rf.reservedAt)
	c.Bool(&rf.late)
	wire.Fixed(c, &rf.place)
	c.Require(!rf.isEmpty())
}

// isEmpty reports whether the refund gives back neither cost nor a place.
func (rf *refund) isEmpty() bool { return len(rf.ops) == 0 && rf.place == 0 }

// sendRefunds gives the refunds in list back, on this node or at their owners.
// A refund that could not be sent is tried again for refundTimeout; the ledger
// may refuse the rest of a grant earlier. No refund is sent twice: a second one
// would create quota, and a lost one only loses some.
func (l *Limiter) sendRefunds(list []refund) {
	waiting := l.tryRefunds(list)
	for i := range waiting {
		l.cluster.refunds.keep(&waiting[i], refundTimeout)
	}
}

// try implements task.
func (rf *refund) try(_ context.Context, l *Limiter, _ time.Duration) bool {
	waiting := l.tryRefunds([]refund{*rf})
	if len(waiting) > 0 {
		*rf = waiting[0]
	}
	return len(waiting) == 0
}

// tryRefunds gives the refunds in list back or sends them to their owners. It
// returns those that must wait.
func (l *Limiter) tryRefunds(list []refund) (waiting []refund) {
	cp := l.cluster
	byOwner := map[ring.NodeID][]refund{}
	for i := range list {
		item := &list[i]
		if item.isEmpty() {
			continue
		}

		route := partitions.Route{Location: partitions.Here}
		if cp != nil {
			route = cp.Ownership.Route(ring.PartitionOf(item.subject))
		}

		switch {
		case route.Location == partitions.Here && (cp == nil || cp.Authority()):
			rest := l.giveBackHere(item)
			if !rest.isEmpty() {
				waiting = append(waiting, rest)
			}
		case route.Location == partitions.Elsewhere && route.Owner != cp.Self && item.hops <= maxHops && cp.Peers.Reachable(route.Owner):
			byOwner[route.Owner] = append(byOwner[route.Owner], *item)
		default:
			// The refund waits here, even after its last hop, in case the token comes here:
			// two nodes may name each other as the owner while a partition moves.
			waiting = append(waiting, *item)
		}
	}

	for to, list := range byOwner {
		for chunk := range slices.Chunk(list, maxRefunds) {
			if cp.Peers.Send(to, MethodRefund, wire.Encode(nil, &refundList{chunk})) != nil { // Send has sent nothing
				waiting = append(waiting, chunk...)
			}
		}
	}

	return waiting
}

const (
	// refundTimeout bounds how long a node keeps a refund that waits.
	refundTimeout = 2 * time.Second
	// maxWaitingRefunds bounds the refunds that wait on a node: for a partition
	// that is being handed over, for authority, for an owner that can't be reached,
	// or, after too many hops, for the token to arrive here.
	maxWaitingRefunds = 16384
	// returnTimeout is how long after a grant's end its holder may return the rest.
	// The process that made the grant takes the rest only for a shorter time; see
	// returnGrace in package localcache. Another owner, which may have taken over
	// since, goes by maxGrantAge.
	returnTimeout = time.Second
	// maxGrantAge bounds the age of a grant whose rest arrives: its life, the time
	// until its holder returns it, and one wait on each node that it reaches.
	maxGrantAge = localcache.MaxTTL + returnTimeout + (maxHops+2)*refundTimeout
	// maxTakenAge is the same for the costs of a check that another limit refused.
	maxTakenAge = checkTimeout + pendingTimeout + (maxHops+2)*refundTimeout
)

// giveBackHere gives the refund back to this node's counters.
// [counters.Table.GiveBack] decides how much comes back, and so does the ledger
// for a grant of this process. giveBackHere returns what must wait because a gate
// has just been shut; it is empty if nothing must.
func (l *Limiter) giveBackHere(rf *refund) (rest refund) {
	now := l.clock.Now()
	rest = *rf

	if rf.place != 0 {
		err := l.table.ForgetReservation(now, placeKey(rf.subject, rf.place), true, nil)
		if errors.Is(err, counters.ErrShut) {
			return rest // all of it: the next owner has the place
		}
		rest.place = 0
	}

	rest.ops = nil
	rest.marks = nil

	// giveOne gives a part of the i-th op's cost back. It returns false if the op
	// must wait.
	giveOne := func(i int, cost int64) bool {
		op := &rf.ops[i]
		taken := l.takeRecord(&rf.takenCosts, i, l.maxAge(rf, now))
		taken.Reserved = rf.reservedAt != 0
		taken.Late = rf.late

		err := l.table.GiveBack(now, op.Key, op.Limit, taken, cost, rf.life)
		switch {
		case errors.Is(err, counters.ErrShut):
			rest.ops = append(rest.ops, *op)
			rest.marks = append(rest.marks, rf.marks[i])
			return false
		case err != nil:
			l.countLost(rf, 1)
		case rf.grant != 0:
			l.cluster.counts.returned.Add(1)
		}

		return true
	}

	// The ledger of grants lets no part of a grant come back twice.
	if rf.grant != 0 && rf.boot == l.boot {
		cp := l.cluster
		if !cp.leases.granted.Return(cp.Boottime(), rf.life.Lineage, rf.grant, rf.ops, giveOne) {
			l.countLost(rf, len(rf.ops))
		}
		return rest
	}

	for i := range rf.ops {
		if rf.ops[i].Cost > 0 {
			giveOne(i, rf.ops[i].Cost)
		}
	}
	return rest
}

// maxAge returns the longest time that may have passed since another process
// took the cost of the refund.
func (l *Limiter) maxAge(rf *refund, now algorithms.Instant) time.Duration {
	switch {
	case rf.reservedAt != 0:
		return l.reservationAge(rf.reservedAt, rf.subject, now)
	case rf.grant != 0:
		return maxGrantAge
	}
	return maxTakenAge
}

// takeRecord describes when the cost of the i-th op of costs was taken. If
// another process took the cost, maxAge is how long ago that was at most: the
// steady clock of that process can't be read here.
func (l *Limiter) takeRecord(costs *takenCosts, i int, maxAge time.Duration) algorithms.TakeRecord {
	op := &costs.ops[i]
	taken := algorithms.TakeRecord{Steady: costs.steady, Window: int64(costs.marks[i])}
	if costs.boot != l.boot {
		taken.Steady = l.clock.Now().Steady - int64(maxAge)
	}

	switch {
	case op.Limit.Kind == algorithms.SlidingLog:
		taken.Steady += int64(costs.marks[i])
	case op.Limit.Kind.IsBucket():
		taken.Amount = op.Limit.Amount
		taken.ResetAfter = time.Duration(costs.marks[i])
		taken.MaxRate = l.maxRateSince(op, taken.Steady)
	}
	return taken
}

// maxRateSince returns the highest rate at which op's bucket has drained since a
// steady time. A refund must not assume that it drained more slowly than it did.
// The result is 0 if the rate is not known, because that of a configured limit
// may have changed since. (While a bucket has reservations, a note has its
// highest rate.)
//
// For an inline limit, the result is op's own rate, although other callers may
// have drained the bucket faster. This is safe for reservations, because their
// note has the highest rate, and for any other cost, because it is at most a
// lease old, which the guarantee allows for.
func (l *Limiter) maxRateSince(op *counters.Op, steady int64) int64 {
	// A check in flight keeps the limits that were in force when it began.
	changed := l.ratesChangedAt.Load() + int64(checkTimeout+pendingTimeout)
	if !op.Key.IsInline() && changed >= steady {
		return 0
	}
	return op.Limit.Amount
}

// mayHaveNewRate reports whether the rate of op's bucket may have changed since
// a reservation was made.
func (l *Limiter) mayHaveNewRate(op *counters.Op, made int64, now algorithms.Instant) bool {
	age := l.reservationAge(made, op.Key.Subject, now)
	return l.maxRateSince(op, now.Steady-int64(age)) == 0
}

// countLost implements task.
func (rf *refund) countLost(l *Limiter, _ bool) { l.countLost(rf, len(rf.ops)) }

// countLost counts n ops of rf as dropped, if rf is of a reservation or a
// grant.
func (l *Limiter) countLost(rf *refund, n int) {
	switch {
	case rf.reservedAt != 0:
		l.reservations.dropped.Add(int64(n))
	case rf.grant != 0:
		l.cluster.counts.lost.Add(int64(n))
	}
}
