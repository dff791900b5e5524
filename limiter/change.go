package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// verb says what a change does.
type verb uint8

const (
	verbUsage     verb = iota // read the usage
	verbAdjust                // debit costs, which may be negative
	verbReset                 // make the counters fresh
	verbList                  // list the inline counters
	verbClear                 // make all inline counters fresh
	verbGive                  // as verbAdjust with costs below zero; leases stay
	verbCharge                // debit what settling a reservation takes beyond it
	verbResetSome             // make the counters of some limits fresh; blocks stay
	verbs
)

var verbNames = [verbs]string{"usage of", "adjust", "reset", "list", "reset", "give back to", "charge", "reset"}

// maxListed bounds the counters of one subject that a change lists, or clears at a time.
const maxListed = 1024

// change is an operator's request about one subject's counters: a verb with a
// cost for each limit, and the resulting usage of each. A change that modifies
// anything has a ticket.
type change struct {
	verb   verb
	hops   int
	ticket *ticket
	ops    []counters.Op // their decisions are the result
	made   int64         // for verbCharge: when the reservation was made, in Unix nanoseconds; its limits are as old
	leased []leasedPart  // of each of ops; also part of the result
	// holders, by op, is part of the result of verbUsage.
	holders []heldSlots
	// applied, by op, is part of the result of an adjustment.
	applied []int64
	bill    *bill  // of an adjustment: corrected by what was applied; may be nil
	taken   *debit // for verbCharge by a late settlement: what the reservation took; has ops
	local   bool   // of a `consistency: local` rule: concerns only this node's counters; never sent
	// For verbList and verbClear, in place of ops: an inline subject whose limits are not known.
	inlineSubject uint64
	counters      counterIDs // the result of verbList
}

// counterIDs holds the Key.Counter of a subject's counters.
type counterIDs []uint64

// Code implements wire.Message.
func (l *counterIDs) Code(c *wire.Coder) {
	wire.List(c, (*[]uint64)(l), maxListed, 8, func(counter *uint64) { wire.Fixed(c, counter) })
}

// coversAllCounters reports whether c applies to all inline counters of its subject.
func (c *change) coversAllCounters() bool { return c.verb == verbList || c.verb == verbClear }

// subject returns the Key.Subject of c's subject.
func (c *change) subject() uint64 {
	if c.coversAllCounters() {
		return c.inlineSubject
	}
	return c.ops[0].Key.Subject
}

// anyCounter returns the Key.Counter of one of the counters of c's subject.
func (c *change) anyCounter() uint64 {
	if c.coversAllCounters() {
		return counters.InlineCounter(0)
	}
	return c.ops[0].Key.Counter
}

// Code implements wire.Message.
func (c *change) Code(w *wire.Coder) {
	wire.Number(w, &c.verb, int64(verbs-1))
	wire.Number(w, &c.hops, maxHops)
	wire.Optional(w, &c.ticket, func(t *ticket) { t.Code(w) })
	w.Require(c.hops > 0 && (c.ticket == nil || c.verb != verbUsage && c.verb != verbList))
	if c.coversAllCounters() {
		wire.Fixed(w, &c.inlineSubject)
		return
	}
	if c.verb == verbCharge && c.codeCharge(w) {
		return
	}

	if c.verb == verbAdjust {
		wire.Optional(w, &c.bill, func(b *bill) { b.code(w) })
	}

	codeOps(w, &c.ops, nil, c.verb == verbAdjust || c.verb == verbGive || c.verb == verbCharge)
	w.Require(len(c.ops) > 0 && countSubjectOps(c.ops) == len(c.ops))
	w.Require(c.bill == nil || len(c.bill.units) <= len(c.ops))
}

// codeCharge codes what only a charge has, and its ops if it has taken.
func (c *change) codeCharge(w *wire.Coder) (isLate bool) {
	wire.Fixed(w, &c.made)
	wire.Optional(w, &c.taken, func(d *debit) { d.code(w) })
	if c.taken == nil {
		return false
	}
	c.ops = c.taken.ops
	w.Require(len(c.ops) > 0)
	return true
}

