package limiter

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/localcache"
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
	// steady. For a bucket or log of a reservation, and for a bucket of a grant, it is Decision.ResetAfter instead.
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
	grant uint64        // ID of a lease's grant; zero unless from a lease
	made  int64         // wall time at which the reservation was made; zero unless from a reservation
	until time.Duration // on the lease clock: this node keeps it no longer; zero if it has not had to wait here
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

// sendRefunds gives the refunds in list back, on this node or at their owners. Those that must wait for that are tried again for
// refundTimeout; the ledger may refuse the rest of a grant earlier. It sends each only once, because a repeated refund would
// create quota. A lost refund only loses quota.
func (l *Limiter) sendRefunds(list []refund) { l.keepRefunds(l.tryRefunds(list)) }

// tryRefunds gives the refunds in list back or sends them to their owners. It returns those that must wait.
func (l *Limiter) tryRefunds(list []refund) (waiting []refund) {
	m := l.membership
	byOwner := map[ring.NodeID][]refund{}
	for i := range list {
		item := &list[i]
		r := partitions.Route{Place: partitions.Here}
		if m != nil {
			r = m.Ownership.Route(ring.PartitionOf(item.subject))
		}
		switch {
		case item.until != 0 && (m.Boottime() >= item.until || m.leases.resets.has(m.Boottime(), item.subject)):
			l.countLost(item)
		case r.Place == partitions.Here && (m == nil || m.Authority()):
			if item.give(l); len(item.ops) > 0 {
				waiting = append(waiting, *item)
			}
		case r.Place == partitions.Elsewhere && r.Owner != m.Self && item.hops <= maxHops && m.Peers.Reachable(r.Owner):
			byOwner[r.Owner] = append(byOwner[r.Owner], *item)
		default:
			waiting = append(waiting, *item)
		}
	}
	for to, list := range byOwner {
		for some := range slices.Chunk(list, maxRefunds) {
			if m.Peers.Send(to, MethodRefund, wire.Encode(nil, &refundList{some})) != nil { // it has sent nothing
				waiting = append(waiting, some...)
			}
		}
	}
	return waiting
}

const (
	// refundTimeout bounds how long a node keeps a refund that waits.
	refundTimeout = 2 * time.Second
	// maxWaitingRefunds bounds the refunds that wait on a node.
	maxWaitingRefunds = 16384
	// returnTimeout is how long after its end the rest of a grant may be on its way at the holder.
	returnTimeout = time.Second
	// maxGrantAge bounds the age of a grant whose rest arrives: its life, the time until its holder returns it, and one wait on each
	// node that it reaches.
	maxGrantAge = localcache.MaxTTL + returnTimeout + (maxHops+2)*refundTimeout
	// maxDebitAge bounds the age of a check's cost that a bucket takes back, because what has drained since can't be told.
	maxDebitAge = checkTimeout + frozenTimeout
)

// waitingRefunds holds refunds that wait: for a partition that is being handed over, for authority, for an owner that can't be
// reached, or, after too many hops, for the token to arrive here.
type waitingRefunds struct {
	mu   sync.Mutex
	list []refund      // at most maxWaitingRefunds; guarded by mu
	wake chan struct{} // capacity 1: list is no longer empty
}

// keepRefunds keeps the refunds in list, to try them again. It drops those that have waited too long or find no room, and all
// once the limiter is closed.
func (l *Limiter) keepRefunds(list []refund) {
	if len(list) == 0 {
		return
	}
	m := l.membership
	w, now := &m.refunds, m.Boottime()
	defer wake.Signal(w.wake)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range list {
		item := &list[i]
		if item.until = cmp.Or(item.until, now+refundTimeout); now >= item.until || len(w.list) >= maxWaitingRefunds || m.ctx.Err() != nil {
			l.countLost(item)
			continue
		}
		w.list = append(w.list, *item)
	}
}

// takeAll removes and returns the refunds that wait.
func (w *waitingRefunds) takeAll() []refund {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.list
	w.list = nil
	return list
}

