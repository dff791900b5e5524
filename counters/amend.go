package counters

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// Amendment is a change to counters of one subject that no check makes.
type Amendment struct {
	Ops      []Op // a negative cost is a reward; Amend sets each Decision to that of a check of cost 0 after the change
	Reset    Reset
	OldRates bool // the rates of the limits of Ops may be out of date, so no bucket drains by them
	// From (by op) and Life are set for a late settlement. They say which Take each
	// cost belongs to. A cost is dropped if its window or its life is over.
	From []algorithms.TakeRecord
	Life Life
	// Memo, if not nil, makes the change happen only once: if the memo exists
	// already, nothing changes. Answer returns the answer to store in the memo; it
	// is called once the change is made.
	Memo     *Memo
	Answer   func(a *Amendment) []byte
	Repeated bool    // set by Amend: the change was made earlier, so neither the Decisions of Ops nor Applied are set
	Applied  []int64 // set by Amend, by op: by how much usage changed; a dropped cost counts as taken
}

// Reset says which counters of an Amendment's Ops become fresh. What was taken
// from a counter in an earlier life never comes back to it.
type Reset uint8

// What a reset covers.
const (
	NoReset      Reset = iota
	ResetSubject       // all of Ops; a new life of the subject begins
	ResetLimits        // the counters of limits; for each of them, a new life begins
	ResetBlocks        // the blocks; the life of the limits goes on
)

// covers reports whether the reset makes op's counter fresh.
func (r Reset) covers(op *Op) bool {
	switch r {
	case ResetSubject:
		return true
	case ResetLimits:
		return !op.Block
	case ResetBlocks:
		return op.Block
	}
	return false
}

// Amend changes counters of one subject. If it fails with ErrShut, ErrNoRoom,
// ErrRequestIDReused or notes.ErrWrites, nothing changes.
func (t *Table) Amend(now algorithms.Instant, a *Amendment) error {
	if err := t.makeRoomForNotes(now, a); err != nil {
		return err
	}

	k := a.Ops[0].Key
	s, now := t.lock(now, k)
	defer s.mu.Unlock()

	a.Repeated = false
	if t.gates.isShut(k.Partition()) {
		return ErrShut
	}

	// makeRoomForNotes looked for the memo too, but without the lock on the shard.
	// The same request may have been carried out since.
	if a.Memo != nil {
		lp := t.notes.Lock(k.Partition(), now.Steady)
		found, err := a.Memo.recall(lp)
		lp.Unlock()
		a.Repeated = found
		if found || err != nil {
			return err
		}
	}

	if !t.makeRoomFor(s, now, a.added(), a.Ops) {
		return ErrNoRoom
	}

	// Nothing fails from here on.
	a.Applied = make([]int64, len(a.Ops))
	for i := range a.Ops {
		op := &a.Ops[i]
		a.Applied[i] = op.Cost
		before := int64(0)
		if op.Cost < 0 {
			before = t.usageLocked(s, now, op.Key, op.Limit).Used
		}
		if err := t.amend(s, now, i, a); err != nil {
			return err // can't happen, because room was just made
		}

		op.Decision = t.usageLocked(s, now, op.Key, op.Limit)
		if op.Cost < 0 {
			a.Applied[i] = op.Decision.Used - before
		}
		if op.Lends {
			s.leaveOutLoans(now, op, s.find(op.Key).state())
		}
	}

	t.storeAmendmentNotes(now, a)
	return nil
}

// added returns the ops whose counters must be in the table afterwards: those
// that are reset, so that no older copy comes back, and those that are debited.
// Slots have no counters, and nothing comes off a counter that is not there.
func (a *Amendment) added() (list []Op) {
	for i := range a.Ops {
		op := &a.Ops[i]
		isStored := a.Reset.covers(op) || a.Reset == NoReset && op.Cost > 0
		if isStored && op.Limit.Kind != algorithms.Concurrency {
			list = append(list, *op)
		}
	}
	return list
}

// resets returns the keys of the notes of the resets that a makes.
func (a *Amendment) resets() (list []notes.Key) {
	switch a.Reset {
	case ResetSubject:
		list = append(list, notes.ResetKey(a.Ops[0].Key.Subject, 0))
	case ResetLimits:
		for i := range a.Ops {
			if op := &a.Ops[i]; !op.Block {
				list = append(list, notes.ResetKey(op.Key.Subject, op.Key.Counter))
			}
		}
	}
	return list
}

