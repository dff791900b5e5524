package counters

import (
	"math"
	"math/bits"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// Note is a fact that is kept beside the counters of its partition until a time: it is replicated, handed over and
// saved as they are, and never evicted before.
type Note struct {
	Key    Key   // in the same subject as the counters it is about
	Count  int64 // 0…MaxAmount
	Detail int64 // 0…MaxAmount
	At     int64 // 0…2^39
}

// Settling is a change of several counters of one subject that happens at most once: together with its notes.
type Settling struct {
	// Notes are what is to be remembered. If the first is there already, all of them are read instead, and nothing
	// changes. At least one.
	Notes []Note
	Until int64 // Unix seconds on the steady clock: how long the notes are kept
	// Late: what was not settled before may not be settled any more.
	Late    bool
	Changes []SettledCost
	// Tightest, set by Settle, is what is then left of the limit with the least left for its capacity; −1 without any.
	// It is the Detail of the first note.
	Tightest int64
}

// SettledCost is what is put back into, or taken from, one counter in addition.
type SettledCost struct {
	Key   Key
	Limit *algorithms.Limit
	// Cost is what is taken in addition, whether or not the limit allows it; below zero, what is put back.
	Cost int64
	// From and Rest say where a cost put back was taken; see [algorithms.Limit.Refund].
	From algorithms.Taken
	Rest time.Duration
	Told bool // looked at for Tightest
}

// Settle does s, or reads what was noted when it was done before. done is false where it was not done before and is
// late. It fails, and does nothing, with ErrShut or ErrFull.
func (t *Table) Settle(now algorithms.Now, s *Settling) (repeated, done bool, err error) {
	sh := t.shardOf(s.Notes[0].Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if t.gates.isShut(s.Notes[0].Key.Partition()) {
		return false, false, ErrShut
	}
	if sh.notes(s.Notes, now) {
		s.Tightest = s.Notes[0].Detail - 1
		return true, true, nil
	}
	if s.Late {
		return false, false, nil
	}
	room := len(s.Notes) // and a counter for each debt, if need be
	for i := range s.Changes {
		if s.Changes[i].Cost > 0 {
			room++
		}
	}
	if !t.roomFor(sh, s.Notes[0].Key, now, room, nil) {
		return false, false, ErrFull
	}
	for i := range s.Changes {
		if c := &s.Changes[i]; c.Cost != 0 {
			e := penalty(c.Limit, now, c.Cost)
			if c.Cost < 0 {
				e = refund(c.Limit, c.From, c.Rest, now, -c.Cost)
			}
			if err := t.changeHeld(sh, now, c.Key, c.Limit, e); err != nil {
				return false, false, err // nothing is left of room that was just made
			}
		}
	}
	s.Tightest = t.tightest(sh, now, s.Changes)
	s.Notes[0].Detail = s.Tightest + 1
	for i := range s.Notes {
		sh.note(&s.Notes[i], s.Until)
	}
	return false, true, nil
}

// tightest is what is left of the told limit with the least left for its capacity, −1 without any.
func (t *Table) tightest(sh *shard, now algorithms.Now, changes []SettledCost) int64 {
	least, of := int64(-1), int64(1)
	for i := range changes {
		c := &changes[i]
		if !c.Told {
			continue
		}
		_, d := t.usageHeld(sh, now, c.Key, c.Limit)
		aHi, aLo := bits.Mul64(uint64(d.Remaining), uint64(of))
		bHi, bLo := bits.Mul64(uint64(max(0, least)), uint64(c.Limit.Capacity()))
		if least < 0 || aHi < bHi || aHi == bHi && aLo < bLo {
			least, of = d.Remaining, c.Limit.Capacity()
		}
	}
	return least
}

// Noted reads n by its key, and reports whether it is there.
func (t *Table) Noted(now algorithms.Now, n *Note) bool {
	s := t.shardOf(n.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	one := [...]Note{*n}
	found := s.notes(one[:], now)
	*n = one[0]
	return found
}

// SetNote puts n in the place of what was noted under its key, and keeps it until then at least: Unix seconds on the steady
// clock. It does not look at the gate. It fails, and does nothing, with ErrFull.
func (t *Table) SetNote(now algorithms.Now, n *Note, until int64) error {
	s := t.shardOf(n.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.find(n.Key); p.found() {
		until = max(until, int64(p.home().freshAt[p.slot()]))
	} else if !t.makeRoom(s, n.Key, now.Steady, 0, nil) {
		return ErrFull
	}
	s.note(n, until)
	return nil
}

// Notes are counters of their own kind in all but this: nobody asks them about a cost. Count is one more than the
// note's, since a counter of nothing is fresh.
const noteKind = algorithms.SlidingWindow

// notes reads notes from the shard, which is held. It reports whether the first is there, and not to be forgotten yet.
func (s *shard) notes(notes []Note, now algorithms.Now) bool {
	for i := range notes {
		n := &notes[i]
		p := s.find(n.Key)
		if !p.found() || p.state().Fresh() || int64(p.home().freshAt[p.slot()]) <= now.Steady/1e9 {
			if i == 0 {
				return false
			}
			continue
		}
		state := p.state()
		n.Count, n.Detail, n.At = state.Count-1, state.Part, state.At
	}
	return true
}

// note puts n into the shard, which is held and has room.
func (s *shard) note(n *Note, until int64) {
	p := s.find(n.Key)
	if !p.found() {
		p = s.insert(n.Key)
	}
	g := p.home()
	g.records[p.slot()].state = algorithms.State{Count: n.Count + 1, Part: n.Detail, At: n.At}
	g.marks[p.slot()] = newMark(noteKind, refusedLevel) // not to be evicted
	g.freshAt[p.slot()] = uint32(min(max(until, 0), math.MaxUint32))
	s.soil(p, everyone)
}
