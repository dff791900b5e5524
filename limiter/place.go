package limiter

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
)

// When a reservation is made, its home adds a place for it to the home's notes,
// under the lock that a settlement takes. So a settlement never lacks room, and
// a missing place means, in the same lineage, that the reservation is over.

// ErrTooManyReservations means that the subject's owner keeps too many
// reservations: in all, or of this rule or subject. Nothing was taken.
var ErrTooManyReservations = errors.New("too many reservations of this rule or subject are open at its owner; settle some, or let them expire")

// placeRequest asks for the place of a reservation that is being decided.
type placeRequest struct {
	id     uint64        // identifies the reservation among those of its home; not 0
	home   uint64        // Key.Subject of the subject whose owner keeps the place
	group  uint32        // identifies the home's rule or namespace; see groupOf
	inline bool          // the home came with its limits
	ttl    time.Duration // how long the reservation may stay open
	made   bool          // the home's owner has made the place
}

// newPlaceRequest returns the request for the place of q's reservation, or nil
// if q needs no counters. a must be prepared for q. The home is the first
// subject that has an owner or, if none has, the first subject.
func (a *Answer) newPlaceRequest(q *Query, ttl time.Duration) *placeRequest {
	hits := a.scratch.match.Hits
	if len(hits) == 0 || len(a.scratch.ops) == 0 {
		return nil
	}

	i := max(a.homeHitIndex(), 0)
	h := &hits[i]
	return &placeRequest{
		id: rand.Uint64() | 1, home: h.Subject.Hi, group: groupOf(q, i, h), inline: h.Rule.Inline, ttl: ttl,
	}
}

// code writes or reads what an owner must know of pl.
func (pl *placeRequest) code(c *wire.Coder) {
	wire.Fixed(c, &pl.id)
	wire.Fixed(c, &pl.home)
	wire.Number(c, &pl.group, math.MaxUint32)
	c.Bool(&pl.inline)
	c.Millis(&pl.ttl, MaxReservationTime)
	c.Require(pl.id != 0)
}

// placeKey returns the key of a reservation's place with a subject.
func placeKey(subject, id uint64) notes.Key {
	return notes.Key{Subject: subject, ID: id, Kind: notes.Reservation}
}

// placeAt returns pl's place with a subject at now.
func (pl *placeRequest) placeAt(subject uint64, now algorithms.Instant) *counters.Place {
	second := (now.Steady+int64(pl.ttl+settlementMemory))/1e9 + 1
	return &counters.Place{
		Key: placeKey(subject, pl.id), Group: pl.group, Inline: pl.inline,
		OpenFor: pl.ttl, Until: second + notes.LateSettling, SettledUntil: second,
	}
}

// recordIn records the reservation in table before ops are taken from it: the rates
// of the buckets of ops and, if ops include the home, the place. The error is
// ErrTooManyReservations, after which nothing is noted, or counters.ErrShut.
func (pl *placeRequest) recordIn(table *counters.Table, now algorithms.Instant, ops []counters.Op) error {
	for so := range bySubject(ops) {
		place := pl.placeAt(so.subject(), now)
		err := table.NoteReservation(now, place, so.subject() == pl.home, so.ops)
		if errors.Is(err, notes.ErrReservations) {
			pl.forgetIn(table, now, ops[:so.first])
			return ErrTooManyReservations
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forgetIn undoes recordIn after nothing of ops was taken. now must be recordIn's:
// the table recognizes what recordIn noted by its time.
func (pl *placeRequest) forgetIn(table *counters.Table, now algorithms.Instant, ops []counters.Op) {
	for so := range bySubject(ops) {
		table.ForgetReservation(now, placeKey(so.subject(), pl.id), so.subject() == pl.home, so.ops)
	}
}

// groupOf returns the group of q's i-th hit: its rule or, if its limits came
// with the call, its namespace. Room for reservations and answers is shared
// fairly among groups.
func groupOf(q *Query, i int, h *rules.Hit) uint32 {
	name := h.Rule.Name
	if h.Rule.Inline && i < len(q.Subjects) {
		name = q.Subjects[i].Namespace
	}
	return groupOfRule(name, h.Rule.Inline)
}

// groupOfRule returns the group of a rule or a namespace.
func groupOfRule(name string, inline bool) uint32 {
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%t %s", inline, name)
	return hash.Sum32()
}

// recordPlace records the check's reservation, if it has one, in this node's
// table, before ops are taken. Ops of one subject must be neighbours. If there
// is no room, the check fails, and recordPlace returns false.
func (c *clusterCheck) recordPlace(ops []counters.Op) bool {
	place := c.answer.scratch.place
	if place == nil {
		return true
	}
	err := place.recordIn(c.limiter.table, c.now, ops)
	if errors.Is(err, ErrTooManyReservations) {
		c.failWith(err)
		return false
	}
	return true // a gate that has shut in the meantime makes the Take fail, too
}

// recordFallbackPlace is recordPlace for a subject of a `consistency: local`
// rule, whose counters and place are in the fallback table.
func (c *clusterCheck) recordFallbackPlace(s *subject, ops []counters.Op) bool {
	place := c.answer.scratch.place
	if place == nil {
		return true
	}
	table := c.limiter.cluster.Fallback
	if table.NoteReservation(c.now, place.placeAt(s.keySubject, c.now), true, ops) == nil {
		return true
	}
	c.failWith(ErrTooManyReservations)
	return false
}

// forgetFallbackPlaces undoes recordFallbackPlace for the listed subjects, from
// which nothing was taken. Only subjects decided ByOwner have such places.
func (c *clusterCheck) forgetFallbackPlaces(list []int, by DecidedBy) {
	place := c.answer.scratch.place
	if place == nil || by != ByOwner {
		return
	}

	for _, i := range list {
		s := &c.subjects[i]
		// The fallback table has no gate that could be shut.
		_ = c.limiter.cluster.Fallback.ForgetReservation(c.now, placeKey(s.keySubject, place.id), true, c.ops(s))
	}
}

// keepOrForgetPlace ends what recordPlace began, once the counters here have
// decided ops, those of the listed subjects. If the ops were admitted, it
// records that the place was made. Otherwise it undoes recordPlace.
func (c *clusterCheck) keepOrForgetPlace(list []int, ops []counters.Op, admitted bool) {
	place := c.answer.scratch.place
	if place == nil {
		return
	}
	if !admitted {
		place.forgetIn(c.limiter.table, c.now, ops)
		return
	}
	for _, i := range list {
		place.made = place.made || c.subjects[i].keySubject == place.home
	}
}

// takeBackPlace returns the ID of the place that was made at s, so that a
// refund can drop it; 0 if none was made there.
func (c *clusterCheck) takeBackPlace(s *subject) uint64 {
	place := c.answer.scratch.place
	if place == nil || !place.made || place.home != s.keySubject {
		return 0
	}
	place.made = false
	return place.id
}
