package algorithms

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// MaxLogEntries bounds the entries of one log. A log that outgrows it becomes
// coarse: see [Log.Coarsen].
const MaxLogEntries = 1 << 16

// Entry is what was taken at one moment of the steady clock.
type Entry struct {
	At, N int64 // N >= 1
}

// Log is the state of a sliding-window log: every hit still in the window. The zero Log is fresh.
//
// Invariant: entries[head:] are in strictly increasing order of At; total is the sum of their N.
type Log struct {
	entries    []Entry
	head       int
	total      int64
	grain      int64 // if not 0, all times since the log was last empty are multiples of it
	advancedTo int64 // the latest time seen; earlier readings count as this one
	lastTaken  int64 // when the last cost taken proceeds: advancedTo, or later with MaxDelay
}

// NewLog returns a log of entries, which may be in any order. It skips entries
// without a positive N.
func NewLog(entries []Entry) *Log {
	g := &Log{}
	sorted := slices.Clone(entries)
	slices.SortFunc(sorted, func(a, b Entry) int { return cmp.Compare(a.At, b.At) })
	for _, e := range sorted {
		if e.N > 0 {
			g.add(e.At, min(e.N, maxOwed-min(g.total, maxOwed)))
		}
	}
	return g
}

// Entries returns a copy of the entries, oldest first.
func (log *Log) Entries() []Entry { return slices.Clone(log.entries[log.head:]) }

// Len returns the number of entries held.
func (log *Log) Len() int { return len(log.entries) - log.head }

// Used returns the sum of the costs in the log.
func (log *Log) Used() int64 { return log.total }

// Fresh reports whether the log, brought up to date by [Log.Advance], equals
// one that was never used.
func (log *Log) Fresh() bool { return log.Len() == 0 }

// Advance drops the entries that have left the window.
func (log *Log) Advance(l *Limit, now Instant) {
	log.advancedTo = max(log.advancedTo, now.Steady)
	live := log.entries[log.head:]
	gone := sort.Search(len(live), func(i int) bool { return live[i].At > log.advancedTo-int64(l.Window) })
	for _, e := range live[:gone] {
		log.total -= e.N
	}

	log.head += gone

	// The entries are copied only when more than half has left: then less is
	// copied than was dropped, and memory follows use.
	switch {
	case log.head == len(log.entries):
		log.entries = nil
		log.head = 0
		log.grain = 0
	case log.head > len(log.entries)/2:
		log.entries = slices.Clone(log.entries[log.head:])
		log.head = 0
	}
}

// Take debits cost if the limit allows it, and reports whether it did. A cost
// of 0 is always allowed.
func (log *Log) Take(l *Limit, now Instant, cost int64) bool {
	log.Advance(l, now)
	if cost == 0 {
		return true
	}
	at, ok := log.fits(l, now, cost)
	if !ok {
		return false
	}
	log.lastTaken = at
	log.add(at, cost)
	log.enforceBound(l)
	return true
}

// fits reports whether cost, above 0, is allowed, and when it proceeds.
func (log *Log) fits(l *Limit, now Instant, cost int64) (at int64, ok bool) {
	switch {
	case log.total <= l.Amount-cost:
		return log.advancedTo, true
	case l.MaxDelay == 0 || cost > l.Amount:
		return 0, false
	}
	at = log.admissionTime(l, cost)
	return at, at-now.Steady <= int64(l.MaxDelay)
}

// admissionTime returns when enough will have left the window for a cost
// (1…Amount) that does not fit now, on the steady clock. It searches from the
// nearer end: for a small cost, little must leave; for a large one, little may
// stay.
func (log *Log) admissionTime(l *Limit, cost int64) int64 {
	room := l.Amount - cost
	if need := log.total - room; need <= room {
		for _, e := range log.entries[log.head:] {
			need -= e.N
			if need <= 0 {
				return max(log.advancedTo, e.At+int64(l.Window))
			}
		}
		return log.advancedTo
	}

	for i := len(log.entries) - 1; i >= log.head; i-- {
		room -= log.entries[i].N
		if room < 0 {
			return max(log.advancedTo, log.entries[i].At+int64(l.Window))
		}
	}

	return log.advancedTo
}

