package counters

import (
	"cmp"

	"github.com/rlnode/rlnode/algorithms"
)

// Merge combines r with the table's own copy of the counter or note when
// neither copy is known to be newer, as after a full stop. It keeps the more
// used one. If the counter changes, it counts as changed for both DrainChanges
// and Replicate. Merge returns false if there was no room for the counter. It
// ignores the gate.
//
// sameClock says that both copies were counted by the same clock, or nearly.
// Their windows are then merged count by count. Otherwise the earlier window
// may not be over yet, so the higher count stays, in the later window. Of two
// copies of a bucket or log, the one that becomes fresh later counts as more
// used: its limit is unknown here.
func (t *Table) Merge(now algorithms.Instant, r Record, sameClock bool) bool {
	if r.Note != nil {
		t.notes.Merge(r.Note, now.Steady)
		return true
	}

	if r.ExpiresAt <= now.Steady/1e9 || r.isFresh() {
		return true
	}

	// Slow, so before the lock is taken.
	log := r.asLog()
	s := t.shardOf(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	stored := s.readStored(r.Key)
	if stored.ExpiresAt > now.Steady/1e9 && !r.mergeFrom(&stored, log, sameClock) {
		return true
	}
	return t.putLocked(s, t.prepareLocation(s, r.Key, r.Kind), now, &r, log, allReaders)
}

// storedCounter is a counter in the table, without a copy of its log.
type storedCounter struct {
	Record
	log *algorithms.Log
}

// readStored returns k's counter, or the zero storedCounter, which has expired, if there is none.
func (s *shard) readStored(k Key) storedCounter {
	if e := s.log(k); e != nil {
		return storedCounter{Record: Record{Kind: algorithms.SlidingLog, ExpiresAt: int64(e.expiresAt)}, log: &e.log}
	}
	if loc := s.find(k); loc.found() {
		return storedCounter{Record: loc.group().recordAt(loc.slot())}
	}
	return storedCounter{}
}

func (s *storedCounter) isFresh() bool {
	if s.log != nil {
		return s.log.Fresh()
	}
	return s.State.Fresh()
}

// mergeFrom merges have, what the table has, into r, and reports whether the
// result is more used than have. log is r's, if r is a log.
func (r *Record) mergeFrom(have *storedCounter, log *algorithms.Log, sameClock bool) bool {
	// A reset counts as unused: nobody knows which of the two came first.
	if have.isFresh() {
		return true
	}

	switch {
	case r.Kind != have.Kind:
		return r.ExpiresAt > have.ExpiresAt
	case r.Kind == algorithms.SlidingLog:
		return cmp.Or(cmp.Compare(r.ExpiresAt, have.ExpiresAt), cmp.Compare(log.Used(), have.log.Used())) > 0
	case r.Kind == algorithms.CellBucket:
		return cmp.Or(cmp.Compare(r.ExpiresAt, have.ExpiresAt), algorithms.CompareCells(r.State, have.State)) > 0
	case r.Kind.IsBucket():
		a, b := r.State, have.State
		return cmp.Or(cmp.Compare(r.ExpiresAt, have.ExpiresAt), cmp.Compare(a.At, b.At),
			cmp.Compare(a.Count, b.Count), cmp.Compare(a.Part, b.Part)) > 0
	}
	return r.mergeWindow(have, sameClock)
}

// mergeWindow is mergeFrom for windows.
func (r *Record) mergeWindow(have *storedCounter, sameClock bool) bool {
	switch {
	case r.Kind == algorithms.FirstWindow || r.State.Window() == have.State.Window() || !sameClock:
		r.Fullness = max(r.Fullness, have.Fullness)
	case r.State.Window() < have.State.Window():
		r.Fullness = have.Fullness
	}

	r.State = mergeWindows(r.Kind, r.State, have.State, sameClock)
	r.ExpiresAt = max(r.ExpiresAt, have.ExpiresAt)
	return r.State != have.State || r.ExpiresAt > have.ExpiresAt
}

// mergeWindows keeps the higher count of each window that the later of the two
// states still covers, or just the higher count if their clocks differ. It
// takes two copies of a FirstWindow to be of one window, because both have not
// expired: their starts differ only by their time in transit.
func mergeWindows(kind algorithms.Kind, a, b algorithms.State, sameClock bool) algorithms.State {
	if kind == algorithms.FirstWindow {
		a.Count = max(a.Count, b.Count)
		a.Part = max(a.Part, b.Part)
		a.At = max(a.At, b.At)
		return a
	}

	if a.Window() < b.Window() {
		a, b = b, a
	}

	switch {
	case !sameClock && kind == algorithms.FixedWindow && a.Window() != b.Window():
		// What was borrowed for one window must not widen the other.
		a.At = max(a.At, b.At)
		a.Count, a.Part = max(a.Count, b.Count), min(a.Part, b.Part)
	case a.Window() == b.Window() || !sameClock:
		a.At = max(a.At, b.At) // if a queue put one of them ahead of the clock, the result stays ahead
		a.Count, a.Part = max(a.Count, b.Count), max(a.Part, b.Part)
	case kind == algorithms.SlidingWindow && a.Window()-1 == b.Window():
		a.Part = max(a.Part, b.Count)
	}

	return a
}
