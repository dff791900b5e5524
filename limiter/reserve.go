package limiter

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// reservations makes and settles reservations on this node. Its counts start with the process.
type reservations struct {
	limiter           *Limiter
	processKey        [32]byte     // signs ids while this node knows no cluster secret
	reserved          atomic.Int64 // made here
	settled, repeated atomic.Int64 // settlements decided here, as the owner of the home
	expired           atomic.Int64 // ends carried out here, as the owner of the home
	unarranged        atomic.Int64 // ends that will not be carried out, because their home could not be reached
	unknown           atomic.Int64 // settlements whose id is not, or no longer, a reservation's
	dropped           atomic.Int64 // refunds, one per limit, lost because the counters they came from are gone
}

// Reserve decides q as Check does, with costs that are an estimate. If q is
// allowed, any node can [Limiter.Settle] the returned id with the real costs,
// within ttl (at most MaxReservationTime). What happens after that, q.OnExpiry
// says. Reserve asks the owners even if this node holds leases. With a
// RequestID, q is decided once within a minute, unless this node can't reach
// the owner of the first subject that has one. The error wraps ErrUnknownRule,
// ErrKey, ErrOnExpiry, ErrTooManyLimits, ErrTooManyReservations,
// ErrRequestIDReused, or ErrNoOwner: the owner decided but could not keep the
// answer, so nothing is reserved.
//
// If limits of slots are among q's, [Limiter.SlotOf] returns the slot that it
// holds, until it is settled.
func (l *Limiter) Reserve(q *Query, ttl time.Duration, a *Answer) (id string, err error) {
	a.scratch.mayHold = true
	defer func() { a.scratch.mayHold = false }()
	return l.reserve(q, ttl, a)
}

// reserve implements Reserve. With a zero ttl, it makes a check that can be taken back by its id.
func (l *Limiter) reserve(q *Query, ttl time.Duration, a *Answer) (id string, err error) {
	done, err := l.prepare(l.clock.Now(), q, a)
	if err != nil {
		return "", err
	}
	if len(a.scratch.ops) > MaxReserved {
		return "", fmt.Errorf("reserve: %w: the check has %d; at most %d are allowed",
			ErrTooManyLimits, len(a.scratch.ops), MaxReserved)
	}

	if !done || len(a.Unlimited()) > 0 {
		if err := a.validateOnExpiry(q); err != nil {
			return "", err
		}
	}

	_, owned := a.homeSubject()
	if q.RequestID == "" || done || !owned { // without an owner, nobody keeps the answer
		return l.reservations.decide(q, ttl, a, done)
	}
	return l.reservations.decideOnce(q, ttl, a)
}

// decide decides q, a reservation or a check that counts, for which a is
// prepared. done means that prepare has already decided it.
func (rs *reservations) decide(q *Query, ttl time.Duration, a *Answer, done bool) (id string, err error) {
	a.scratch.reserving = true
	defer func() { a.scratch.reserving, a.scratch.placing = false, nil }()

	resolve := func() error {
		// Each try has a place of its own: what an earlier one left behind is given
		// back with its cost.
		if ttl > 0 {
			a.scratch.placing = a.newPlacing(q, ttl)
		}

		if rs.limiter.membership == nil {
			return rs.decideStandalone(q, a)
		}
		return rs.limiter.resolve(q, a)
	}

	var held *holding
	if !done {
		if hasSlots(a.scratch.ops) {
			held = a.newHolding(q)
		}
		err = rs.limiter.resolveHolding(q, a, held, resolve)
	}
	if err != nil {
		return "", err
	}

	rs.limiter.count(q, a)
	if !a.Allowed && !a.Counted {
		return "", nil
	}

	key, _ := rs.signingKey("reservation")
	r := rs.reservationOf(q, a, ttl)
	if held != nil {
		r.slot = held.slot(rs.limiter, a)
	}

	id = r.id(key)
	if ttl == 0 {
		return id, nil
	}

	if len(r.units) > 0 && (q.OnExpiry != nil || r.needsPlaceToBeLate()) {
		if err := rs.arrangeExpiry(id); err != nil {
			return "", err
		}
	}

	rs.reserved.Add(1)
	return id, nil
}