// maxAnswerPerOp is more than a memo's answer usually has per op, in bytes.
const maxAnswerPerOp = 80

// makeRoomForNotes makes room for the notes that an amendment leaves.
func (t *Table) makeRoomForNotes(now algorithms.Instant, a *Amendment) error {
	k := a.Ops[0].Key
	for _, reset := range a.resets() {
		// This never fails: the oldest reset goes if there is no room.
		_ = t.notes.MakeRoom(&notes.Note{Key: reset, Inline: k.IsInline()}, now.Steady)
	}
	if a.Memo == nil {
		return nil
	}

	found, err := t.Recall(now, a.Memo)
	if found || err != nil {
		return err // the request is a repetition, and leaves nothing
	}
	n := a.Memo.note(now)

	// The answer is not known yet, so room is made for a long one.
	n.Body = string(make([]byte, len(a.Ops)*maxAnswerPerOp))
	return t.notes.MakeRoom(n, now.Steady)
}

// amend changes the counter of the i-th op. The caller must hold the shard and have made room.
func (t *Table) amend(s *shard, now algorithms.Instant, i int, a *Amendment) error {
	op := &a.Ops[i]
	switch {
	case a.Reset.covers(op):
		return t.reset(s, now, op.Key, op.Limit)
	case a.Reset != NoReset:
		return nil
	case a.From != nil:
		return t.debitLateLocked(s, now, op.Key, op.Limit, a.From[i], op.Cost, a.Life)
	case op.Cost < 0:
		return t.changeLocked(s, now, op.Key, op.Limit, rewardEdit(op.Limit, t.rewardable(s, now, op)))
	case op.Cost > 0:
		return t.changeLocked(s, now, op.Key, op.Limit, debitEdit(op.Limit, op.Cost, a.OldRates))
	}

	return nil
}

// rewardEdit lowers usage by n units.
func rewardEdit(l *algorithms.Limit, n int64) edit {
	return edit{
		func(s algorithms.State, now algorithms.Instant) algorithms.State { return l.Reward(s, now, n) },
		func(g *algorithms.Log, now algorithms.Instant) { g.Reward(l, now, n) },
	}
}

// rewardable returns how many units op, whose cost is below zero, takes off the
// counter: no more than its own region uses. The counter also holds what the
// region lent, which must stay. The caller must hold the shard.
func (t *Table) rewardable(s *shard, now algorithms.Instant, op *Op) int64 {
	if !op.Lends {
		return -op.Cost
	}
	loans := t.loansLocked(s, now, op.Key, op.Limit)
	return min(-op.Cost, loans.OwnUse())
}

// reset makes a counter fresh. The counter stays in the table, marked as
// changed, until DrainChanges has yielded it and, if replicas exist, Replicate
// has as well. Otherwise an older copy would come back. reset fails with
// ErrNoRoom if the counter is not in the table and there is no room to record
// its reset. The caller must hold the shard.
func (t *Table) reset(s *shard, now algorithms.Instant, k Key, l *algorithms.Limit) error {
	if l.Kind == algorithms.Concurrency {
		t.releaseAllSlots(now, k)
		return nil
	}

	if l.Kind == algorithms.SlidingLog {
		if s.log(k) == nil && !t.makeRoom(s, k, now.Steady, 0, nil) {
			return ErrNoRoom
		}
		t.changeLog(s, k, now, l, func(g *algorithms.Log, _ algorithms.Instant) { *g = algorithms.Log{} })
		return nil
	}

	loc := s.find(k)
	if !loc.found() {
		if !t.makeRoom(s, k, now.Steady, 0, nil) {
			return ErrNoRoom
		}
		loc = s.insert(k)
	}

	s.store(loc, l, algorithms.State{}, 0, expiryAfter(now, l, 0))
	return nil
}

// resetRetention is how long a reset is remembered. Nothing that was taken before
// the reset can come back later than that.
const resetRetention = 75 * time.Minute

// storeAmendmentNotes stores the notes of an amendment that was made. The
// caller must hold the shard.
func (t *Table) storeAmendmentNotes(now algorithms.Instant, a *Amendment) {
	k := a.Ops[0].Key
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()

	for _, reset := range a.resets() {
		lp.RecordReset(reset, k.IsInline(), now.Steady, (now.Steady+int64(resetRetention))/1e9)
	}

	if a.Memo != nil {
		a.Memo.Answer = a.Answer(a)
		n := a.Memo.note(now)
		lp.Put(n)
		t.notes.AddEvictable(n)
	}
}
