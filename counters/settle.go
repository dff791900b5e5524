package counters

import (
	"math"
	"math/bits"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// Note is a fact kept with the counters of its partition until it expires. It is replicated, handed over and saved as they
// are, and never evicted before it expires.
type Note struct {
	Key    Key   // has the Subject of the counters that the note concerns
	Count  int64 // 0…MaxAmount
	Detail int64 // 0…MaxAmount
	At     int64 // 0…2^39
}

// Settlement changes several counters of one subject at most once. Its notes are stored together with the change and prevent a
// second one.
type Settlement struct {
	// Notes are stored with the change. If the first one exists already, Settle reads all of them instead and changes
	// nothing. There must be at least one.
	Notes []Note
	Until int64 // when the notes expire: Unix seconds on the steady clock
	// TooLate says that the deadline has passed: Settle then only looks for an earlier change.
	TooLate bool
	Changes []SettledCost
	// SameLineage reports whether the counters here are still those that costs to put back were taken from; nil if they are.
	// No partition comes or goes during that call.
	SameLineage func() bool
	// Refundable is set by Settle, unless it repeats: whether they were. Otherwise nothing was put back.
	Refundable bool
	// Tightest is set by Settle. After the change, it is what remains of the limit with the least left in proportion to its
	// capacity, among those with InTightest; −1 if none is. The first note's Detail holds Tightest+1.
	Tightest int64
}

// SettledCost is an extra amount taken from one counter, or put back into it.
type SettledCost struct {
	Key   Key
	Limit *algorithms.Limit
	// Cost is taken whether or not the limit allows it. A negative cost is put back.
	Cost int64
	// From and Rest describe when the cost to put back was taken; see [algorithms.Limit.Refund].
	From       algorithms.TakeRecord
	Rest       time.Duration
	InTightest bool // takes part in Tightest
}

// Settle makes the changes of s. If they were made before, it reads the notes stored then and returns repeated. It returns
// done unless it is too late for changes that were never made. If it fails with ErrShut or ErrFull, nothing changes.
func (t *Table) Settle(now algorithms.Instant, s *Settlement) (repeated, done bool, err error) {
	sh, now := t.lock(now, s.Notes[0].Key)
	defer sh.mu.Unlock()
	if t.gates.isShut(s.Notes[0].Key.Partition()) {
		return false, false, ErrShut
	}
	if sh.readNotes(s.Notes, now) {
		s.Tightest = s.Notes[0].Detail - 1
		return true, true, nil
	}
	if s.TooLate {
		return false, false, nil
	}
	room, spared := len(s.Notes), make([]Op, len(s.Changes))
	for i := range s.Changes {
		c := &s.Changes[i]
		spared[i].Key = c.Key
		if c.Cost > 0 && sh.log(c.Key) == nil && !sh.find(c.Key).found() {
			room++
		}
	}
	if !t.makeRoomFor(sh, s.Notes[0].Key, now, room, spared) {
		return false, false, ErrFull
	}
	s.Refundable = s.SameLineage == nil || s.SameLineage()
	for i := range s.Changes {
		if c := &s.Changes[i]; c.Cost > 0 || c.Cost < 0 && s.Refundable {
			e := penalty(c.Limit, c.Cost)
			if c.Cost < 0 {
				e = refund(c.Limit, c.From, c.Rest, -c.Cost)
			}
			if err := t.changeHeld(sh, now, c.Key, c.Limit, e); err != nil {
				return false, false, err // can't happen, since room was just made
			}
		}
	}
	s.Tightest = t.tightestRemaining(sh, now, s.Changes)
	s.Notes[0].Detail = s.Tightest + 1
	for i := range s.Notes {
		sh.storeNote(&s.Notes[i], s.Until)
	}
	return false, true, nil
}

// tightestRemaining returns what remains of the limit with the least left in proportion to its capacity, among those with
// InTightest, or −1 if there is none.
func (t *Table) tightestRemaining(sh *shard, now algorithms.Instant, changes []SettledCost) int64 {
	least, leastCapacity := int64(-1), int64(1)
	for i := range changes {
		c := &changes[i]
		if !c.InTightest {
			continue
		}
		d := t.usageHeld(sh, now, c.Key, c.Limit)
		aHi, aLo := bits.Mul64(uint64(d.Remaining), uint64(leastCapacity))
		bHi, bLo := bits.Mul64(uint64(max(0, least)), uint64(c.Limit.Capacity()))
		if least < 0 || aHi < bHi || aHi == bHi && aLo < bLo {
			least, leastCapacity = d.Remaining, c.Limit.Capacity()
		}
	}
	return least
}

// ReadNote reads the note under n's key into n and reports whether it exists.
func (t *Table) ReadNote(now algorithms.Instant, n *Note) bool {
	s, now := t.lock(now, n.Key)
	defer s.mu.Unlock()
	one := [...]Note{*n}
	found := s.readNotes(one[:], now)
	*n = one[0]
	return found
}

// SetNote replaces the note under n's key and keeps it at least until the given time, in Unix seconds on the steady clock. It
// does not check the gate. If it fails with ErrFull, nothing changes.
func (t *Table) SetNote(now algorithms.Instant, n *Note, until int64) error {
	s, now := t.lock(now, n.Key)
	defer s.mu.Unlock()
	if loc := s.find(n.Key); loc.found() {
		until = max(until, int64(loc.group().freshAt[loc.slot()]))
	} else if !t.makeRoom(s, n.Key, now.Steady, 0, nil) {
		return ErrFull
	}
	s.storeNote(n, until)
	return nil
}

// noteKind is the kind of the counters that store notes; checks never use them. The stored Count is the note's plus 1,
// because a counter with Count 0 could be fresh.
const noteKind = algorithms.SlidingWindow

// readNotes reads notes by their keys. It reports whether the first one exists and has not expired. The caller must hold the
// shard.
func (s *shard) readNotes(notes []Note, now algorithms.Instant) bool {
	for i := range notes {
		n := &notes[i]
		loc := s.find(n.Key)
		if !loc.found() || loc.state().Fresh() || int64(loc.group().freshAt[loc.slot()]) <= now.Steady/1e9 {
			if i == 0 {
				return false
			}
			continue
		}
		state := loc.state()
		n.Count, n.Detail, n.At = state.Count-1, state.Part, state.At
	}
	return true
}

// storeNote stores n. The caller must hold the shard and have made room.
func (s *shard) storeNote(n *Note, until int64) {
	loc := s.find(n.Key)
	if !loc.found() {
		loc = s.insert(n.Key)
	}
	g := loc.group()
	g.records[loc.slot()].state = algorithms.State{Count: n.Count + 1, Part: n.Detail, At: n.At}
	g.kindFullnesses[loc.slot()] = packKindFullness(noteKind, refusedFullness) // never evicted
	g.freshAt[loc.slot()] = uint32(min(max(until, 0), math.MaxUint32))
	s.markDirty(loc, allReaders)
}
