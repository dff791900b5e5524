package limiter

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// amend applies the change to this node's counters. A change with a ticket is
// applied once. The error is or wraps counters.ErrShut, ErrNoRoom,
// ErrRequestIDReused or ErrTooManyRequestIDs.
func (ch *change) amend(l *Limiter, now algorithms.Instant) error {
	am := counters.Amendment{Ops: ch.ops, Reset: ch.verb.reset()}
	if ch.verb == verbCharge {
		am.OldRates = l.mayHaveNewRate(&ch.ops[0], ch.madeAt, now)
		ch.describeTaken(l, now, &am)
	}

	if ch.ticket != nil {
		am.Memo = ch.memo(now)
		am.Answer = func(am *counters.Amendment) []byte {
			ch.applied = am.Applied
			return wire.Encode(nil, resultsOf(ch))
		}
	}

	err := ch.table(l).Amend(now, &am)
	if err != nil {
		return requestError(err)
	}
	if !am.Repeated {
		ch.applied = am.Applied
		ch.correctBill(l, now.Wall)
		return nil
	}

	l.requests.repeated.Add(1)
	var list results
	if wire.Decode(am.Memo.Answer, &list, "answer") != nil || !ch.acceptResults(list) {
		// The kept answer is for the limits of earlier rules. Report the current usage.
		return ch.readUsage(l, now)
	}
	return nil
}

// describeTaken sets am.Life and am.From for a late settlement. They say in
// which life and when the reservation took its costs, so that windows and lives
// that have begun since are not charged.
func (ch *change) describeTaken(l *Limiter, now algorithms.Instant, am *counters.Amendment) {
	if ch.taken == nil {
		return
	}
	am.Life = ch.taken.life
	age := l.reservationAge(ch.madeAt, ch.subject(), now)
	for i := range ch.ops {
		am.From = append(am.From, l.takeRecord(ch.taken, i, age))
	}
}

func (ch *change) memo(now algorithms.Instant) *counters.Memo {
	return ch.ticket.memo(counters.Key{Subject: ch.subject(), Counter: ch.anyCounter()}, ch.ticket.kind(), now)
}

// clear makes every inline counter of the change's subject fresh, in batches.
// If the change has a ticket, it does so once. The error is or wraps
// counters.ErrShut, ErrNoRoom, ErrNoOwner, ErrRequestIDReused or
// ErrTooManyRequestIDs.
func (ch *change) clear(ctx context.Context, l *Limiter) error {
	now := l.clock.Now()
	var memo *counters.Memo

	if ch.ticket != nil {
		memo = ch.memo(now)

		// The batches below are separate steps. The lock makes a repetition wait for
		// the last of them, and then find the answer.
		unlock, ok := l.requests.lock(ctx, memo.Key)
		if !ok {
			return ErrNoOwner
		}
		defer unlock()

		found, err := l.table.Recall(now, memo)
		if err != nil {
			return requestError(err)
		}
		if found {
			l.requests.repeated.Add(1)
			return nil
		}
	}

	for more := true; more; {
		ops := l.table.InlineOps(ch.inlineSubject, maxListed)

		// Check the gate after listing: if the partition is not open by then, the list
		// may lack counters.
		if !l.table.IsOpen(ring.PartitionOf(ch.inlineSubject)) {
			return counters.ErrShut
		}

		for chunk := range slices.Chunk(ops, maxSubjectOps) {
			if err := l.table.Amend(now, &counters.Amendment{Ops: chunk, Reset: counters.ResetSubject}); err != nil {
				return err
			}
		}

		// Fresh counters are not listed again, so the next list has others.
		more = len(ops) == maxListed
		if more && ctx.Err() != nil {
			return ErrNoOwner
		}
	}

	if memo == nil {
		return nil
	}

	// Remember the answer only now that all batches are done: after a failure, a
	// repetition must begin anew.
	return requestError(l.table.Remember(now, memo))
}

// acceptResults takes over results that another node sent or that were kept. It
// returns false if their number shows that they are for other limits.
func (ch *change) acceptResults(list results) bool {
	if len(list) != len(ch.ops) {
		return false
	}
	for i := range list {
		ch.ops[i].Decision = list[i].Decision
		ch.leased[i] = list[i].leasedPart
		ch.applied[i] = list[i].applied
		ch.slotHolders[i] = list[i].held
	}
	return true
}

// results is the answer to a change, as kept and sent: by op.
type results []opUsage

// opUsage is what a change reports about one counter.
type opUsage struct {
	result
	leasedPart
	applied int64
	held    heldSlots
}

// heldSlots lists slots of a limit that are held.
type heldSlots struct {
	list []Holder // at most MaxHolders
	all  int      // how many are held
}

func resultsOf(ch *change) *results {
	list := make(results, len(ch.ops))
	for i := range ch.ops {
		list[i].Decision = ch.ops[i].Decision
		list[i].leasedPart = ch.leased[i]
		list[i].applied = ch.applied[i]
		list[i].held = ch.slotHolders[i]
	}
	return &list
}

// Code implements wire.Message.
func (res *results) Code(c *wire.Coder) {
	wire.List(c, (*[]opUsage)(res), maxSubjectOps, minResultBytes+5, func(v *opUsage) {
		v.code(c)
		wire.Number(c, &v.units, math.MaxInt64)
		c.Bool(&v.estimated)
		wire.Varint(c, &v.applied)
		wire.Number(c, &v.held.all, math.MaxInt32)
		wire.List(c, &v.held.list, MaxHolders, 8+4, func(h *Holder) { h.code(c) })
	})
}

// holdersOf lists the slots of op's limit that are held, as this node's notes say.
func (l *Limiter) holdersOf(op *counters.Op, now algorithms.Instant) (held heldSlots) {
	if op.Limit.Kind != algorithms.Concurrency {
		return held
	}
	list, all := l.table.Slots(now, op.Key, MaxHolders)
	held.all = all
	for i := range list {
		info := &list[i]
		held.list = append(held.list, Holder{
			ID: info.ID, Slots: info.Units, Age: time.Duration(now.Steady - info.Acquired),
			Expires: time.Duration(info.End - now.Steady), Who: info.Who,
		})
	}
	return held
}
