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

// reservations makes and settles reservations on this node, and counts both.
type reservations struct {
	limiter           *Limiter
	processKey        [32]byte     // signs ids while this node knows no cluster secret
	reserved          atomic.Int64 // made here
	settled, repeated atomic.Int64 // settlements decided here, as the owner of the home
	expired           atomic.Int64 // ends carried out here, as the owner of the home
	unscheduled       atomic.Int64 // ends that will not be carried out, because their home could not be reached
	unknown           atomic.Int64 // settlements whose id is not, or no longer, a reservation's
	dropped           atomic.Int64 // refunds of reservations, one per limit, that were lost
}

// Reserve decides q as Check does, with costs that are an estimate. If q is
// allowed, any node can [Limiter.Settle] the returned id with the real costs,
// within ttl (at most MaxReservationTime). q.OnExpiry says what happens after
// that. If q is refused, id is empty. Reserve asks the owners even if this node
// holds leases.
//
// With a RequestID, q is decided once within a minute, unless this node can't
// reach the owner of q's first subject that has an owner.
//
// If q has limits of slots, the reservation holds a slot until it is settled.
// [Limiter.SlotOf] returns the slot. A repetition of q renews the slot. If the
// slot is over by then, the error wraps ErrUnknownSlot, or ErrTryAgain if no
// node can tell.
//
// The error may also wrap one of Check's errors, ErrOnExpiry, ErrTooManyLimits,
// ErrTooManyReservations, ErrTooManySlots, ErrRequestIDReused, or ErrNoOwner:
// an owner decided q but could not keep the answer, so nothing is reserved.
func (l *Limiter) Reserve(q *Query, ttl time.Duration, a *Answer) (id string, err error) {
	restore := a.addOptions(func(o *options) { o.takesSlots = true })
	defer restore()
	return l.reserve(q, ttl, a)
}

// reserve implements Reserve. With a zero ttl, q is a check in count mode, and
// the id only serves to take the check back.
func (l *Limiter) reserve(q *Query, ttl time.Duration, a *Answer) (id string, err error) {
	done, err := l.prepare(l.clock.Now(), q, a)
	if err != nil {
		return "", err
	}
	if len(a.scratch.ops) > MaxReserved {
		return "", fmt.Errorf("%w: the check has %d, counting blocks; at most %d are allowed",
			ErrTooManyLimits, len(a.scratch.ops), MaxReserved)
	}

	if !done || len(a.Unlimited()) > 0 {
		if err := a.validateOnExpiry(q); err != nil {
			return "", err
		}
	}

	_, owned := a.homeSubject()
	if q.RequestID == "" || done || !owned { // without an owner, nobody keeps the answer
		return l.reservations.makeReservation(q, ttl, a, done)
	}
	return l.reservations.reserveOnce(q, ttl, a)
}

// makeReservation decides q, a reservation or a check in count mode, for which a
// is prepared. done means that prepare has already decided q.
func (rs *reservations) makeReservation(
	q *Query, ttl time.Duration, a *Answer, done bool,
) (id string, err error) {
	restore := a.addOptions(func(o *options) { o.bypassLeases = true })
	defer restore()
	defer func() { a.scratch.place = nil }()

	decide := func() error {
		// Each try makes a place of its own. The place of an earlier try is given
		// back with its cost.
		if ttl > 0 {
			a.scratch.place = a.newPlaceRequest(q, ttl)
		}

		if rs.limiter.cluster == nil {
			return rs.decideStandalone(q, a)
		}
		return rs.limiter.decidePrepared(q, a)
	}

	var acq *acquisition
	if !done {
		if hasSlots(a.scratch.ops) {
			acq = a.newAcquisition(q)
		}
		err = rs.limiter.decideAcquisition(q, a, acq, decide)
	}
	if err != nil {
		return "", err
	}

	rs.limiter.account(q, a)
	if !a.Allowed && !a.Counted {
		return "", nil
	}

	key, _ := rs.signingKey("reservation")
	rv := rs.reservationOf(q, a, ttl)
	if acq != nil {
		rv.slot = acq.slot(rs.limiter, a)
	}

	id = rv.id(key)
	if ttl == 0 {
		return id, nil
	}

	// A check that took nothing made no place. It is settled only for the bill, but
	// a late settlement needs a place; scheduleExpiry makes one.
	if len(rv.units) > 0 && (q.OnExpiry != nil || rv.tookNothing()) {
		if err := rs.scheduleExpiry(id); err != nil {
			return "", err
		}
	}

	rs.reserved.Add(1)
	return id, nil
}