// apply carries out c at the owner of its counters, which may be this node, or
// here if c is local. It may repeat the request to an owner that already
// carried it out: the ticket prevents a second change. The error wraps
// ErrNoOwner, ErrFull, ErrRequestIDReused or ErrTooManyRequestIDs.
func (c *change) apply(ctx context.Context, l *Limiter) error {
	c.leased = make([]leasedPart, len(c.ops))
	c.applied = make([]int64, len(c.ops))
	c.holders = make([]heldSlots, len(c.ops))

	if c.local && l.membership != nil {
		return c.applyLocal(l)
	}

	t := c.ticket
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()

	return l.doAtOwner(ctx, &ownerRequest{subject: c.subject(), hops: c.hops, here: func() error {
		// An attempt here that came to nothing may have dropped it.
		c.ticket = t

		// As long as no other node may have carried it out, it needs no ticket,
		// and no room for one.
		if c.hops == 0 && t.isUnneeded() {
			c.ticket = nil
		}
		return c.applyHere(ctx, l)
	}, forward: func(to ring.NodeID) error {
		next := *c
		next.hops++
		next.ticket = t

		// Even if the call fails: that node may have carried it out.
		if t != nil {
			t.sent = true
		}

		if c.verb == verbList {
			return l.membership.forward(ctx, to, MethodChange, &next, &c.counters)
		}

		var list results
		if err := l.membership.forward(ctx, to, MethodChange, &next, &list); err != nil {
			return err
		}
		if !c.acceptResults(list) {
			return ErrNoOwner
		}

		return nil
	}})
}

// applyLocal carries out c, which is local, on this node's share of the limits.
func (c *change) applyLocal(l *Limiter) error {
	if c.ticket.isUnneeded() {
		c.ticket = nil
	}

	whole := slices.Clone(c.ops)

	for i := range c.ops {
		if op := &c.ops[i]; !op.Block {
			op.Limit = l.membership.shareOf(op.Limit)
		}
	}

	defer func() {
		for i := range c.ops {
			c.ops[i].Limit = whole[i].Limit
		}
	}()

	if c.verb == verbUsage {
		return c.readUsage(l, l.clock.Now())
	}

	return c.amend(l, l.clock.Now())
}

// table returns the table with c's counters.
func (c *change) table(l *Limiter) *counters.Table {
	if c.local && l.membership != nil {
		return l.membership.Fallback
	}
	return l.table
}

// reply returns the reply to the node that requested c. c must have been applied.
func (c *change) reply() wire.Message {
	if c.verb == verbList {
		return &c.counters
	}
	return resultsOf(c)
}

// applyHere carries out c on the counters here, as their owner or as a
// standalone node. The error is or wraps counters.ErrShut or one of the errors
// of apply.
func (c *change) applyHere(ctx context.Context, l *Limiter) (err error) {
	switch c.verb {
	case verbUsage:
		err = c.viewLeased(l, func() error { return c.readUsage(l, l.clock.Now()) })
	case verbList:
		err = c.list(l)
	case verbClear:
		err = c.clear(ctx, l)
	default:
		err = c.viewLeased(l, func() error { return c.amend(l, l.clock.Now()) })
	}

	switch {
	case errors.Is(err, counters.ErrShut):
		return err
	case err == nil:
		c.voidLeases(l) // even if authority has lapsed meanwhile: the change stands
	}

	if l.membership != nil && !l.membership.Authority() {
		return ErrNoOwner
	}

	return err
}

// readUsage reads the usage into c. It fails with counters.ErrShut if a counter
// is not on this node.
func (c *change) readUsage(l *Limiter, now algorithms.Instant) error {
	for i := range c.ops {
		op := &c.ops[i]
		if !c.table(l).IsOpen(op.Key.Partition()) {
			return counters.ErrShut
		}
		c.table(l).ReadUsage(now, op)
		c.holders[i] = l.holdersOf(op, now)
	}
	return nil
}

// list lists the inline counters of c's subject. It fails with counters.ErrShut
// if they are not on this node.
func (c *change) list(l *Limiter) error {
	c.counters = c.counters[:0]
	for _, op := range l.table.InlineOps(c.inlineSubject, maxListed) {
		c.counters = append(c.counters, op.Key.Counter)
	}

	// Asked after the list was made: of a partition that is not open, it may
	// lack counters.
	if !l.table.IsOpen(ring.PartitionOf(c.inlineSubject)) {
		return counters.ErrShut
	}
	return nil
}

