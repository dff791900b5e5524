package counters

import (
	"cmp"

	"github.com/rlnode/rlnode/algorithms"
)

// Merge joins r with the table's own copy of the counter where the two have no common order, as after a full stop,
// and keeps the more used. What changes by that, changes for Changed and for Replicate. It reports false if there was
// no room for the counter.
//
// The limit isn't known here. Windows are joined count by count; of two buckets or logs the one that is fresh later
// counts as the more used.
func (t *Table) Merge(now algorithms.Now, r Record) bool {
	if r.FreshAt <= now.Steady/1e9 || r.fresh() {
		return true
	}
	log := r.asLog()
	s := t.shardOf(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if own := s.read(r.Key); own.FreshAt > now.Steady/1e9 && !r.raise(&own, log) {
		return true
	}
	return t.put(s, t.place(s, r.Key, r.Kind), now, &r, log, everyone)
}

// own is a counter as it stands, without a copy of its log.
type own struct {
	Record
	log *algorithms.Log
}

// read returns k's counter; the zero own, which has expired, if there is none.
func (s *shard) read(k Key) own {
	if e := s.log(k); e != nil {
		return own{Record: Record{Kind: algorithms.SlidingLog, FreshAt: int64(e.freshAt)}, log: &e.log}
	}
	if p := s.find(k); p.found() {
		return own{Record: p.home().record(p.slot())}
	}
	return own{}
}

func (o *own) fresh() bool {
	if o.log != nil {
		return o.log.Fresh()
	}
	return o.State.Fresh()
}

func (r *Record) fresh() bool {
	if r.Kind == algorithms.SlidingLog {
		return len(r.Log) == 0
	}
	return r.State.Fresh()
}

// raise makes r, whose log is log, what it and have are together, and reports whether that is more than have.
func (r *Record) raise(have *own, log *algorithms.Log) bool {
	if have.fresh() {
		return true
	}
	if r.Kind != have.Kind {
		return r.FreshAt > have.FreshAt
	}
	if r.Kind == algorithms.SlidingLog {
		return cmp.Or(cmp.Compare(r.FreshAt, have.FreshAt), cmp.Compare(log.Used(), have.log.Used())) > 0
	}
	if r.Kind.Bucket() {
		a, b := r.State, have.State
		return cmp.Or(cmp.Compare(r.FreshAt, have.FreshAt), cmp.Compare(a.At, b.At),
			cmp.Compare(a.Count, b.Count), cmp.Compare(a.Part, b.Part)) > 0
	}
	switch {
	case r.State.Window() < have.State.Window():
		r.Level = have.Level
	case r.State.Window() == have.State.Window():
		r.Level = max(r.Level, have.Level)
	}
	r.State = mergeWindows(r.Kind, r.State, have.State)
	r.FreshAt = max(r.FreshAt, have.FreshAt)
	return r.State != have.State || r.FreshAt > have.FreshAt
}

// mergeWindows keeps the more used of each window that the later of two states still holds.
func mergeWindows(kind algorithms.Kind, a, b algorithms.State) algorithms.State {
	if a.Window() < b.Window() {
		a, b = b, a
	}
	switch {
	case a.Window() == b.Window():
		a.At = max(a.At, b.At) // ahead of the clock because of a queue, if one is
		a.Count, a.Part = max(a.Count, b.Count), max(a.Part, b.Part)
	case kind == algorithms.SlidingWindow && a.Window()-1 == b.Window():
		a.Part = max(a.Part, b.Count)
	}
	return a
}