// retryRefunds tries the waiting refunds again and again, and for the last time when the limiter is closed.
func (l *Limiter) retryRefunds() {
	m := l.membership
	for closed := false; !closed; {
		select {
		case <-m.refunds.wake:
		case <-m.ctx.Done():
		}
		select {
		case <-time.After(maxRetryPause):
		case <-m.ctx.Done():
		}
		closed = m.ctx.Err() != nil // if so, nothing more is kept
		l.keepRefunds(l.tryRefunds(m.refunds.takeAll()))
	}
}

// give gives r back to this node's counters, if they still have the lineage it was taken in: a grant of this process as far as
// the ledger allows, a reservation or another process's grant as far as it can't have drained since, and a window in full.
// Otherwise a bucket or a log takes back only what this process debited: this node can't read another process's clock. Only those
// ops stay in r that must wait, because their gate has just been shut.
func (r *refund) give(l *Limiter) {
	m := l.membership
	all := *r
	r.ops, r.when = nil, nil
	now, sameProcess := l.clock.Now(), all.incarnation == l.incarnation
	isForeignGrant := all.grant != 0 && !sameProcess
	if !l.sameLineage(all.subject, all.lineage) || isForeignGrant && m.leases.resets.has(m.Boottime(), all.subject) {
		l.countLost(&all)
		return
	}
	giveOne := func(i int, cost int64) bool {
		switch err := all.giveOp(l, now, i, cost); {
		case errors.Is(err, counters.ErrShut):
			r.ops, r.when = append(r.ops, all.ops[i]), append(r.when, all.when[i])
			return false
		case err != nil:
			lost := all
			lost.ops = all.ops[i : i+1]
			l.countLost(&lost)
		case all.grant != 0:
			m.counts.returned.Add(1)
		}
		return true
	}
	if all.grant != 0 && sameProcess {
		if !m.leases.granted.Return(m.Boottime(), all.lineage, all.grant, all.ops, func(op *counters.Op) int64 {
			used, _ := l.table.Usage(now, op.Key, op.Limit)
			return used
		}, giveOne) {
			l.countLost(&all)
		}
		return
	}
	for i := range all.ops {
		if op := &all.ops[i]; op.Cost > 0 && (sameProcess || all.made != 0 || op.Limit.Kind.Windowed() || isForeignGrant && op.Limit.Kind.Leasable()) {
			giveOne(i, op.Cost)
		}
	}
}

// errTooOld means that a bucket can't tell how much of a cost has drained since it was taken.
var errTooOld = errors.New("the cost may have drained")

// giveOp puts cost back into the counter of r's i-th op. It fails with errTooOld, or as [counters.Table.Give] does.
func (r *refund) giveOp(l *Limiter, now algorithms.Instant, i int, cost int64) error {
	op := &r.ops[i]
	sameLineage := func() bool { return l.sameLineage(r.subject, r.lineage) }
	taken := algorithms.TakeRecord{Steady: r.steady, Window: r.when[i], Amount: op.Limit.Amount, Burst: op.Limit.Burst}
	switch {
	case r.made != 0:
		return l.table.Refund(now, op.Key, op.Limit, taken, l.remainingLife(&r.debit, i, r.made, now), cost, sameLineage)
	case r.grant != 0 && r.incarnation != l.incarnation && op.Limit.Kind == algorithms.TokenBucket:
		rest := time.Duration(r.when[i]) - maxGrantAge
		if rest <= 0 {
			return errTooOld
		}
		return l.table.Refund(now, op.Key, op.Limit, taken, rest, cost, sameLineage)
	case r.grant != 0:
		taken.Steady = now.Steady
	case op.Limit.Kind.Bucket() && now.Steady-r.steady > int64(maxDebitAge):
		return errTooOld
	case op.Limit.Kind == algorithms.SlidingLog:
		taken.Steady += r.when[i] // see takenWhen
	}
	return l.table.Give(now, op.Key, op.Limit, taken, cost, sameLineage)
}

// countLost counts the ops of a refund that is dropped.
func (l *Limiter) countLost(lost *refund) {
	switch n := int64(len(lost.ops)); {
	case lost.made != 0:
		l.reservations.dropped.Add(n)
	case lost.grant != 0:
		l.membership.counts.lost.Add(n)
	}
}
