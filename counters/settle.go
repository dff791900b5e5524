package counters

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// SettlePlan is a change of several counters of one subject that is made at
// most once: the place records that it was made. What a plan may do depends on
// the reservation's time:
//
//	made          end                    forgotten
//	 ├─── open ────┼──────── late ────────┼─── too late ──►
//
// While the reservation is open, a settlement is in time. If nobody has settled
// it by its end, a plan of its own carries out the end. A late settlement is
// still possible, before or after that plan, but only while the place is there.
// When it is too late, a settlement can only repeat what an earlier one answered.
type SettlePlan struct {
	Place Place
	// HadPlace means that the place was made with the reservation, on this node or
	// elsewhere. It matters if there is no place now:
	//
	//	place found                     the place says what was done
	//	had a place, same lineage       the reservation is over
	//	had a place, other lineage      the place was lost with its node: it is made
	//	                                anew, even beyond the bound
	//	never had one                   a place is made if there is room
	//
	// No place is made for a late settlement or an end.
	HadPlace bool
	Late     bool // the settlement is late; Settle also sets it if it finds so
	TooLate  bool // the time for late settlements is over
	// CarriesOutEnd means that the plan carries out the end, before which Settle
	// does nothing.
	CarriesOutEnd bool
	Changes       []SettledCost
	// Life is of the counters that the costs to put back were taken from. If the
	// home has another lineage by now, it may have forgotten an earlier settlement,
	// so nothing is given back.
	Life Life
	// Answer returns what to keep with the place.
	Answer func(plan *SettlePlan) []byte

	SettleResult // set by Settle
}

// SettleOutcome says whether the changes of a settlement are made.
type SettleOutcome uint8

const (
	NotMade    SettleOutcome = iota // it is too late for them, or too early for the end of the reservation
	Made                            // Settle made them
	MadeBefore                      // they had been made before: Settle only read what was kept
)