// decideStandalone is decide for a limiter without a cluster, which decides
// every check in one Take.
func (rs *reservations) decideStandalone(q *Query, a *Answer) error {
	l, place := rs.limiter, a.scratch.placing
	now := a.Now // start may move a.Now
	a.readLives(l)
	if place != nil {
		if err := place.makeIn(l.table, now, a.scratch.ops); err != nil {
			return err
		}
	}

	l.start(q, a)
	if place != nil {
		place.made = a.Allowed || a.Counted
		if !place.made {
			place.unmakeIn(l.table, now, a.scratch.ops)
		}
	}
	return nil
}

// reservationOf returns the reservation for what a's check took.
func (rs *reservations) reservationOf(q *Query, a *Answer, ttl time.Duration) *reservation {
	r := &reservation{made: a.Now.Wall, onExpiry: q.OnExpiry}
	_, _ = rand.Read(r.nonce[:]) // never fails

	// Without a ttl, the id is only for annul, within the same call.
	r.until = r.made + int64(min(cmp.Or(ttl, checkTimeout), MaxReservationTime))
	place := a.scratch.placing
	if place != nil {
		binary.LittleEndian.PutUint64(r.nonce[:], place.id)
		r.group = place.group
		r.inline = place.inline
		r.hasPlace = place.made
	}
	// nothing was taken; it can still be settled, at an arbitrary home
	if len(a.scratch.ops)+len(a.Unlimited()) == 0 || a.DecidedBy >= ByList {
		r.subjects = []reservedSubject{{debit: debit{subject: binary.LittleEndian.Uint64(r.nonce[:])}}}
		return r
	}

	first, nameBytes := 0, 0 // positions in the answer, which no longer contains blocks
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		n := len(h.Limits)
		s := reservedSubject{debit: rs.debitOf(a, i, a.scratch.ops[first:first+n])}
		for j, limit := range h.Limits {
			switch {
			case isReservable(&a.scratch.ops[first+j], limit):
				s.units = append(s.units, r.unitIndex(limit.Unit))
			case limit.RefusesAll():
				r.addUncounted(&s, h.Rule, limit.Unit, a.Limits[first+j].Cost)
			}
		}
		nameBytes += rs.nameForBill(&s, h, q, nameBytes)
		r.subjects = append(r.subjects, s)
		first += n
	}

	// Before the home moves to the front: until then, subjects and hits have
	// the same indexes.
	rs.addUnlimited(r, q, a, nameBytes)

	home := r.homeIndex(place)
	r.subjects[0], r.subjects[home] = r.subjects[home], r.subjects[0]
	return r
}

// addUnlimited adds what a's check costs in units without limit, so that it can be settled, too.
func (rs *reservations) addUnlimited(r *reservation, q *Query, a *Answer, nameBytes int) {
	for i := range a.Unlimited() {
		h := &a.Unlimited()[i]
		at := slices.IndexFunc(a.scratch.match.Hits,
			func(other rules.Hit) bool { return other.Rule == h.Rule && other.Subject == h.Subject })
		if at < 0 {
			at = len(r.subjects)
			s := reservedSubject{debit: debit{subject: h.Subject.Hi}}
			nameBytes += rs.nameForBill(&s, h, q, nameBytes)
			r.subjects = append(r.subjects, s)
		}

		for _, c := range a.uncountedCosts(q, h) {
			r.addUncounted(&r.subjects[at], h.Rule, c.Unit, c.Cost)
		}
	}
}

// needsPlaceToBeLate reports whether only r's bill can be settled, and nobody
// has made a place for that. Without one, r could not be settled late.
func (r *reservation) needsPlaceToBeLate() bool {
	return !slices.ContainsFunc(r.subjects, func(s reservedSubject) bool { return len(s.ops) > 0 })
}

