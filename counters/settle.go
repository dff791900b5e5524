package counters

import (
	"math/bits"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// SettlePlan is a change of several counters of one subject that is made at
// most once: the place records that it was made.
type SettlePlan struct {
	Place Place
	// HadPlace says that the place was made with the reservation, on this node or
	// elsewhere. Suppose that it is missing. If the counters are still of the same
	// lineage, the reservation is over. If they are of another lineage, the place
	// was lost with its node. Settle then makes it anew, even beyond the bound,
	// unless the settlement is late or an end. Without HadPlace, Settle makes the
	// place only if there is room.
	HadPlace bool
	// Late says that the reservation's time is over, so the place must still be
	// there. Settle sets it if it finds that the settlement is late. TooLate says
	// that the time for late settlements is over, too: Settle then only looks for
	// an earlier change.
	Late, TooLate bool
	// CarriesOutEnd says that the plan carries out the end of a reservation that
	// nobody has settled. Settle does nothing before that end. Afterwards, the
	// reservation may still be settled late.
	CarriesOutEnd bool
	Changes       []SettledCost
	Life          Life // of the counters that the costs to put back were taken from
	// Answer returns what to keep with the place.
	Answer func(st *SettlePlan) []byte

	SettleResult // set by Settle
}

// SettleResult is what Settle found and did.
type SettleResult struct {
	// Kept is what Answer returned when the settlement was made, if it was made
	// earlier. It is empty if that has been forgotten.
	Kept []byte
	// HadEnded means that the end of the reservation had been carried out
	// before. A repetition does not set it.
	HadEnded bool
	// IsFinal means that the reservation is settled. If false, only its end was
	// carried out.
	IsFinal bool
	// SameLineage means that the counters are still of the lineage of Life.
	SameLineage bool
	// Dropped is how many costs were not put back, or found no room to be taken.
	Dropped int
	// Tightest is how many units remain of one limit after the change: of the
	// limits with InTightest, the one with the least left in proportion to its
	// capacity. It is −1 if there is none.
	Tightest int64
}

// SettledCost is what a reservation used of one counter.
type SettledCost struct {
	Key            Key
	Limit          *algorithms.Limit
	Reserved, Used int64
	// AtExpiry is what is charged once the end of the reservation has been carried
	// out, at most Reserved.
	AtExpiry   int64
	From       algorithms.TakeRecord // describes when Reserved was taken
	InTightest bool                  // takes part in Tightest
}

// delta returns Used minus what is charged so far: AtExpiry if the end of the
// reservation was carried out, else Reserved. If delta is negative, that much
// is given back.
func (cost *SettledCost) delta(expired bool) int64 {
	if expired {
		return cost.Used - cost.AtExpiry
	}
	return cost.Used - cost.Reserved
}

// Settle makes the changes of a settlement. done means that they are made.
// repeated means that they had been made before; Settle then only reads what
// was kept. Neither is true if they were never made and it is too late, or if
// it is too early for the end. If Settle fails with ErrShut or
// notes.ErrReservations, nothing changes.
func (t *Table) Settle(now algorithms.Instant, st *SettlePlan) (repeated, done bool, err error) {
	home := Key{Subject: st.Place.Key.Subject}
	sh, now := t.lock(now, home)
	defer sh.mu.Unlock()
	if t.gates.isShut(home.Partition()) {
		return false, false, ErrShut
	}

	st.SameLineage = st.Life.Lineage != 0 && t.Lineage(home.Partition()) == st.Life.Lineage
	place, err := t.findOrMakePlace(now, st)

	switch {
	case err != nil:
		return false, false, err

	// Repetitions are handled first: they get their answer even when it is too
	// late for a change.
	case place.Status() == notes.Settled, st.CarriesOutEnd && place.Status() == notes.Ended:
		st.Kept = []byte(place.Body)
		st.Late = place.WasLate()
		st.IsFinal = place.Status() == notes.Settled
		return true, true, nil
	case st.TooLate, st.CarriesOutEnd && !place.IsDue(now.Steady):
		return false, false, nil
	}

	st.HadEnded = place.Status() == notes.Ended

	// Carrying out the end is never late, whenever it happens.
	st.Late = st.Late || st.HadEnded || !st.CarriesOutEnd && place.IsDue(now.Steady)

	t.makeRoomForChanges(sh, now, st)
	for i := range st.Changes {
		// A change that can't be made must not stop the others: the place is settled
		// only once.
		if err := t.settleCost(sh, now, &st.Changes[i], st); err != nil {
			st.Dropped++
		}
	}

	st.Tightest = t.tightestRemaining(sh, now, st.Changes)

	status := uint64(notes.Ended)
	st.IsFinal = !st.CarriesOutEnd
	if st.IsFinal {
		status = notes.Settled
		place.Until = st.Place.SettledUntil
	}

	place.SetOver(status, st.Late)
	place.At = now.Steady

	// A repetition gets this answer, even from the partition's next owner.
	place.Body = string(st.Answer(st))
	lp := t.notes.Lock(home.Partition(), now.Steady)
	lp.Put(&place)
	lp.Unlock()
	return false, true, nil
}

// findOrMakePlace returns the settlement's place. If there is none, it makes
// one, or sets TooLate if the reservation must be over: because it had a place
// in this lineage, or because st is Late or CarriesOutEnd.
func (t *Table) findOrMakePlace(now algorithms.Instant, st *SettlePlan) (place notes.Note, err error) {
	lp := t.notes.Lock(st.Place.Key.Partition(), now.Steady)
	defer lp.Unlock()
	place, found := lp.Get(st.Place.Key)
	if found {
		return place, nil
	}
	if st.HadPlace && st.SameLineage || st.Late || st.CarriesOutEnd {
		st.TooLate = true
	}
	if st.TooLate {
		return place, nil
	}

	// A place that was made with the reservation had room. If it was lost, Settle
	// stores it again even beyond the bound.
	place = st.Place.note(now)
	if !st.HadPlace {
		err = lp.PutIfRoom(place)
	}
	return place, err
}

// makeRoomForChanges makes room for the counters that st adds, without evicting
// any that it changes. If there is no room, settleCost fails and the cost is
// dropped. The counter of such a cost was evicted before, with all that had
// been taken from it.
func (t *Table) makeRoomForChanges(sh *shard, now algorithms.Instant, st *SettlePlan) {
	var added []Op
	spared := make([]Op, len(st.Changes))
	for i := range st.Changes {
		cost := &st.Changes[i]
		spared[i].Key = cost.Key
		if cost.delta(st.HadEnded) > 0 {
			added = append(added, spared[i])
		}
	}
	t.makeRoomFor(sh, now, added, spared)
}

// settleCost makes one change of a settlement. It fails with ErrGone or ErrNoRoom.
func (t *Table) settleCost(sh *shard, now algorithms.Instant, cost *SettledCost, st *SettlePlan) error {
	from := cost.From
	from.Late = st.Late
	change := cost.delta(st.HadEnded)
	switch {
	case change < 0:
		return t.giveBackLocked(sh, now, cost.Key, cost.Limit, from, -change, st.Life)
	case change == 0:
		return nil
	case !st.Late:
		return t.changeLocked(sh, now, cost.Key, cost.Limit, forceDebit(cost.Limit, change, from.Fastest == 0))
	}
	return t.chargeLateLocked(sh, now, cost.Key, cost.Limit, from, change, st.Life)
}

// tightestRemaining returns what remains of the limit with the least left in
// proportion to its capacity, among those with InTightest, or −1 if there is
// none.
func (t *Table) tightestRemaining(sh *shard, now algorithms.Instant, changes []SettledCost) int64 {
	least, leastCapacity := int64(-1), int64(1)
	for i := range changes {
		cost := &changes[i]
		if !cost.InTightest {
			continue
		}

		d := t.usageLocked(sh, now, cost.Key, cost.Limit)

		// The products are compared in 128 bits: a division would round, and a product
		// of two amounts may overflow 64 bits.
		aHi, aLo := bits.Mul64(uint64(d.Remaining), uint64(leastCapacity))
		bHi, bLo := bits.Mul64(uint64(max(0, least)), uint64(cost.Limit.Capacity()))
		if least < 0 || aHi < bHi || aHi == bHi && aLo < bLo {
			least, leastCapacity = d.Remaining, cost.Limit.Capacity()
		}
	}

	return least
}