// SettleResult is what Settle found and did.
type SettleResult struct {
	// Kept is what Answer returned when the settlement was made, if it was made
	// earlier. It is empty if that has been forgotten.
	Kept     []byte
	HadEnded bool // the end had been carried out before; not set by a repetition
	IsFinal  bool // the reservation is settled; if false, only its end was carried out
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

// Settle makes the changes of a settlement, unless they have been made before.
// If it fails with ErrShut or notes.ErrReservations, nothing changes. It holds
// the shard of all the counters throughout. The order of its steps matters:
//
//  1. look at the gate;
//  2. find the place, or make sure that there is room for one;
//  3. if the place says that the changes are made, only read what was kept.
//     This comes before any look at the time: a repetition is never too late;
//  4. make the changes;
//  5. store the place, with the answer that says what the changes have left.
func (t *Table) Settle(now algorithms.Instant, plan *SettlePlan) (SettleOutcome, error) {
	home := Key{Subject: plan.Place.Key.Subject}
	s, now := t.lock(now, home)
	defer s.mu.Unlock()
	if t.gates.isShut(home.Partition()) {
		return NotMade, ErrShut
	}

	plan.SameLineage = plan.Life.Lineage != 0 && t.Lineage(home.Partition()) == plan.Life.Lineage
	place, tooLate, err := t.findOrMakePlace(now, plan)
	if err != nil {
		return NotMade, err
	}

	isSettled := place.Status() == notes.Settled
	hadEnded := place.Status() == notes.Ended
	alreadyMade := isSettled || plan.CarriesOutEnd && hadEnded
	if alreadyMade {
		plan.Kept = []byte(place.Body)
		plan.Late = place.WasLate()
		plan.IsFinal = isSettled
		return MadeBefore, nil
	}

	notDue := plan.CarriesOutEnd && !place.IsDue(now.Steady)
	if tooLate || notDue {
		return NotMade, nil
	}

	plan.HadEnded = hadEnded

	// An end is never late. A settlement is, once the end is due or carried out.
	plan.Late = plan.Late || plan.HadEnded || !plan.CarriesOutEnd && place.IsDue(now.Steady)

	t.makeRoomForChanges(s, now, plan)
	for i := range plan.Changes {
		// A change that can't be made must not stop the others: the place is settled
		// only once.
		if err := t.settleCost(s, now, &plan.Changes[i], plan); err != nil {
			plan.Dropped++
		}
	}

	plan.Tightest = t.tightestRemaining(s, now, plan.Changes)
	plan.IsFinal = !plan.CarriesOutEnd
	t.storePlace(now, plan, place)
	return Made, nil
}

// storePlace records in place that the changes of plan are made.
func (t *Table) storePlace(now algorithms.Instant, plan *SettlePlan, place notes.Note) {
	status := uint64(notes.Ended)
	if plan.IsFinal {
		status = notes.Settled
		place.UntilSecond = plan.Place.SettledUntil
	}

	place.SetOver(status, plan.Late)
	place.At = now.Steady

	// A repetition gets this answer, even from the partition's next owner.
	place.Body = string(plan.Answer(plan))
	lp := t.notes.Lock(place.Key.Partition(), now.Steady)
	lp.Put(&place)
	lp.Unlock()
}

// findOrMakePlace returns the settlement's place. If there is none, it makes
// one, unless it is too late: because it had a place in this lineage, or
// because plan is TooLate, Late or CarriesOutEnd.
func (t *Table) findOrMakePlace(
	now algorithms.Instant, plan *SettlePlan,
) (place notes.Note, tooLate bool, err error) {
	lp := t.notes.Lock(plan.Place.Key.Partition(), now.Steady)
	defer lp.Unlock()
	place, found := lp.Get(plan.Place.Key)
	if found {
		return place, plan.TooLate, nil
	}
	if plan.TooLate || plan.Late || plan.CarriesOutEnd || plan.HadPlace && plan.SameLineage {
		return place, true, nil
	}

	// storePlace stores the place, even beyond the bound. A reservation made
	// without one must have room. PutIfRoom tells now, before anything changes.
	place = plan.Place.note(now)
	if !plan.HadPlace {
		err = lp.PutIfRoom(place)
	}
	return place, false, err
}

// makeRoomForChanges makes room for the counters that plan adds, without
// evicting any that it changes. If there is no room, settleCost fails and the
// cost is dropped. The counter of such a cost was evicted before, with all that
// had been taken from it.
func (t *Table) makeRoomForChanges(s *shard, now algorithms.Instant, plan *SettlePlan) {
	var added []Op
	spared := make([]Op, len(plan.Changes))
	for i := range plan.Changes {
		cost := &plan.Changes[i]
		spared[i].Key = cost.Key
		if cost.delta(plan.HadEnded) > 0 {
			added = append(added, spared[i])
		}
	}
	t.makeRoomFor(s, now, added, spared)
}

// settleCost makes one change of a settlement. It fails with ErrGone or ErrNoRoom.
func (t *Table) settleCost(s *shard, now algorithms.Instant, cost *SettledCost, plan *SettlePlan) error {
	taken := cost.From
	taken.Late = plan.Late
	change := cost.delta(plan.HadEnded)
	switch {
	case change < 0:
		return t.giveBackLocked(s, now, cost.Key, cost.Limit, taken, -change, plan.Life)
	case change == 0:
		return nil
	case !plan.Late:
		return t.changeLocked(s, now, cost.Key, cost.Limit, debitEdit(cost.Limit, change, taken.MaxRate == 0))
	}
	return t.debitLateLocked(s, now, cost.Key, cost.Limit, taken, change, plan.Life)
}

// tightestRemaining returns what remains of the limit with the least left in
// proportion to its capacity, among those with InTightest, or −1 if there is
// none.
func (t *Table) tightestRemaining(s *shard, now algorithms.Instant, changes []SettledCost) int64 {
	least, leastCapacity := int64(-1), int64(1)
	for i := range changes {
		cost := &changes[i]
		if !cost.InTightest {
			continue
		}

		d := t.usageLocked(s, now, cost.Key, cost.Limit)
		capacity := cost.Limit.Capacity()
		if least < 0 || algorithms.IsSmallerFraction(d.Remaining, capacity, least, leastCapacity) {
			least, leastCapacity = d.Remaining, capacity
		}
	}

	return least
}
