package algorithms

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// MaxLogEntries bounds one log. A log that outgrows it becomes coarse: see [Log.Coarsen].
const MaxLogEntries = 1 << 16

// Entry is what was taken at one moment of the steady clock.
type Entry struct {
	At, N int64 // N >= 1
}

// Log is the state of a sliding-window log: every hit still in the window. The zero Log is fresh.
//
// Invariant: entries[head:] are in strictly increasing order of At; total is the sum of their N.
type Log struct {
	entries []Entry
	head    int
	total   int64
	grain   int64 // if not 0, all times since the log was last empty are multiples of it
	seen    int64 // the latest time it was advanced to; earlier readings count as this
	taken   int64 // when the cost last taken proceeds: seen, or later with MaxDelay
}

// NewLog returns a log of entries, which may be in any order. Entries without a positive N are left out.
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

// Entries returns a copy of what the log holds, oldest first.
func (g *Log) Entries() []Entry { return slices.Clone(g.entries[g.head:]) }

// Len returns the number of entries held.
func (g *Log) Len() int { return len(g.entries) - g.head }

// Used returns the sum of what the log holds.
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
		g.entries, g.head, g.grain = nil, 0, 0
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
	at, ok := g.fits(l, now, cost)
	if !ok {
		return false
	}
	g.taken = at
	g.add(at, cost)
	g.bound(l)
	return true
}

// fits reports whether cost, above 0, is allowed, and when it proceeds.
func (g *Log) fits(l *Limit, now Now, cost int64) (at int64, ok bool) {
	switch {
	case g.total <= l.Amount-cost:
		return g.seen, true
	case l.MaxDelay == 0 || cost > l.Amount:
		return 0, false
	}
	at = g.turn(l, cost)
	return at, at-now.Steady <= int64(l.MaxDelay)
}

// turn returns when enough has left the window for a cost (1…Amount) that does not fit now. It searches from the nearer end:
// small costs need little to leave, and large costs let little stay.
func (g *Log) turn(l *Limit, cost int64) int64 {
	room := l.Amount - cost
	if need := g.total - room; need <= room {
		for _, e := range g.entries[g.head:] {
			if need -= e.N; need <= 0 {
				return max(g.seen, e.At+int64(l.Window))
			}
		}
		return g.seen
	}
	for i := len(g.entries) - 1; i >= g.head; i-- {
		if room -= g.entries[i].N; room < 0 {
			return max(g.seen, g.entries[i].At+int64(l.Window))
		}
	}
	return g.seen
}

// Force debits cost as of from, whether or not the limit allows it. A cost that has left the window is dropped.
func (g *Log) Force(l *Limit, from Taken, now Now, cost int64) {
	g.Advance(l, now)
	if cost > 0 && from.Steady > g.seen-int64(l.Window) {
		g.add(from.Steady, min(cost, maxOwed-min(g.total, maxOwed)))
		g.bound(l)
	}
}

// Give puts back cost taken at from, if it is still in the window.
func (g *Log) Give(l *Limit, from Taken, now Now, cost int64) {
	g.Advance(l, now)
	if from.Steady <= g.seen-int64(l.Window) {
		return
	}
	at := g.rounded(from.Steady)
	if i := g.search(at); i < len(g.entries) && g.entries[i].At == at {
		g.lower(i, cost)
	}
}

// Reward lowers usage by n units, latest entries first.
func (g *Log) Reward(l *Limit, now Now, n int64) {
	g.Advance(l, now)
	for n > 0 && g.Len() > 0 {
		n -= g.lower(len(g.entries)-1, n)
	}
}