// decideStandalone is Limiter.decidePrepared for makeReservation without a
// cluster: one Take decides every check.
func (rs *reservations) decideStandalone(q *Query, a *Answer) error {
	l := rs.limiter
	place := a.scratch.place
	now := a.Now // tryDecide may move a.Now
	a.readLives(l)
	if place != nil {
		if err := place.recordIn(l.table, now, a.scratch.ops); err != nil {
			return err
		}
	}

	l.tryDecide(q, a)
	if place != nil {
		place.made = a.Allowed || a.Counted
		if !place.made {
			place.forgetIn(l.table, now, a.scratch.ops)
		}
	}
	return nil
}

// reservationOf returns the reservation for what a's check took.
func (rs *reservations) reservationOf(q *Query, a *Answer, ttl time.Duration) *reservation {
	rv := &reservation{madeAt: a.Now.Wall, onExpiry: q.OnExpiry}
	_, _ = rand.Read(rv.nonce[:]) // never fails

	// An id without a ttl is only for cancelReservation, within the same call.
	rv.until = rv.madeAt + int64(min(cmp.Or(ttl, checkTimeout), MaxReservationTime))
	place := a.scratch.place
	if place != nil {
		binary.LittleEndian.PutUint64(rv.nonce[:], place.id)
		rv.group = place.group
		rv.inline = place.inline
		rv.hasPlace = place.made
	}

	// Nothing was taken. The reservation can still be settled, at any home.
	if len(a.scratch.ops)+len(a.Unlimited()) == 0 || a.DecidedBy >= ByList {
		rv.subjects = []reservedSubject{{takenCosts: takenCosts{subject: binary.LittleEndian.Uint64(rv.nonce[:])}}}
		return rv
	}

	nameBytes := 0
	firstOp := 0 // index in a.scratch.ops, which has no blocks any more
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		n := len(h.Limits)
		reserved := reservedSubject{takenCosts: rs.takenCostsOf(a, i, a.scratch.ops[firstOp:firstOp+n])}
		for j, limit := range h.Limits {
			switch {
			case isReservable(&a.scratch.ops[firstOp+j], limit):
				reserved.units = append(reserved.units, rv.unitIndex(limit.Unit))
			case limit.RefusesAll():
				rv.addBilledOnly(&reserved, h.Rule, limit.Unit, a.Limits[firstOp+j].Cost)
			}
		}
		nameBytes += rs.nameForBill(&reserved, h, q, nameBytes)
		rv.subjects = append(rv.subjects, reserved)
		firstOp += n
	}

	// The costs are added before the home moves to the front: until then,
	// subjects and hits have the same indexes.
	rs.addUnlimited(rv, q, a, nameBytes)

	home := rv.homeIndex(place)
	rv.subjects[0], rv.subjects[home] = rv.subjects[home], rv.subjects[0]
	return rv
}

// addUnlimited adds a's costs in units without limit, so that their bill can be
// settled.
func (rs *reservations) addUnlimited(rv *reservation, q *Query, a *Answer, nameBytes int) {
	for i := range a.Unlimited() {
		h := &a.Unlimited()[i]
		at := slices.IndexFunc(a.scratch.match.Hits,
			func(other rules.Hit) bool { return other.Rule == h.Rule && other.Subject == h.Subject })
		if at < 0 {
			at = len(rv.subjects)
			reserved := reservedSubject{takenCosts: takenCosts{subject: h.Subject.Hi}}
			nameBytes += rs.nameForBill(&reserved, h, q, nameBytes)
			rv.subjects = append(rv.subjects, reserved)
		}

		for _, cost := range a.uncountedCosts(q, h) {
			rv.addBilledOnly(&rv.subjects[at], h.Rule, cost.Unit, cost.Cost)
		}
	}
}

// tookNothing reports whether no counter was taken from.
func (rv *reservation) tookNothing() bool {
	return !slices.ContainsFunc(rv.subjects, func(reserved reservedSubject) bool { return len(reserved.ops) > 0 })
}

// addBilledOnly adds to reserved, a subject of the reservation, a cost in a
// unit that no counter counts.
func (rv *reservation) addBilledOnly(reserved *reservedSubject, rule *rules.Rule, unit string, cost int64) {
	index := rv.unitIndex(unit)
	if rule.Bills(unit) {
		reserved.billedOnly = append(reserved.billedOnly, reservedCost{index, cost})
	}
}

