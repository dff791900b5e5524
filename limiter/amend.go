package limiter

import (
	"cmp"
	"context"
	"encoding/binary"
	"math"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// amend applies c to this node's counters; only once, if c has a ticket. The
// error is or wraps counters.ErrShut, ErrFull, ErrRequestIDReused or
// ErrTooManyRequestIDs.
func (c *change) amend(l *Limiter, now algorithms.Instant) error {
	a := counters.Amendment{Ops: c.ops, Reset: c.verb == verbReset || c.verb == verbResetSome,
		Partial: c.verb == verbResetSome}
	if c.verb == verbCharge {
		a.OldRates = l.mayHaveNewRate(&c.ops[0], c.made, now)
		c.describeTaken(l, now, &a)
	}
	if c.ticket != nil {
		a.Memo = c.memo(now)
		a.Answer = func(a *counters.Amendment) []byte {
			c.applied = a.Applied
			return wire.Encode(nil, resultsOf(c))
		}
	}
	err := c.table(l).Amend(now, &a)
	if err != nil {
		return requestError(err)
	}
	if !a.Repeated {
		c.applied = a.Applied
		c.correctBill(l, now.Wall)
		return nil
	}

	l.requests.repeated.Add(1)
	var list results
	if wire.Decode(a.Memo.Answer, &list, "answer") != nil || !c.acceptResults(list) {
		return c.readUsage(l, now) // the kept answer is for the limits of earlier rules: report the current usage
	}
	return nil
}

// describeTaken sets, for a late settlement, what its costs belong to.
func (c *change) describeTaken(l *Limiter, now algorithms.Instant, a *counters.Amendment) {
	if c.taken == nil {
		return
	}
	a.Life = c.taken.life
	age := l.reservationAge(c.made, c.subject(), now)
	for i := range c.ops {
		a.From = append(a.From, l.takenAt(c.taken, i, age))
	}
}

// memo returns the memo of c's ticket.
func (c *change) memo(now algorithms.Instant) *counters.Memo {
	return c.ticket.memo(counters.Key{Subject: c.subject(), Counter: c.anyCounter()}, c.ticket.kind(), now)
}

// clear makes every inline counter of c's subject fresh, in batches; only once,
// if c has a ticket. The error is or wraps counters.ErrShut, ErrFull,
// ErrNoOwner, ErrRequestIDReused or ErrTooManyRequestIDs.
func (c *change) clear(ctx context.Context, l *Limiter) error {
	now := l.clock.Now()
	var memo *counters.Memo

	if c.ticket != nil {
		memo = c.memo(now)

		// The batches below are several steps: a repetition that came between them must
		// wait for the last.
		done, ok := l.requests.lock(ctx, memo.Key)
		if !ok {
			return ErrNoOwner
		}
		defer done()

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
		ops := l.table.InlineOps(c.inlineSubject, maxListed)

		// Asked after the list was made: of a partition that is not open, it may lack counters.
		if !l.table.IsOpen(ring.PartitionOf(c.inlineSubject)) {
			return counters.ErrShut
		}

		for some := range slices.Chunk(ops, maxSubjectOps) {
			if err := l.table.Amend(now, &counters.Amendment{Ops: some, Reset: true}); err != nil {
				return err
			}
		}

		more = len(ops) == maxListed
		if more && ctx.Err() != nil {
			return ErrNoOwner
		}
	}

	if memo == nil {
		return nil
	}

	// Only once all batches are done: after a failure, a repetition must begin
	// anew.
	return requestError(l.table.Remember(now, memo))
}

// acceptResults copies the results of c into c. It returns false if they are for other limits.
func (c *change) acceptResults(list results) bool {
	if len(list) != len(c.ops) {
		return false
	}
	for i := range list {
		c.ops[i].Decision, c.leased[i] = list[i].Decision, list[i].leasedPart
		c.applied[i] = list[i].applied
		c.holders[i] = list[i].held
	}
	return true
}

// results is the answer to a change, as kept and sent.
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
	all  int
}

func resultsOf(c *change) *results {
	list := make(results, len(c.ops))
	for i := range c.ops {
		list[i].Decision = c.ops[i].Decision
		list[i].leasedPart = c.leased[i]
		list[i].applied = c.applied[i]
		list[i].held = c.holders[i]
	}
	return &list
}

// Code implements wire.Message.
func (r *results) Code(c *wire.Coder) {
	wire.List(c, (*[]opUsage)(r), maxSubjectOps, minResultBytes+5, func(v *opUsage) {
		v.code(c)
		wire.Number(c, &v.units, math.MaxInt64)
		c.Bool(&v.estimated)
		wire.Varint(c, &v.applied)
		wire.Number(c, &v.held.all, math.MaxInt32)
		wire.List(c, &v.held.list, MaxHolders, 8+4, func(h *Holder) { h.code(c) })
	})
}

// hashChange hashes c, a change of u. The order of costs does not matter.
func hashChange(c *change, u *Usage, costs []UnitCost) uint64 {
	n, others := int64(0), []UnitCost(nil)
	for _, c := range costs {
		if c.Unit == rules.Requests {
			n = c.Cost
		} else {
			others = append(others, c)
		}
	}

	slices.SortFunc(others, func(x, y UnitCost) int { return cmp.Compare(x.Unit, y.Unit) })
	b := wire.AppendText(binary.AppendVarint(nil, int64(c.verb)), u.Rule.Name)
	b = wire.AppendBool(wire.AppendText(b, u.limitName), c.bill != nil)
	b = binary.AppendVarint(wire.AppendTexts(b, u.Key), n)
	for _, c := range others {
		b = binary.AppendVarint(wire.AppendText(b, c.Unit), c.Cost)
	}

	if u.Namespace != "" {
		b = wire.AppendText(b, u.Namespace)
		for i := range u.Limits {
			l := u.Limits[i].Limit
			b = l.Append(binary.LittleEndian.AppendUint64(b, l.ID), 0)
		}
	}

	return hashContent(b)
}