// Describe returns the log's answer to a check of cost that was allowed or not.
func (g *Log) Describe(l *Limit, now Now, cost int64, allowed bool) Decision {
	d := Decision{Allowed: allowed, Used: g.total, Remaining: max(0, l.Amount-g.total)}
	live := g.entries[g.head:]
	if len(live) > 0 {
		d.ResetAfter = leaves(live[len(live)-1], l, now)
	}
	switch {
	case allowed:
		if l.MaxDelay > 0 && cost > 0 && g.taken > g.seen {
			d.Delay = time.Duration(g.taken - now.Steady)
		}
	case cost > l.Amount:
		d.RetryAfter = l.beyond(now)
	default:
		d.RetryAfter = time.Duration(g.turn(l, cost)-now.Steady) - l.MaxDelay
	}
	return d
}

// Peek returns the Decision that a Take would have had, but takes nothing.
func (g *Log) Peek(l *Limit, now Now, cost int64) Decision {
	g.Advance(l, now)
	if cost == 0 {
		return g.Describe(l, now, 0, true)
	}
	at, ok := g.fits(l, now, cost)
	if !ok {
		return g.Describe(l, now, cost, false)
	}
	d := g.Describe(l, now, 0, true)
	d.Used += cost
	d.Remaining = max(0, l.Amount-d.Used)
	d.ResetAfter = max(d.ResetAfter, leaves(Entry{At: g.rounded(at)}, l, now))
	if at > g.seen {
		d.Delay = time.Duration(at - now.Steady)
	}
	return d
}

// Taken describes a Take just made, for a later Give.
func (g *Log) Taken() Taken { return Taken{Steady: g.taken} }

// Clone returns a copy that shares nothing with g.
func (g *Log) Clone() *Log {
	return &Log{entries: g.Entries(), total: g.total, grain: g.grain, seen: g.seen, taken: g.taken}
}

func leaves(e Entry, l *Limit, now Now) time.Duration {
	return time.Duration(e.At + int64(l.Window) - now.Steady)
}

// search returns the index of the first entry at or after t.
func (g *Log) search(t int64) int {
	live := g.entries[g.head:]
	return g.head + sort.Search(len(live), func(i int) bool { return live[i].At >= t })
}

// add counts n at time t, in its place if t is before the last entry.
func (g *Log) add(t, n int64) {
	if n <= 0 {
		return
	}
	t = g.rounded(t)
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
}

func (g *Log) bound(l *Limit) {
	if g.Len() > MaxLogEntries {
		g.Coarsen(l, MaxLogEntries/2)
	}
}

// Coarsen makes the log hold at most about parts entries (at least 1) from now on, until it is empty. Times are rounded up
// to multiples of 1/parts of the window, and entries with equal times are merged. Hits then leave the window late, by no
// more than that, and never early.
func (g *Log) Coarsen(l *Limit, parts int64) {
	grain := (int64(l.Window) + parts - 1) / parts
	if grain <= g.grain {
		return
	}
	// Use a multiple of the old grain, so that a time that was already rounded moves by less than the new grain.
	if g.grain > 0 {
		grain = (grain + g.grain - 1) / g.grain * g.grain
	}
	g.setGrain(grain)
}

func (g *Log) setGrain(grain int64) {
	g.grain = grain
	joined := make([]Entry, 0, 64)
	for _, e := range g.entries[g.head:] {
		e.At = g.rounded(e.At)
		if last := len(joined) - 1; last >= 0 && joined[last].At == e.At {
			joined[last].N += e.N
		} else {
			joined = append(joined, e)
		}
	}
	g.entries, g.head = joined, 0
}

// rounded returns t rounded up to the log's grain.
func (g *Log) rounded(t int64) int64 {
	if g.grain == 0 {
		return t
	}
	return -floorDiv(-t, g.grain) * g.grain
}

// lower takes up to n units off entry i, and returns how many it took.
func (g *Log) lower(i int, n int64) int64 {
	n = min(n, g.entries[i].N)
	g.entries[i].N -= n
	g.total -= n
	if g.entries[i].N == 0 {
		g.entries = slices.Delete(g.entries, i, i+1)
	}
	return n
}