// Force debits cost as of from, whether or not the limit allows it. It drops a
// cost that has already left the window.
func (log *Log) Force(l *Limit, from TakeRecord, now Instant, cost int64) {
	log.Advance(l, now)
	if cost > 0 && from.Steady > log.advancedTo-int64(l.Window) {
		log.add(from.Steady, min(cost, maxOwed-min(log.total, maxOwed)))
		log.enforceBound(l)
	}
}

// Give puts back cost taken at from, if it is certainly still in the window. If
// another process took the cost, from has only the earliest possible time, so
// the hit may not be found. It removes the oldest hits instead, which is safe:
// they would have left first.
func (log *Log) Give(l *Limit, from TakeRecord, now Instant, cost int64) {
	log.Advance(l, now)
	if from.Steady <= log.advancedTo-int64(l.Window) {
		return
	}

	at := log.roundUp(from.Steady)
	i := log.search(at)
	if i < len(log.entries) && log.entries[i].At == at {
		log.lower(i, cost)
		return
	}
	for cost > 0 && log.Len() > 0 {
		cost -= log.lower(log.head, cost)
	}
}

// Reward lowers usage by n units, latest entries first.
func (log *Log) Reward(l *Limit, now Instant, n int64) {
	log.Advance(l, now)
	for n > 0 && log.Len() > 0 {
		n -= log.lower(len(log.entries)-1, n)
	}
}

// Describe returns the log's Decision on a check of cost that was allowed or refused.
func (log *Log) Describe(l *Limit, now Instant, cost int64, allowed bool) Decision {
	d := Decision{Allowed: allowed, Used: log.total, Remaining: max(0, l.Amount-log.total)}
	live := log.entries[log.head:]
	if len(live) > 0 {
		d.ResetAfter = timeToLeave(live[len(live)-1], l, now)
	}
	if d.Remaining < l.Amount {
		d.MoreAfter = time.Duration(log.admissionTime(l, d.Remaining+1) - now.Steady)
	}

	switch {
	case allowed:
		if l.MaxDelay > 0 && cost > 0 && log.lastTaken > log.advancedTo {
			d.Delay = time.Duration(log.lastTaken - now.Steady)
		}
	case cost > l.Amount:
		d.RetryAfter = Never
	default:
		d.RetryAfter = time.Duration(log.admissionTime(l, cost)-now.Steady) - l.MaxDelay
	}

	return d
}

// Peek returns the Decision of a Take, but takes nothing.
func (log *Log) Peek(l *Limit, now Instant, cost int64) Decision {
	log.Advance(l, now)
	if cost == 0 {
		return log.Describe(l, now, 0, true)
	}

	at, ok := log.fits(l, now, cost)
	if !ok {
		return log.Describe(l, now, cost, false)
	}

	d := log.Describe(l, now, 0, true)
	d.Used += cost
	d.Remaining = max(0, l.Amount-d.Used)
	d.ResetAfter = max(d.ResetAfter, timeToLeave(Entry{At: log.roundUp(at)}, l, now))

	if at > log.advancedTo {
		d.Delay = time.Duration(at - now.Steady)
	}

	d.MoreAfter = log.moreAfter(l, now, d.Remaining, Entry{At: log.roundUp(at), N: cost})
	return d
}

