package algorithms

import (
	"slices"
	"sort"
	"time"
)

// MaxLogEntries bounds one log. A log that outgrows it joins neighbouring entries, each pair at the later of
// its two times: hits then leave the window late, never early, by about 1/32,768 of a busy window.
const MaxLogEntries = 1 << 16

// Entry is what was taken at one moment of the steady clock.
type Entry struct {
	At, N int64 // N >= 1
}

// Log is the state of a sliding-window log: every hit still in the window. The zero Log is fresh.
//
// Invariant: entries[head:] are in order of At, strictly; total is the sum of their N.
type Log struct {
	entries []Entry
	head    int
	total   int64
	coarse  bool  // entries were joined since it was last empty
	seen    int64 // the latest time it was advanced to; earlier readings count as this
}

// NewLog returns a log of entries, which may stand in any order; those without a positive amount are left out.
func NewLog(entries []Entry) *Log {
	g := &Log{}
	sorted := slices.Clone(entries)
	slices.SortFunc(sorted, func(a, b Entry) int { return compare(a.At, b.At) })
	for _, e := range sorted {
		if e.N > 0 {
			g.add(e.At, min(e.N, maxOwed))
		}
	}
	return g
}

// Entries is a copy of what the log holds, oldest first.
func (g *Log) Entries() []Entry { return slices.Clone(g.entries[g.head:]) }

// Len is the number of entries held.
func (g *Log) Len() int { return len(g.entries) - g.head }

// Used is the sum of what the log holds.
func (g *Log) Used() int64 { return g.total }

// Fresh reports whether the log, brought up to date by [Log.Advance], equals one never used.
func (g *Log) Fresh() bool { return g.Len() == 0 }

// Advance drops what has left the window.
func (g *Log) Advance(l *Limit, now Now) {
	g.seen = max(g.seen, now.Steady)
	live := g.entries[g.head:]
	gone := sort.Search(len(live), func(i int) bool { return live[i].At > g.seen-int64(l.Window) })
	for _, e := range live[:gone] {
		g.total -= e.N
	}
	g.head += gone
	switch {
	case g.head == len(g.entries):
		g.entries, g.head, g.coarse = nil, 0, false
	case g.head > len(g.entries)/2:
		g.entries, g.head = slices.Clone(g.entries[g.head:]), 0
	}
}

// Take debits cost if the limit allows it, and reports whether it did. A cost of 0 is always allowed.
func (g *Log) Take(l *Limit, now Now, cost int64) bool {
	g.Advance(l, now)
	if cost == 0 {
		return true
	}
	if g.total > l.Amount-cost {
		return false
	}
	g.add(g.seen, cost)
	return true
}

// Force debits cost as of from, whether or not the limit allows it. What has left the window is dropped.
func (g *Log) Force(l *Limit, from Taken, now Now, cost int64) {
	g.Advance(l, now)
	if cost > 0 && from.Steady > g.seen-int64(l.Window) {
		g.add(from.Steady, min(cost, maxOwed-min(g.total, maxOwed)))
	}
}

// Give puts back cost taken at from, if it is still in the window.
func (g *Log) Give(l *Limit, from Taken, now Now, cost int64) {
	g.Advance(l, now)
	if from.Steady <= g.seen-int64(l.Window) {
		return
	}
	// In a coarse log what is not there under its own time was joined with the next entry.
	if i := g.search(from.Steady); i < len(g.entries) && (g.coarse || g.entries[i].At == from.Steady) {
		g.lower(i, cost)
	}
}

// Reward lowers what is used by n units, the latest first.
func (g *Log) Reward(l *Limit, now Now, n int64) {
	g.Advance(l, now)
	for n > 0 && g.Len() > 0 {
		n -= g.lower(len(g.entries)-1, n)
	}
}

// Merge joins in another copy of the same counter, keeping the more used at each moment.
func (g *Log) Merge(l *Limit, other *Log, now Now) {
	for _, e := range other.entries[other.head:] {
		i := g.search(e.At)
		if i == len(g.entries) || g.entries[i].At != e.At {
			g.add(e.At, e.N)
		} else if more := e.N - g.entries[i].N; more > 0 {
			g.add(e.At, more)
		}
	}
	g.Advance(l, now)
}

// Describe says what the log answers to a check of cost that was allowed or not.
func (g *Log) Describe(l *Limit, now Now, cost int64, allowed bool) Decision {
	d := Decision{Allowed: allowed, Remaining: max(0, l.Amount-g.total)}
	live := g.entries[g.head:]
	if len(live) > 0 {
		d.ResetAfter = leaves(live[len(live)-1], l, now)
	}
	if allowed {
		return d
	}
	if cost > l.Amount {
		d.RetryAfter = Never
		return d
	}
	total := g.total
	for _, e := range live {
		if total -= e.N; total <= l.Amount-cost {
			d.RetryAfter = leaves(e, l, now)
			break
		}
	}
	return d
}

// Peek is the Decision that a Take would have had; nothing is taken.
func (g *Log) Peek(l *Limit, now Now, cost int64) Decision {
	g.Advance(l, now)
	if g.total > l.Amount-cost && cost > 0 {
		return g.Describe(l, now, cost, false)
	}
	d := g.Describe(l, now, cost, true)
	d.Remaining = max(0, d.Remaining-cost)
	if cost > 0 {
		d.ResetAfter = leaves(Entry{At: g.seen}, l, now)
	}
	return d
}

// Taken describes a Take just made, for a later Give.
func (g *Log) Taken() Taken { return Taken{Steady: g.seen} }

// Clone returns a copy that shares nothing with g.
func (g *Log) Clone() *Log {
	return &Log{entries: g.Entries(), total: g.total, coarse: g.coarse, seen: g.seen}
}

// Rebase moves the log by delta nanoseconds of the steady clock.
func (g *Log) Rebase(delta int64) {
	for i := range g.entries {
		g.entries[i].At += delta
	}
	if g.seen != 0 {
		g.seen += delta
	}
}

func leaves(e Entry, l *Limit, now Now) time.Duration {
	return time.Duration(e.At + int64(l.Window) - now.Steady)
}

// search is the index of the first entry at or after t.
func (g *Log) search(t int64) int {
	live := g.entries[g.head:]
	return g.head + sort.Search(len(live), func(i int) bool { return live[i].At >= t })
}

// add counts n at time t. A t before the last entry is put where it belongs.
func (g *Log) add(t, n int64) {
	g.total += n
	i := len(g.entries)
	if g.Len() > 0 && g.entries[i-1].At >= t {
		i = g.search(t)
		if g.entries[i].At == t {
			g.entries[i].N += n
			return
		}
	}
	g.entries = slices.Insert(g.entries, i, Entry{At: t, N: n})
	if g.Len() > MaxLogEntries {
		g.Coarsen()
	}
}

// lower takes up to n units off entry i, and reports how many.
func (g *Log) lower(i int, n int64) int64 {
	n = min(n, g.entries[i].N)
	g.entries[i].N -= n
	g.total -= n
	if g.entries[i].N == 0 {
		g.entries = slices.Delete(g.entries, i, i+1)
	}
	return n
}

// Coarsen halves the log's memory: it joins neighbouring entries in pairs, at the later time of each.
func (g *Log) Coarsen() {
	live := g.entries[g.head:]
	joined := make([]Entry, 0, len(live)/2+1)
	for len(live) > 1 {
		joined = append(joined, Entry{At: live[1].At, N: live[0].N + live[1].N})
		live = live[2:]
	}
	g.entries, g.head, g.coarse = append(joined, live...), 0, true
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