// addUncounted adds to s, a subject of r, a cost in a unit that no counter counts.
func (r *reservation) addUncounted(s *reservedSubject, rule *rules.Rule, unit string, cost int64) {
	index := r.unitIndex(unit)
	if rule.Bills(unit) {
		s.uncounted = append(s.uncounted, reservedCost{index, cost})
	}
}

// nameForBill adds to s, the subject of h, what its bill needs, because the
// node that settles may not know the subject. It returns how many bytes that
// are. taken is how many bytes the names of other subjects have.
func (rs *reservations) nameForBill(s *reservedSubject, h *rules.Hit, q *Query, taken int) int {
	if rs.limiter.meter == nil || !h.Rule.CountsMonthly {
		return 0
	}
	key := billingKey(h, q)
	size := len(h.Rule.Name) + len(strings.Join(key, ""))
	if taken+size > maxNameBytes {
		return 0
	}
	s.hashLo = h.Subject.Lo
	s.rule = h.Rule.Name
	s.key = key
	return size
}

// unitIndex returns the index of a unit in r.units, and adds it if need be.
func (r *reservation) unitIndex(unit string) int {
	i := slices.Index(r.units, unit)
	if i < 0 {
		i = len(r.units)
		r.units = append(r.units, unit)
	}
	return i
}

// homeIndex returns which of r's subjects is the home: the one whose owner made
// the place. If none did, it is the first one with a lineage, because only such
// a home can give cost back, here and elsewhere.
func (r *reservation) homeIndex(place *placing) int {
	i := slices.IndexFunc(r.subjects, func(s reservedSubject) bool {
		if r.hasPlace {
			return s.subject == place.home
		}
		return s.life.Lineage != 0 && s.life.Lineage != localLineage
	})
	return max(i, 0)
}

// debitOf returns what ops, those of the i-th hit of a's check, took. A shadow
// limit that refused took nothing and owes nothing.
func (rs *reservations) debitOf(a *Answer, i int, ops []counters.Op) debit {
	h := &a.scratch.match.Hits[i]
	d := debit{subject: h.Subject.Hi}
	var asked *ask
	first := 0 // position in the question
	if rs.limiter.membership == nil {
		d.life = a.scratch.lives[i]
		d.boot = rs.limiter.boot
		d.steady = a.Now.Steady
	} else {
		// What a standby or this node alone has decided gets no life, and so
		// does not come back.
		decision := &a.scratch.cluster.subjects[i].subjectDecision
		switch {
		case h.Rule.Consistency == rules.Local:
			d.life = counters.Life{Lineage: localLineage, Resets: decision.life.Resets}
			d.boot, d.steady = rs.limiter.boot, decision.decidedAt.Steady
		case decision.undo == undoHere:
			d.life = decision.life
			d.boot = rs.limiter.boot
			d.steady = decision.decidedAt.Steady
		case decision.undo == undoAsked:
			asked = decision.answeredBy
			at, index := findSubject(asked.q.ops, d.subject)
			first = at
			d.life = asked.lives[index]
			d.boot = asked.boot
			d.steady = asked.steady
		}
	}

	for j := range ops {
		op := &ops[j]
		if !isReservable(op, h.Limits[j]) {
			continue
		}
		when := int64(0)
		if asked != nil {
			when = asked.when[first+j]
		} else {
			when = takenWhen(op, algorithms.Instant{Steady: d.steady})
		}
		d.ops = append(d.ops, counters.Op{Key: op.Key, Limit: op.Limit, Cost: op.Cost})
		d.when = append(d.when, when)
	}
	return d
}

// isReservable reports whether op took its cost, or would have taken one, from
// the counter of a limit. A limit of 0 has none.
func isReservable(op *counters.Op, limit *rules.Limit) bool {
	if limit.RefusesAll() || limit.Kind == algorithms.Concurrency {
		return false // slots are released, not settled
	}
	return op.Decision.Allowed && op.Mode != counters.PeekMode || op.Took()
}