// voidLeases voids the subject's leases and remembered refusals if c has freed
// quota, because they would contradict it.
func (c *change) voidLeases(l *Limiter) {
	givesBack := slices.ContainsFunc(c.ops, func(op counters.Op) bool { return op.Cost < 0 })
	reset := c.verb == verbReset || c.verb == verbResetSome || c.verb == verbClear
	if l.membership == nil || !reset && !((c.verb == verbAdjust || c.verb == verbGive) && givesBack) {
		return
	}
	subject := c.subject()
	if c.verb == verbGive {
		l.membership.leases.forgetSoon(&l.membership.leases.forgetNotices,
			forgetMessage{subject: subject, refusalsOnly: true})
		return
	}
	l.membership.leases.forgetEverywhere(forgetMessage{subject: subject})
}

// newChange returns a change of every counter of u: its limits, its blocks, and
// what its limits have lent and borrowed, in this order. Each cost applies to
// the limits in its unit.
func newChange(v verb, u *Usage, costs []UnitCost) *change {
	c, h := &change{verb: v, local: u.Rule.Consistency == rules.Local}, rules.Hit{Rule: u.Rule, Subject: u.Hash}
	for i := range u.Limits {
		limit := u.Limits[i].Limit
		op := counters.Op{Key: counterKey(&h, limit), Limit: &limit.Limit, Lends: isLoanable(u.Rule, limit)}
		for _, cost := range costs {
			if cost.Unit == limit.Unit && limit.Kind != algorithms.Concurrency {
				u.Limits[i].isAdjusted = true
				op.Cost = cost.Cost
			}
		}

		if limit.RefusesAll() {
			op.Cost = 0 // it has no counter
		}

		c.ops = append(c.ops, op)
	}

	if len(c.ops) > 0 {
		for _, block := range u.blocks {
			c.ops = append(c.ops, counters.Op{Key: counterKey(&h, block), Limit: &block.Limit, Block: true})
		}
	}

	for i := range u.Limits {
		if limit := u.Limits[i].Limit; isLoanable(u.Rule, limit) {
			key := counterKey(&h, limit)
			c.ops = append(c.ops, counters.Op{Key: key.LentKey(), Limit: &limit.Limit},
				counters.Op{Key: key.BorrowedKey(), Limit: &limit.Limit})
		}
	}

	return c
}

// applyChange applies c, which newChange made from u, and writes the result into u.
func (l *Limiter) applyChange(c *change, u *Usage) error {
	if len(c.ops) == 0 && !c.coversAllCounters() {
		u.At = l.clock.Now()
		return nil
	}
	if err := c.apply(context.Background(), l); err != nil {
		return fmt.Errorf("%s %q: %w", verbNames[c.verb], u.Rule.Name, err)
	}
	l.fillUsage(u, c)
	return nil
}

// fillUsage writes the result of c into u. It is the only place that makes the
// state of a subject, for all who read it.
func (l *Limiter) fillUsage(u *Usage, c *change) {
	u.At = l.clock.Now()
	loans := c.ops[len(u.Limits):]
	for i := range u.blocks {
		u.Blocked = max(u.Blocked, loans[i].BlockLeft())
	}
	u.Blocked = max(u.Blocked, l.handBlockLeft(u))
	loans = loans[len(u.blocks):]

	for i := range u.Limits {
		lu := &u.Limits[i]
		lu.Decision = c.ops[i].Decision
		if isLoanable(u.Rule, lu.Limit) {
			lu.Lent = loans[0].Decision.Used
			lu.Borrowed = loans[1].Decision.Used
			loans = loans[2:]
		}
		lu.Share = max(0, l.capacityHere(u.Rule, lu.Limit)+lu.Loaned)
		lu.setUsed(&c.ops[i].Decision, &c.leased[i])
		lu.Applied = c.applied[i]
		lu.Holders, lu.NumHolders = c.holders[i].list, c.holders[i].all
		if u.Blocked > 0 {
			lu.Decision = whileBlocked(lu.Decision, u.Blocked)
		}
	}
}

// capacityHere returns how much of a limit can be taken at once where its
// counter is: at one node, for a local rule.
func (l *Limiter) capacityHere(r *rules.Rule, limit *rules.Limit) int64 {
	if r.Consistency == rules.Local && l.membership != nil {
		return l.membership.shareOf(&limit.Limit).Capacity()
	}
	return limit.Capacity()
}

// setUsed divides what the counter has taken, by d, into what is used and what is leased.
func (u *LimitUsage) setUsed(d *algorithms.Decision, leased *leasedPart) {
	u.Leased, u.Estimated = min(leased.units, d.Used), leased.estimated
	u.Used = d.Used - u.Leased
	u.Remaining = min(d.Remaining, max(0, u.Share-d.Used))
}
