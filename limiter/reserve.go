package limiter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/counters"
)

// ReservationStats are counts since the process began.
type ReservationStats struct {
	Reserved int64 // reservations made here
	Settled  int64 // settled here, as the home
	Repeated int64 // settled before, and told so here
	Unknown  int64 // ids that are no reservation, or none any more
	Dropped  int64 // refunds of limits that were dropped, since the counters they came from are gone
}

type reservationFigures struct {
	reserved, settled, repeated, unknown, dropped atomic.Int64
}

// ReservationStats returns what became of reservations at this node.
func (l *Limiter) ReservationStats() ReservationStats {
	f := &l.reservations
	return ReservationStats{
		Reserved: f.reserved.Load(), Settled: f.settled.Load(), Repeated: f.repeated.Load(), Unknown: f.unknown.Load(),
		Dropped: f.dropped.Load(),
	}
}

// Reserve decides q as Check does, with costs that are an estimate. If it is allowed, the id that is returned lets any
// node [Limiter.Settle] what was really used, for ttl (at most MaxReservationTime); after that it stays charged as
// reserved. The owners are asked, whatever is leased. With q.RequestID it is decided once within a minute, unless the owner of the
// first subject can't be reached. The error wraps ErrUnknownRule, ErrKey, ErrReservation, ErrRequestBody, or ErrNoOwner: the owner
// decided, but could not keep the answer, so nothing is reserved.
func (l *Limiter) Reserve(q *Query, ttl time.Duration, a *Answer) (id string, err error) {
	over, err := l.prepare(l.clock.Now(), q, a)
	if err != nil {
		return "", err
	}
	if len(a.scratch.ops) > MaxReserved {
		return "", fmt.Errorf("reserve: %w", ErrReservation)
	}
	if q.RequestID == "" || over {
		return l.reserve(q, ttl, a, over)
	}
	until := time.Now().Add(checkTime - reserve)
	r := &reserveRequest{query: q, ttl: ttl, ticket: ticketOf(q.RequestID, hashQuery(q, ttl), 0)}
	ctx, cancel := context.WithTimeout(context.Background(), homeTime)
	defer cancel()
	a.scratch.until = until
	if id, err = l.reserveOnce(ctx, r, a); !errors.Is(err, ErrNoOwner) {
		a.scratch.until = time.Time{}
		return id, err
	}
	if over, err = l.prepare(l.clock.Now(), q, a); err != nil { // a may tell of the attempt
		return "", err
	}
	a.scratch.until = until
	if id, err = l.reserve(q, ttl, a, over); err != nil || over || a.DecidedBy < ByForward {
		return id, err
	}
	// Owners decided it after all: they were only just coming.
	if hi, ok := a.home(); ok {
		return l.remember(ctx, r, hi, a, id)
	}
	return id, nil
}

// reservationOf is what a, which was admitted for a reservation, took.
func (l *Limiter) reservationOf(q *Query, a *Answer, ttl time.Duration) *reservation {
	r := &reservation{nonce: newNonce(), made: a.Now.Wall}
	r.until = r.made + int64(min(ttl, MaxReservationTime))
	switch {
	case len(a.scratch.ops) == 0 || a.DecidedBy >= ByList:
	case l.member == nil:
		first := 0
		for i := range a.scratch.match.Hits {
			n := len(a.scratch.match.Hits[i].Limits)
			s := reserved{hi: a.scratch.match.Hits[i].Subject.Hi, lineage: 1, process: l.process, steady: a.Now.Steady}
			for j := first; j < first+n; j++ {
				r.reserve(&s, a, j, takenAt(&a.scratch.ops[j], a.Now).Window)
			}
			r.subjects = append(r.subjects, s)
			first += n
		}
	default:
		c := a.scratch.journey
		for i := range c.subjects {
			r.subjects = append(r.subjects, c.reserved(r, i))
		}
	}
	if l.meter != nil && len(r.subjects) > 0 {
		r.name(q, a)
	}
	if len(r.subjects) == 0 { // nothing was asked: it can be settled all the same, at some home
		r.subjects = []reserved{{hi: binary.LittleEndian.Uint64(r.nonce[:])}}
	}
	return r
}

// reserved is what the i-th subject took, and of whom.
func (c *journey) reserved(r *reservation, i int) reserved {
	s := &c.subjects[i]
	out := reserved{hi: s.hi}
	at, subject := 0, 0 // in the question
	switch s.undo {
	case undoHere:
		out.lineage, out.process, out.steady = s.lineage, c.limiter.process, s.when.Steady
	case undoAsked:
		at, subject = s.from.find(s.hi)
		out.lineage, out.process, out.steady = s.from.lineages[subject], s.from.process, s.from.steady
	}
	first := 0 // of its limits in the answer, which has no blocks any more
	for _, h := range c.answer.scratch.match.Hits[:i] {
		first += len(h.Limits)
	}
	for j := range c.answer.scratch.match.Hits[i].Limits {
		window := takenAt(&c.answer.scratch.ops[first+j], s.when).Window
		if s.undo == undoAsked {
			window = s.from.windows[at+j]
		}
		r.reserve(&out, c.answer, first+j, window)
	}
	return out
}

// name says what the subjects of rules with `usage: monthly` are called, since the node that settles may never have heard
// of them.
func (r *reservation) name(q *Query, a *Answer) {
	total := 0
	for i := range r.subjects {
		h := &a.scratch.match.Hits[i]
		if !h.Rule.Monthly {
			continue
		}
		key := keyText(h.Rule, q)
		size := len(h.Rule.Name)
		for _, value := range key {
			size += len(value)
		}
		if total+size <= maxNames {
			total += size
			r.subjects[i].lo, r.subjects[i].rule, r.subjects[i].key = h.Subject.Lo, h.Rule.Name, key
		}
	}
}

// reserve adds the cost of a's i-th limit to s. A shadow limit that refused took nothing and owes nothing.
func (r *reservation) reserve(s *reserved, a *Answer, i int, window int64) {
	op := &a.scratch.ops[i]
	if !op.Decision.Allowed {
		return
	}
	unit := slices.Index(r.units, a.Limits[i].Limit.Unit)
	if unit < 0 {
		unit = len(r.units)
		r.units = append(r.units, a.Limits[i].Limit.Unit)
	}
	cost := reservedCost{lo: op.Key.Lo, limit: op.Limit, unit: unit, cost: op.Cost, when: window}
	if lasts(op) {
		cost.when = int64(op.Decision.ResetAfter)
	}
	s.costs = append(s.costs, cost)
}

// lasts reports whether what op took is in its counter for a time, rather than for windows.
func lasts(op *counters.Op) bool { return !op.Limit.Kind.Windowed() }