// nameForBill adds the name of h's subject to reserved, for its bill: the node
// that settles may not know the name. It returns the size of the name; taken is
// the size of the other subjects' names. It adds nothing if all names would
// exceed maxNameBytes, or if the subject has no bill.
func (rs *reservations) nameForBill(reserved *reservedSubject, h *rules.Hit, q *Query, taken int) int {
	if rs.limiter.meter == nil || !h.Rule.CountsMonthly {
		return 0
	}
	key := billingKey(h, q)
	size := len(h.Rule.Name) + len(strings.Join(key, ""))
	if taken+size > maxNameBytes {
		return 0
	}
	reserved.hashLo = h.Subject.Lo
	reserved.rule = h.Rule.Name
	reserved.key = key
	return size
}

// unitIndex returns the index of a unit in rv.units, and adds it if need be.
func (rv *reservation) unitIndex(unit string) int {
	i := slices.Index(rv.units, unit)
	if i < 0 {
		i = len(rv.units)
		rv.units = append(rv.units, unit)
	}
	return i
}

// homeIndex returns the index of the home among the reservation's subjects. The
// home is the subject whose owner made the place. Without a place, it is the
// first subject with a lineage: cost comes back, at the home and elsewhere,
// only if the home has a lineage.
func (rv *reservation) homeIndex(place *placeRequest) int {
	i := slices.IndexFunc(rv.subjects, func(reserved reservedSubject) bool {
		if rv.hasPlace {
			return reserved.subject == place.home
		}
		return reserved.life.Lineage != 0 && reserved.life.Lineage != localLineage
	})
	return max(i, 0)
}

// takenCostsOf returns what ops, those of the i-th hit of a's check, took. A
// shadow limit that refused took nothing and owes nothing.
func (rs *reservations) takenCostsOf(a *Answer, i int, ops []counters.Op) takenCosts {
	h := &a.scratch.match.Hits[i]
	taken, via := rs.originOf(a, i)
	firstOp := 0 // index in the ops of the question
	if via != nil {
		firstOp, _ = findSubject(via.question.ops, taken.subject)
	}

	for j := range ops {
		op := &ops[j]
		if !isReservable(op, h.Limits[j]) {
			continue
		}

		// The cost was taken by this node's share, and comes back by that share.
		if taken.life.Lineage == localLineage {
			op = a.scratch.clusterCheck.fallbackOp(i, j)
		}

		var mark algorithms.TakeMark
		if via != nil {
			mark = via.marks[firstOp+j]
		} else {
			mark = markOf(op, algorithms.Instant{Steady: taken.steady})
		}

		taken.ops = append(taken.ops, counters.Op{Key: op.Key, Limit: op.Limit, Cost: op.Cost})
		taken.marks = append(taken.marks, mark)
	}

	return taken
}

// originOf returns where and when the i-th hit of a's check was decided, as
// takenCosts without ops. If another node has answered, via has its answer.
func (rs *reservations) originOf(a *Answer, i int) (origin takenCosts, via *pendingAsk) {
	h := &a.scratch.match.Hits[i]
	origin.subject = h.Subject.Hi

	if rs.limiter.cluster == nil {
		origin.life = a.scratch.lives[i]
		origin.boot = rs.limiter.boot
		origin.steady = a.Now.Steady
		return origin, nil
	}

	// A decision by a standby, or by this node alone, gets no life: its cost does
	// not come back.
	decision := &a.scratch.clusterCheck.subjects[i].subjectDecision
	switch {
	case h.Rule.Consistency == rules.Local:
		origin.life = counters.Life{Lineage: localLineage, Resets: decision.life.Resets}
		origin.boot = rs.limiter.boot
		origin.steady = decision.decidedAt.Steady
	case decision.undo == undoHere:
		origin.life = decision.life
		origin.boot = rs.limiter.boot
		origin.steady = decision.decidedAt.Steady
	case decision.undo == undoAsked:
		via = decision.answeredBy
		_, index := findSubject(via.question.ops, origin.subject)
		origin.life = via.lives[index]
		origin.boot = via.boot
		origin.steady = via.steady
	}

	return origin, via
}

// isReservable reports whether op took its cost, which may be 0, from the
// counter of a limit. A limit of 0 has no counter.
func isReservable(op *counters.Op, limit *rules.Limit) bool {
	if limit.RefusesAll() || limit.Kind == algorithms.Concurrency {
		return false // slots are released, not settled
	}
	return op.Decision.Allowed && op.Mode != counters.PeekMode || op.Took()
}
