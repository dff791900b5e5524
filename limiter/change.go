package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// change is what a person asks of one subject's counters: a verb, and for each limit a cost, in, and what is used,
// out. One that changes anything has a ticket, unless it comes from an older node.
type change struct {
	verb   verb
	ticket *ticket
	ops    []counters.Op
	used   []int64
}

// changeFor does what v's question asks; see decideFor.
func (l *Limiter) changeFor(v *visit, now algorithms.Now) bool {
	q, r := &v.question, &v.reply
	c := change{verb: q.verb, ticket: q.ticket, ops: q.ops}
	err := l.change(&c, now)
	if errors.Is(err, counters.ErrShut) {
		return false
	}
	if r.status = statusOf(err); err != nil {
		return true
	}
	l.forget(&c)
	r.admitted = append(r.admitted, true)
	for i := range c.ops {
		r.results = append(r.results, result{Decision: c.ops[i].Decision, used: c.used[i]})
	}
	return true
}

// change does c to the counters here. The error is or wraps counters.ErrShut or ErrFull, ErrRequestBody or ErrRequests.
func (l *Limiter) change(c *change, now algorithms.Now) error {
	if c.verb == verbUsage {
		return l.look(c, now)
	}
	return l.amend(c, now)
}

// look tells what is used. It fails with counters.ErrShut.
func (l *Limiter) look(c *change, now algorithms.Now) error {
	c.used = c.used[:0]
	for i := range c.ops {
		op := &c.ops[i]
		if !l.table.IsOpen(op.Key.Partition()) {
			return counters.ErrShut
		}
		used, d := l.table.Usage(now, op.Key, op.Limit)
		c.used, op.Decision = append(c.used, used), d
	}
	return nil
}

// apply does c at the owner of its counters, be that this node. An owner that may have done it already is asked again: c has a
// ticket. The error wraps ErrNoOwner, ErrFull, ErrRequestBody or ErrRequests.
func (l *Limiter) apply(c *change) error {
	until, t := time.Now().Add(checkTime), c.ticket
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	return l.do(ctx, &errand{hi: c.ops[0].Key.Hi, here: func() error {
		if c.ticket = t; t.idle() {
			c.ticket = nil
		}
		return l.changeHere(c)
	}, ask: func(to ring.NodeID, way *trail) error {
		a := &ask{to: to, until: until, done: make(chan struct{}, 1)}
		a.q = question{verb: c.verb, ticket: t, revision: way.route.Revision, version: l.version(), ops: slices.Clone(c.ops)}
		if t != nil {
			t.sent = true
		}
		if l.dispatch(a, false); !a.wait() || a.err != nil {
			return ErrNoOwner
		}
		if way.hint = a.hint; a.status == decided {
			c.ops, c.used = a.q.ops, a.used
		}
		return a.status.err()
	}})
}

// changeHere does c as the owner, or as a node by itself.
func (l *Limiter) changeHere(c *change) error {
	err := l.change(c, l.clock.Now())
	switch {
	case errors.Is(err, counters.ErrShut):
		return err
	case l.member != nil && !l.member.Authority():
		return ErrNoOwner
	case err == nil:
		l.forget(c)
	}
	return err
}

// forget makes leases and remembered refusals of the subject void where c has made room: they would say otherwise.
func (l *Limiter) forget(c *change) {
	reward := slices.ContainsFunc(c.ops, func(op counters.Op) bool { return op.Cost < 0 })
	if l.member == nil || c.verb != verbReset && !(c.verb == verbAdjust && reward) {
		return
	}
	hi := c.ops[0].Key.Hi
	if c.verb == verbReset {
		l.member.leases.granted.Forget(hi)
	}
	l.member.leases.forget(forgetting{hi: hi})
}

// changeOf is a change of what m found: of all its limits, its block, and what was lent and borrowed of its limits, in this
// order. cost is for the limits in requests.
func changeOf(v verb, u *Usage, cost int64) *change {
	c := &change{verb: v}
	for i := range u.Limits {
		limit := u.Limits[i].Limit
		op := counters.Op{Key: counters.Key{Hi: u.Hash.Hi, Lo: u.Hash.Lo ^ limit.ID}, Limit: &limit.Limit}
		if limit.UnitID == 0 {
			op.Cost = cost
		}
		c.ops = append(c.ops, op)
	}
	if u.block != nil && len(c.ops) > 0 {
		key := counters.Key{Hi: u.Hash.Hi, Lo: u.Hash.Lo ^ u.block.ID}
		c.ops = append(c.ops, counters.Op{Key: key, Limit: &u.block.Limit, Block: true})
	}
	for i := range u.Limits {
		if limit := u.Limits[i].Limit; loanable(u.Rule, limit) {
			key := counters.Key{Hi: u.Hash.Hi, Lo: u.Hash.Lo ^ limit.ID}
			c.ops = append(c.ops, counters.Op{Key: key.LentKey(), Limit: &limit.Limit},
				counters.Op{Key: key.BorrowedKey(), Limit: &limit.Limit})
		}
	}
	return c
}

// carryOut has c done, which was made of u, and puts what came of it into u.
func (l *Limiter) carryOut(c *change, u *Usage) error {
	if len(c.ops) == 0 {
		return nil
	}
	if err := l.apply(c); err != nil {
		return fmt.Errorf("%s %q: %w", verbNames[c.verb], u.Rule.Name, err)
	}
	l.tell(u, c)
	return nil
}

// tell puts into u what came of c, which was made of it.
func (l *Limiter) tell(u *Usage, c *change) {
	now := l.clock.Now()
	for i := range u.Limits {
		lu := &u.Limits[i]
		lu.Window = lu.Limit.WindowAt(now)
		lu.Used, lu.Remaining, lu.ResetAfter = c.used[i], c.ops[i].Decision.Remaining, c.ops[i].Decision.ResetAfter
	}
	loans := c.used[len(u.Limits):]
	if u.block != nil {
		u.Blocked = c.ops[len(u.Limits)].Decision.ResetAfter
		loans = loans[1:]
	}
	for i := range u.Limits {
		if lu := &u.Limits[i]; loanable(u.Rule, lu.Limit) {
			lu.Lent, lu.Borrowed, loans = loans[0], loans[1], loans[2:]
			lu.widened()
		}
	}
}

// widened takes off what is used of a fixed window by what it was widened by loans.
func (u *LimitUsage) widened() {
	share := u.Limit.Amount
	switch {
	case u.Limit.Kind != algorithms.FixedWindow:
	case u.Remaining > 0:
		u.Used = share - u.Remaining
	default: // it may be in debt
		u.Used = min(u.Used, max(share, u.Used-u.Borrowed))
	}
}
