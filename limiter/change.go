package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/partitions"
	"github.com/rlnode/rlnode/peer"
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
	switch err := l.change(&c, now); {
	case errors.Is(err, counters.ErrShut):
		return false
	case errors.Is(err, ErrRequestBody):
		r.status = otherBody
		return true
	case errors.Is(err, ErrRequests):
		r.status = crowded
		return true
	case err != nil:
		r.status = full
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

// apply does c at the owner of its counters, be that this node. Who may have done it already is asked again: c has a ticket. The
// error wraps ErrNoOwner, ErrFull, ErrRequestBody or ErrRequests.
func (l *Limiter) apply(c *change) error {
	m := l.member
	if m == nil {
		if c.ticket.idle() {
			c.ticket = nil
		}
		return l.change(c, l.clock.Now())
	}
	p := partitionOf(c.ops[0].Key.Hi)
	until := time.Now().Add(checkTime)
	ctx, cancel := context.WithDeadline(m.ctx, until)
	defer cancel()
	var tried []ring.NodeID
	var hint ring.NodeID
	ticket := c.ticket
	for ctx.Err() == nil {
		r := m.Ownership.Route(p)
		if r.Place == partitions.Frozen {
			m.Ownership.Wait(ctx, p)
			continue
		}
		if r.Place == partitions.Held {
			if c.ticket = ticket; ticket.idle() {
				c.ticket = nil
			}
			err, over := l.changeHere(c)
			if over {
				return err
			}
			continue
		}
		to := firstUntried(tried, m.Self, hint, r.Owner, r.Other)
		if to.IsZero() {
			break
		}
		tried = append(tried, to)
		a := &ask{to: to, until: until, done: make(chan struct{}, 1)}
		a.q = question{verb: c.verb, ticket: ticket, revision: r.Revision, version: l.version(), ops: slices.Clone(c.ops)}
		if ticket != nil {
			ticket.sent = true
		}
		if l.send(a, false); !a.wait() || a.err != nil {
			if ticket != nil && isUnread(a.err) {
				ticket, tried = nil, tried[:len(tried)-1] // a node of a release that knows no tickets
			}
			continue
		}
		switch a.status {
		case decided:
			c.ops, c.used = a.q.ops, a.used
			return nil
		case full:
			return ErrFull
		case otherBody:
			return ErrRequestBody
		case crowded:
			return ErrRequests
		}
		hint = a.hint
	}
	return ErrNoOwner
}

// isUnread says that a node could not read a message, and so did nothing.
func isUnread(err error) bool {
	var remote *peer.RemoteError
	return errors.As(err, &remote) && remote.Code == CodeMessage
}

// changeHere does c as the owner. over is false where it has to be tried again.
func (l *Limiter) changeHere(c *change) (err error, over bool) {
	m := l.member
	if !m.Authority() {
		return ErrNoOwner, true
	}
	if err = l.change(c, l.clock.Now()); errors.Is(err, counters.ErrShut) {
		return nil, false
	}
	if !m.Authority() {
		return ErrNoOwner, true
	}
	if err == nil {
		l.forget(c)
	}
	return err, true
}

// forget makes leases and remembered refusals of the subject void where c has made room: they would say otherwise.
func (l *Limiter) forget(c *change) {
	reward := slices.ContainsFunc(c.ops, func(op counters.Op) bool { return op.Cost < 0 })
	if c.verb == verbReset || c.verb == verbAdjust && reward {
		l.changed(c.ops[0].Key.Hi, c.verb == verbReset)
	}
}

// firstUntried is the first of ids that is another node and has not been asked.
func firstUntried(tried []ring.NodeID, self ring.NodeID, ids ...ring.NodeID) ring.NodeID {
	for _, id := range ids {
		if !id.IsZero() && id != self && !slices.Contains(tried, id) {
			return id
		}
	}
	return ring.NodeID{}
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

// fill asks what is used.
func (l *Limiter) fill(u *Usage) error {
	c := changeOf(verbUsage, u, 0)
	if len(c.ops) == 0 {
		return nil
	}
	if err := l.apply(c); err != nil {
		return fmt.Errorf("usage of %q: %w", u.Rule.Name, err)
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
