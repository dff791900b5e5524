package counters

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// Place is the note of a reservation at its home. It is made together with the
// reservation, so that there is always room to settle it.
type Place struct {
	Key    notes.Key
	Group  uint32 // identifies the rule
	Inline bool
	// OpenFor is how long the reservation may be settled in time. After that, the
	// place is kept for late settlements until Until (Unix seconds on the steady
	// clock), unless others need the room. Once the reservation is settled, the
	// place is kept until SettledUntil.
	OpenFor             time.Duration
	Until, SettledUntil int64
}

// note returns the place as the note of an open reservation.
func (place *Place) note(now algorithms.Instant) notes.Note {
	return notes.Note{
		Key: place.Key, At: now.Steady, UntilSecond: place.Until, Group: place.Group, Inline: place.Inline,
		Rank: notes.Open, Minor: uint64(max(0, place.OpenFor)),
	}
}

// NoteReservation notes what the settlement of a reservation will need: the
// rates of its buckets and, at its home, its place. Call it before the
// reservation takes ops: the notes must have every rate since. All ops are of
// the place's subject. If NoteReservation fails with ErrShut or
// notes.ErrReservations, nothing changes.
func (t *Table) NoteReservation(now algorithms.Instant, place *Place, isHome bool, ops []Op) error {
	p := place.Key.Partition()
	lp := t.notes.Lock(p, now.Steady)
	defer lp.Unlock()

	// Shut also waits for the lock of the partition's notes. So code that holds it,
	// here and below, may read the gate without a shard.
	if t.gates.isShut(p) {
		return ErrShut
	}

	list := make([]notes.Note, 0, 4)
	if isHome {
		list = append(list, place.note(now))
	}

	for i := range ops {
		op := &ops[i]
		if !op.hasRate() {
			continue
		}

		rate := place.note(now)
		rate.Key = rateKey(op.Key)
		rate.SetPast(uint64(op.Limit.Amount), 0)

		// Other reservations need this note, too. What it has recorded stays, for as
		// long as any of them may need it.
		if before, found := lp.Get(rate.Key); found {
			rate.SetPast(max(rate.MaxRate(), before.MaxRate()), before.Returned())
			rate.UntilSecond = max(rate.UntilSecond, before.UntilSecond)
			rate.At = sharedRate
		}

		list = append(list, rate)
	}

	if len(list) == 0 {
		return nil
	}
	return lp.PutIfRoom(list...)
}

// hasRate reports whether a reservation that takes op keeps a rate.
func (op *Op) hasRate() bool { return op.Limit.Kind.IsBucket() && !op.Block }

// ForgetReservation undoes what NoteReservation did, for a reservation whose
// check took nothing. It removes the place k, if isHome, and the rates of the
// buckets of ops. now must be the time that was given to NoteReservation,
// because it tells which rates were noted then. ForgetReservation fails with
// ErrShut.
func (t *Table) ForgetReservation(now algorithms.Instant, k notes.Key, isHome bool, ops []Op) error {
	p := k.Partition()
	lp := t.notes.Lock(p, now.Steady)
	defer lp.Unlock()
	if t.gates.isShut(p) {
		return ErrShut
	}

	place, found := lp.Get(k)
	if isHome && found && place.Status() == notes.Open { // otherwise it is settled
		lp.Remove(k)
	}
	for i := range ops {
		if !ops[i].hasRate() {
			continue
		}

		// If At is another time, or sharedRate, something else needs the note.
		rate, found := lp.Get(rateKey(ops[i].Key))
		if found && rate.At == now.Steady {
			lp.Remove(rate.Key)
		}
	}
	return nil
}

// SetExpiry records in a reservation's place how to carry out the end of the
// reservation, if it is not settled by then. If create is set and there is no
// place, it makes one. It fails with ErrShut, with ErrGone if the place is
// missing or the reservation is over, or with notes.ErrReservations.
func (t *Table) SetExpiry(now algorithms.Instant, place *Place, body string, create bool) error {
	p := place.Key.Partition()
	lp := t.notes.Lock(p, now.Steady)
	defer lp.Unlock()
	if t.gates.isShut(p) {
		return ErrShut
	}

	n, found := lp.Get(place.Key)
	if !found && create {
		n, found = place.note(now), true
	}
	if !found || n.Status() != notes.Open {
		return ErrGone
	}
	n.Body = body
	return lp.PutIfRoom(n)
}