// moreAfter returns how long it takes until the log, with one more hit, has
// more than remaining left. remaining is what it has with that hit, and is less
// than the limit.
func (log *Log) moreAfter(l *Limit, now Instant, remaining int64, hit Entry) time.Duration {
	// Either enough of the others leaves while the hit is in the window, ...
	hitLeaves := hit.At + int64(l.Window)
	withHit := remaining + 1 + hit.N
	if withHit <= l.Amount {
		at := log.admissionTime(l, withHit)
		if at < hitLeaves {
			return time.Duration(at - now.Steady)
		}
	}

	// ... or the hit leaves as well.
	if log.total > l.Amount-remaining-1 {
		hitLeaves = max(hitLeaves, log.admissionTime(l, remaining+1))
	}
	return time.Duration(hitLeaves - now.Steady)
}

// TakeRecord describes the last Take, for a later Give.
func (log *Log) TakeRecord() TakeRecord { return TakeRecord{Steady: log.lastTaken} }

// Clone returns a copy that shares nothing with log.
func (log *Log) Clone() *Log {
	return &Log{entries: log.Entries(), total: log.total, grain: log.grain,
		advancedTo: log.advancedTo, lastTaken: log.lastTaken}
}

func timeToLeave(e Entry, l *Limit, now Instant) time.Duration {
	return time.Duration(e.At + int64(l.Window) - now.Steady)
}

// search returns the index of the first entry at or after t.
func (log *Log) search(t int64) int {
	live := log.entries[log.head:]
	return log.head + sort.Search(len(live), func(i int) bool { return live[i].At >= t })
}

// add counts n at time t, keeping the entries in order.
func (log *Log) add(t, n int64) {
	if n <= 0 {
		return
	}

	t = log.roundUp(t)
	log.total += n
	i := len(log.entries)
	if log.Len() > 0 && log.entries[i-1].At >= t {
		i = log.search(t)
		if log.entries[i].At == t {
			log.entries[i].N += n
			return
		}
	}

	log.entries = slices.Insert(log.entries, i, Entry{At: t, N: n})
}

func (log *Log) enforceBound(l *Limit) {
	if log.Len() > MaxLogEntries {
		log.Coarsen(l, MaxLogEntries/2)
	}
}

// Coarsen makes the log hold at most about parts entries (at least 1) from now
// on, until it is empty. It divides the time that entries may span, which is
// the window and the longest delay, by parts. It rounds times up to multiples
// of the result, and merges entries with equal times. Hits then leave the
// window late by less than that, and never early.
func (log *Log) Coarsen(l *Limit, parts int64) {
	span := int64(l.Window + l.MaxDelay)
	if n := len(log.entries); log.Len() > 0 { // earlier rules may have allowed longer delays
		span = max(span, log.entries[n-1].At-log.entries[log.head].At)
	}

	grain := (span + parts - 1) / parts
	if grain <= log.grain {
		return
	}

	// Use a multiple of the old grain, so that a time that was already rounded
	// moves by less than the new grain.
	if log.grain > 0 {
		grain = (grain + log.grain - 1) / log.grain * log.grain
	}
	log.setGrain(grain)
}

func (log *Log) setGrain(grain int64) {
	log.grain = grain
	merged := make([]Entry, 0, 64)
	for _, e := range log.entries[log.head:] {
		e.At = log.roundUp(e.At)
		last := len(merged) - 1
		if last >= 0 && merged[last].At == e.At {
			merged[last].N += e.N
		} else {
			merged = append(merged, e)
		}
	}
	log.entries = merged
	log.head = 0
}

// roundUp returns t rounded up to the log's grain.
func (log *Log) roundUp(t int64) int64 {
	if log.grain == 0 {
		return t
	}
	return -floorDiv(-t, log.grain) * log.grain
}

// lower takes up to n units off entry i and returns how many it took.
func (log *Log) lower(i int, n int64) int64 {
	n = min(n, log.entries[i].N)
	log.entries[i].N -= n
	log.total -= n
	switch {
	case log.entries[i].N > 0:
	case i == log.head: // Give may take off many of the oldest entries
		log.head++
	default:
		log.entries = slices.Delete(log.entries, i, i+1)
	}
	return n
}
