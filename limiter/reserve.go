package limiter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/counters"
)

// reservations makes and settles reservations on this node. Its counters count since the process began.
type reservations struct {
	l                 *Limiter
	ownKey            [32]byte     // signs ids while no cluster secret is known
	reserved          atomic.Int64 // made here
	settled, repeated atomic.Int64 // settlements decided here, as the home
	unknown           atomic.Int64 // settlements whose id is not, or no longer, a reservation
	dropped           atomic.Int64 // refunds, by limit, that were lost because the counters they came from are gone
}

// Reserve decides q as Check does; the costs are an estimate. If q is allowed, any node can [Limiter.Settle] the returned id
// for ttl (at most MaxReservationTime) with the real costs. After that the reserved costs stay charged. Reserve asks the owners
// even if this node holds leases. With q.RequestID it is decided once within a minute, unless the owner of the first subject
// can't be reached. The error wraps ErrUnknownRule, ErrKey, ErrReservation, ErrRequestBody, or ErrNoOwner: the owner decided
// but could not keep the answer, so nothing is reserved.
func (l *Limiter) Reserve(q *Query, ttl time.Duration, a *Answer) (id string, err error) {
	over, err := l.prepare(l.clock.Now(), q, a)
	if err != nil {
		return "", err
	}
	if len(a.scratch.ops) > MaxReserved {
		return "", fmt.Errorf("reserve: %w", ErrReservation)
	}
	if q.RequestID == "" || over {
		return l.reservations.decide(q, ttl, a, over)
	}
	r := &reserveRequest{query: q, ttl: ttl}
	r.ticket = ticketOf(q.RequestID, r.body(), 0)
	until := time.Now().Add(checkTime - reserve)
	defer func() { a.scratch.until = time.Time{} }()
	for again := false; ; again = true {
		ctx, cancel := context.WithTimeout(context.Background(), max(min(homeTime, time.Until(until)), catchUpTime))
		a.scratch.until = until
		id, err = l.reservations.once(ctx, r, a)
		if cancel(); again || !errors.Is(err, ErrNoOwner) {
			return id, err
		}
		if over, err = l.prepare(l.clock.Now(), q, a); err != nil { // a may hold the attempt's answer
			return "", err
		}
		if id, err = l.reservations.decide(q, ttl, a, over); err != nil || over || a.DecidedBy < ByForward {
			return id, err
		}
		// Owners decided it after all: they had only just become reachable. None of them kept the answer, so decide it anew.
		if err = l.reservations.annul(id, q, a); err != nil {
			return "", err
		}
	}
}

// annul takes back what was reserved by an answer that the caller never gets, and prepares a for another attempt. Anything that
// can't be given back stays charged.
func (x *reservations) annul(id string, q *Query, a *Answer) error {
	if id != "" {
		_, _ = x.l.Settle(id, nil)
	}
	_, err := x.l.prepare(x.l.clock.Now(), q, a)
	return err
}

// reservationOf returns the reservation of what a took.
func (x *reservations) reservationOf(q *Query, a *Answer, ttl time.Duration) *reservation {
	r := &reservation{nonce: newNonce(), made: a.Now.Wall}
	r.until = r.made + int64(min(ttl, MaxReservationTime))
	if len(a.scratch.ops) == 0 || a.DecidedBy >= ByList { // nothing was taken; it can still be settled, at an arbitrary home
		r.subjects = []reserved{{debit: debit{hi: binary.LittleEndian.Uint64(r.nonce[:])}}}
		return r
	}
	first, names := 0, 0 // positions in the answer, which no longer contains blocks
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		n := len(h.Limits)
		how := ruling{undo: undoHere, when: a.Now, lineage: 1} // the ruling on a standalone node
		if x.l.member != nil {
			how = a.scratch.journey.subjects[i].ruling
		}
		s := reserved{debit: x.debitOf(h.Subject.Hi, &how, a.scratch.ops[first:first+n])}
		for j, limit := range h.Limits {
			if !a.scratch.ops[first+j].Decision.Allowed {
				continue
			}
			unit := slices.Index(r.units, limit.Unit)
			if unit < 0 {
				unit = len(r.units)
				r.units = append(r.units, limit.Unit)
			}
			s.units = append(s.units, unit)
		}
		if x.l.meter != nil && h.Rule.Monthly { // the settling node may not know the subject
			key := keyText(h.Rule, q)
			if size := len(h.Rule.Name) + len(strings.Join(key, "")); names+size <= maxNames {
				names += size
				s.lo, s.rule, s.key = h.Subject.Lo, h.Rule.Name, key
			}
		}
		r.subjects = append(r.subjects, s)
		first += n
	}
	return r
}

// debitOf returns what a subject's ops took, given how they were decided. A shadow limit that refused took nothing and owes
// nothing.
func (x *reservations) debitOf(hi uint64, how *ruling, ops []counters.Op) debit {
	d := debit{hi: hi}
	at, subject := 0, 0 // positions in the question
	switch how.undo {
	case undoHere:
		d.lineage, d.process, d.steady = how.lineage, x.l.process, how.when.Steady
	case undoAsked:
		at, subject = findSubject(how.from.q.ops, hi)
		d.lineage, d.process, d.steady = how.from.lineages[subject], how.from.process, how.from.steady
	}
	for j := range ops {
		op := &ops[j]
		if !op.Decision.Allowed {
			continue
		}
		when := int64(op.Decision.ResetAfter)
		switch {
		case !op.Limit.Kind.Windowed(): // drains over time rather than by windows
		case how.undo == undoAsked:
			when = how.from.windows[at+j]
		default:
			when = takenAt(op, how.when).Window
		}
		d.ops = append(d.ops, counters.Op{Key: op.Key, Limit: op.Limit, Cost: op.Cost})
		d.when = append(d.when, when)
	}
	return d
}
