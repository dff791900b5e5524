package algorithms

import (
	"math"
	"slices"
	"time"
)

// Bounds of a legal limit. Within them, no operation of this package overflows.
const (
	MaxAmount = 1<<53 - 1             // bounds Limit.Amount, Limit.Burst and every cost: JSON's largest exact integer
	MinWindow = 10 * time.Millisecond // the shortest Limit.Window
	MaxWindow = 366 * 24 * time.Hour  // the longest Limit.Window
	maxOwed   = 1 << 60               // debts stop growing here
	// Forever is longer than any window, and longer than any useful bucket takes to fill.
	Forever = time.Duration(1 << 61)
	// LongestDelay bounds Limit.MaxDelay.
	LongestDelay = 24 * time.Hour
)

// Kind is one of the algorithms, or a form of one.
type Kind uint8

// The algorithms, named as in the rules file.
const (
	// SlidingWindow is sliding-window: two counts. The previous one is weighted by
	// how much of its window is in view.
	SlidingWindow Kind = iota
	FixedWindow        // fixed-window: one count per window of the clock or the calendar
	TokenBucket        // token-bucket: refilled at Amount per Window, up to Burst
	LeakyBucket        // leaky-bucket: a queue of Burst places, drained at Amount per Window
	SlidingLog         // sliding-window-log: every hit with its time
	FirstWindow        // fixed-window with "from: first": one count; the window begins with its first hit
	CellBucket         // token-bucket of keys that keep one counter, whatever limits the calls bring
	// Concurrency is concurrency: slots, of which Amount may be held at once. Each
	// ends after Window unless it is renewed.
	Concurrency
)

// Bounds of a Concurrency limit.
const (
	MaxSlots   = 1_000_000      // bounds Amount
	MaxSlotTTL = 24 * time.Hour // bounds Window
)

// traits describes an algorithm to code that does not operate on its states.
type traits struct {
	name          string
	windowed      bool // counts in numbered windows
	divisible     bool // regions can divide it
	leasable      bool // owners can lease it
	onSteadyClock bool // State.At is a time on the steady clock
}

var kinds = [...]traits{
	SlidingWindow: {name: "sliding-window", windowed: true, leasable: true},
	FixedWindow:   {name: "fixed-window", windowed: true, divisible: true, leasable: true},
	TokenBucket:   {name: "token-bucket", divisible: true, leasable: true, onSteadyClock: true},
	LeakyBucket:   {name: "leaky-bucket", onSteadyClock: true},
	SlidingLog:    {name: "sliding-window-log"},
	FirstWindow:   {name: "fixed-window", onSteadyClock: true},
	CellBucket:    {name: "token-bucket", onSteadyClock: true},
	Concurrency:   {name: "concurrency"},
}

// Valid reports whether k is an algorithm of this release.
func (k Kind) Valid() bool { return int(k) < len(kinds) }

// String returns the algorithm's name in the rules file.
func (k Kind) String() string { return kinds[k].name }

// ParseKind returns the algorithm with that name in the rules file: FixedWindow
// and TokenBucket for the names that FirstWindow and CellBucket share.
func ParseKind(name string) (Kind, bool) {
	k := slices.IndexFunc(kinds[:], func(t traits) bool { return t.name == name })
	return Kind(max(k, 0)), k >= 0
}

// IsBucket reports whether k is a token bucket or the leaky bucket, the algorithms with a burst.
func (k Kind) IsBucket() bool { return k == TokenBucket || k == LeakyBucket || k == CellBucket }

// Windowed reports whether k counts in numbered windows.
func (k Kind) Windowed() bool { return k.Valid() && kinds[k].windowed }

// OnSteadyClock reports whether the At of k's states is a time on the steady
// clock of the process that holds them, and must be converted for another
// process.
func (k Kind) OnSteadyClock() bool { return k.Valid() && kinds[k].onSteadyClock }

// Divisible reports whether regions can divide a limit of k, and lend each other parts of it.
func (k Kind) Divisible() bool { return k.Valid() && kinds[k].divisible }

// Leasable reports whether cost under a limit of k can be debited in advance and spent elsewhere.
func (k Kind) Leasable() bool { return k.Valid() && kinds[k].leasable }

// Limit is an amount per window under one algorithm. It is immutable once in use.
type Limit struct {
	Kind Kind
	// Amount, 0…MaxAmount, is in units per Window. 0 means that the region has no
	// share: everything is refused for now.
	Amount   int64
	Burst    int64         // 0…MaxAmount, capacity of a bucket; unused by the other algorithms
	Window   time.Duration // MinWindow…MaxWindow; with Calendar set, the nominal length
	Calendar *Calendar     // fixed-window only: calendar windows instead of floor(time / Window)
	// MaxDelay, 0…LongestDelay, is the longest delay with which the limit allows a
	// check instead of refusing it. Zero means no queue. It must be 0 for a
	// FirstWindow or CellBucket.
	MaxDelay time.Duration
	// ValidUntil is the wall time, in Unix nanoseconds, from which Amount may be too
	// much: a region's share of a fixed-window changes with its windows. From then
	// on, the limit admits nothing, and the caller must look up the limit that
	// holds now. 0 means that the limit always holds.
	ValidUntil int64
}

// Capacity returns the most that can be taken at once from a fresh counter.
func (l *Limit) Capacity() int64 {
	if l.Kind.IsBucket() {
		return l.Burst
	}
	return l.Amount
}

// Equal reports whether l and o are the same limit, so that a count under one
// may continue under the other.
func (l *Limit) Equal(o *Limit) bool {
	if l == o {
		return true
	}
	a, b := *l, *o
	a.Calendar, b.Calendar = nil, nil
	a.ValidUntil, b.ValidUntil = 0, 0
	return a == b &&
		(l.Calendar == o.Calendar || l.Calendar != nil && o.Calendar != nil &&
			l.Calendar.String() == o.Calendar.String())
}

// Instant is one reading of a node's two clocks, both in nanoseconds since the Unix epoch.
type Instant struct {
	Steady int64 // advances with real time and is never stepped; used for durations
	Wall   int64 // follows the wall clock, but never goes back; used to align windows
}

// At returns the Instant at which both clocks read t, for tests and virtual time.
func At(t time.Time) Instant { return Instant{Steady: t.UnixNano(), Wall: t.UnixNano()} }

// TakeRecord describes a Take: when, in which window and under which limit it
// took its cost. With it, a Give or a late Force touches only what the cost
// came from.
type TakeRecord struct {
	// Steady is the steady time of the Take, in nanoseconds. If another process
	// took the cost, whose clock can't be read, it is the earliest time at which
	// that may have been.
	Steady int64
	Window int64 // number of the window it was counted in; of numbered windows only
	// Of a bucket:
	Amount     int64         // of the limit at the time; 0 if unknown
	ResetAfter time.Duration // how long all that it then owed would take to drain at Amount, rounded up
	// The caller of Give sets MaxRate and Returned. MaxRate is the highest amount at
	// which the bucket has drained since. It has two readers. Give treats a MaxRate
	// below Amount as Amount. A counters.Table treats 0 as unknown, and gives
	// nothing back unless its own notes know the rate.
	MaxRate  int64
	Returned int64 // how much else was put back into the bucket since
	// Reserved means that the cost is part of a reservation: as long as it may come
	// back, a table records the rates of its bucket. Late means that the
	// reservation was over when it was settled: a table may have forgotten these
	// rates.
	Reserved, Late bool
}

// TakeMark says when a limit took a cost. For numbered windows, it is the
// number of the window. For a log, it is the time of the entry relative to that
// of the decision. For a bucket, it is how long all that the bucket then owes
// takes to drain. It is unused for windows that begin with their first hit. In
// an answer about slots, it is how much longer the slots are held. Times are in
// nanoseconds.
type TakeMark int64

// AddReturned makes the record of a bucket's Take allow for n units that had
// been put back into the bucket before the Take. For a later Give, Returned is
// then all that was put back, before the Take and since. The record of a
// CellBucket does not say which window the bucket is in, so AddReturned leaves
// it as it is, and less comes back.
func (r *TakeRecord) AddReturned(l *Limit, n int64) {
	if n > 0 && l.Amount > 0 && l.Kind != CellBucket {
		hi, lo := mul(n, int64(l.Window))
		r.ResetAfter = time.Duration(addSat(int64(r.ResetAfter), floorDiv128(hi, lo, uint64(l.Amount))))
	}
}

// Never is the RetryAfter of a check that can never be allowed under this
// limit: its cost exceeds the capacity.
const Never time.Duration = -1

// Decision is a counter's answer to one check.
type Decision struct {
	Allowed bool
	// Reduced means that the check is refused because its cost exceeds a capacity
	// that is lower for now than the rules say. The algorithms don't set it; they
	// answer Never.
	Reduced    bool
	Remaining  int64         // units left, rounded down, never negative
	Used       int64         // units used, rounded up, with the cost if it was taken; exceeds the capacity in debt
	RetryAfter time.Duration // until the same check could be allowed; 0 if Allowed; Never if never
	ResetAfter time.Duration // until the counter is fresh again if left alone
	// MoreAfter is how long until Remaining would be greater if the counter is left
	// alone, whatever the check's cost. It is 0 if Remaining can't grow, or if it
	// is not known when it will.
	MoreAfter time.Duration
	Delay     time.Duration // until the admitted check may proceed; only for a leaky bucket or with MaxDelay
	// NetBorrowed is what a region has borrowed of other regions' shares, less what
	// it has lent. The region may use that much more than the capacity. The
	// algorithms don't know of loans.
	NetBorrowed int64
}

// State is what a counter remembers. The zero State is fresh.
//
//	                 Count                 Part                            At
//	buckets          whole units owed      further owed, 1/Window units    steady time of the last change
//	fixed-window     used in the window    room beyond Amount, see Widen   number of the window, see Window
//	sliding-window   used in the current   used in the previous window     number of the current window, see Window
//	FirstWindow      used in the window    the window                      steady time of the window's first hit
//	CellBucket       the window            nanoseconds per unit            steady time at which nothing will be owed: see there
//	Concurrency      slots held            time until the cost fits        time until all have ended
//
// No table stores the State of a Concurrency limit. Each slot is a note, and
// the State sums up the slots that are held.
//
// Invariant: Count >= 0, Part >= 0; in buckets other than CellBucket, Part < Window.
type State struct {
	Count, Part, At int64
}

// Fresh reports whether s, brought up to date by [Limit.Advance], equals a
// counter that was never used.
func (s State) Fresh() bool { return s.Count == 0 && s.Part == 0 }

// Legal reports whether a counter of a kind can be in a state with that Count
// and Part. The caller has checked that both are at least 0.
func (s State) Legal(k Kind) bool {
	switch {
	case !k.Valid():
		return false
	case k == CellBucket:
		return s.legalCell()
	case k == FirstWindow:
		return s.Fresh() || s.Count > 0 && s.Part > 0 && s.Part <= int64(MaxWindow)
	case k.IsBucket():
		return s.Part < int64(MaxWindow)
	}
	return true
}

// Advance brings s up to now without taking anything.
func (l *Limit) Advance(s State, now Instant) State {
	switch l.Kind {
	case TokenBucket, LeakyBucket:
		return l.drain(s, now.Steady)
	case FixedWindow:
		return l.advanceFixed(s, now.Wall)
	case SlidingWindow:
		return l.advanceSliding(s, now.Wall)
	case FirstWindow:
		return l.advanceFirst(s, now.Steady)
	case CellBucket:
		return advanceCell(s, now)
	}

	return s // a Log has no State, and slots end by themselves
}

// Take debits cost (0…MaxAmount) if the limit allows it, and reports whether it
// did. The returned state is up to date in either case. If a CellBucket
// refuses, it may still drain at another rate: see [Limit.ChangesRate]. A cost
// of 0 is always allowed, even in debt. With MaxDelay, the cost may be taken in
// the future: at now plus the check's Delay.
func (l *Limit) Take(s State, now Instant, cost int64) (State, bool) {
	s = l.Advance(s, now)
	if cost == 0 {
		return s, true
	}
	if l.isExpired(now) {
		return s, false
	}
	if l.Kind == CellBucket {
		return l.takeCell(s, now, cost)
	}
	if l.MaxDelay > 0 {
		return l.takeLater(s, now, cost)
	}
	if !l.allows(s, now, cost) {
		return s, false
	}

	return l.add(s, now, cost), true
}

// add adds cost to what an up-to-date state has used in the current window, or owes.
func (l *Limit) add(s State, now Instant, cost int64) State {
	switch {
	case l.Kind == CellBucket:
		return l.addToCell(s, now, cost)
	case l.Kind == FirstWindow && s.Count == 0:
		s.Part = int64(l.Window)
	}
	s.Count = addClamped(s.Count, cost)
	return s
}

// isExpired reports whether l no longer holds, see ValidUntil.
func (l *Limit) isExpired(now Instant) bool { return l.ValidUntil != 0 && now.Wall >= l.ValidUntil }

func (l *Limit) allows(s State, now Instant, cost int64) bool {
	switch l.Kind {
	case TokenBucket, LeakyBucket:
		room := l.Burst - s.Count - cost
		return room > 0 || room == 0 && s.Part == 0
	case FixedWindow:
		return s.Count <= l.Amount+s.Part-cost && !s.isQueued()
	case SlidingWindow:
		return !s.isQueued() && l.slidingAllows(s, now.Wall, cost)
	case FirstWindow, Concurrency:
		return s.Count <= l.Amount-cost
	}
	return false
}

// TakeRecord describes a Take at now, for a later Give. s is the state that the Take returned.
func (l *Limit) TakeRecord(s State, now Instant) TakeRecord {
	switch {
	case l.Kind == CellBucket:
		return TakeRecord{Steady: now.Steady, Amount: l.Amount, ResetAfter: l.cellOf(s, now).owed.duration()}
	case l.Kind.IsBucket():
		return TakeRecord{Steady: now.Steady, Amount: l.Amount, ResetAfter: l.drainTime(s.Count, s.Part, 0)}
	}
	return TakeRecord{Steady: now.Steady, Window: s.Window()}
}

// Force debits cost whether or not the limit allows it, as a debt. from says
// when the cost arose. Force drops a cost from a window that the state no
// longer holds; a cost from a window that has yet to begin here counts in the
// current one.
func (l *Limit) Force(s State, from TakeRecord, now Instant, cost int64) State {
	s = l.Advance(s, now)
	switch {
	case l.Kind == FirstWindow:
		return l.forceFirst(s, from, now, cost)
	case l.Kind.IsBucket() || from.Window >= s.Window():
		return l.add(s, now, cost)
	case l.Kind == SlidingWindow && from.Window == s.Window()-1:
		s.Part = addClamped(s.Part, cost)
	}
	return s
}

// ForceLate is Force for a cost that belongs to one taken at from. It debits
// nothing if all that was taken then is gone: the window is over, or the bucket
// has since had time to drain all that it can hold. The state of such a bucket
// is returned unchanged, because its rate may have changed.
func (l *Limit) ForceLate(s State, from TakeRecord, now Instant, cost int64) State {
	if l.Kind.IsBucket() {
		drainedHi, drainedLo := mul(max(0, now.Steady-from.Steady), l.Amount)
		heldHi, heldLo := mul(l.Burst, l.windowLengthOf(s))
		if !less(drainedHi, drainedLo, heldHi, heldLo) {
			return s
		}
	}
	return l.Force(s, from, now, cost)
}

// ForceCapped is Force, but does not raise usage above the capacity. So a late
// debt locks nobody out for longer than the capacity takes to come back. A
// fixed window or FirstWindow is an exception: it takes all of the cost,
// because the debt ends with the window.
func (l *Limit) ForceCapped(s State, from TakeRecord, now Instant, cost int64) State {
	s = l.Advance(s, now)
	if l.Kind == FixedWindow || l.Kind == FirstWindow {
		return l.Force(s, from, now, cost)
	}
	room := max(0, l.Capacity()-l.Used(s, now))
	if l.Kind == SlidingWindow && from.Window == s.Window()-1 {
		// Add only as much to the previous window as weighs no more than the remaining room.
		room = l.maxPreviousCount(s, now.Wall) - s.Part
	}
	return l.Force(s, from, now, max(0, min(cost, room)))
}

// Give puts back cost taken at from, as far as the state certainly still holds
// it. A window that is over takes nothing back, but a sliding-window counter
// still holds the previous one. A FirstWindow holds what was taken since it
// began.
//
// A bucket takes back what can't have drained since. Afterwards, it owes at
// least what it would owe if the cost had not been taken, except for what
// drains in a nanosecond. So what it admits stays within its burst and its
// rate. A Give of the same cost must happen at most once.
func (l *Limit) Give(s State, from TakeRecord, now Instant, cost int64) State {
	s = l.Advance(s, now)
	switch {
	case l.Kind == CellBucket:
		s = l.giveCell(s, from, now, cost)
	case l.Kind.IsBucket():
		s = l.giveBucket(s, from, now, cost)
	case l.Kind == FirstWindow:
		if from.Steady >= s.At {
			s = s.lowerFirst(cost)
		}
	case from.Window == s.Window():
		s.Count = max(0, s.Count-cost)
	case l.Kind == SlidingWindow && from.Window == s.Window()-1:
		s.Part = max(0, s.Part-cost)
	}

	return l.retreatQueue(s, now)
}

// Reward lowers usage by n units, whatever they were taken for. It is for
// administrators, and no guarantee covers it.
func (l *Limit) Reward(s State, now Instant, n int64) State {
	s = l.Advance(s, now)
	switch {
	case l.Kind == FixedWindow && s.isQueued():
		return l.shortenQueue(s, now, n)
	case l.Kind == FixedWindow:
		s.Count = max(0, s.Count-n)
		return s
	case l.Kind == CellBucket:
		return l.rewardCell(s, now, n)
	case l.Kind == FirstWindow:
		return s.lowerFirst(n)
	case l.Kind != SlidingWindow:
		return s.lower(n)
	}

	fromCurrent := min(n, s.Count)
	s.Count -= fromCurrent
	s.Part = max(0, s.Part-(n-fromCurrent))
	return l.retreatQueue(s, now)
}

// Describe returns the Decision on a check of cost that was allowed or refused.
// s is the state that Take returned.
func (l *Limit) Describe(s State, now Instant, cost int64, allowed bool) (d Decision) {
	l.DescribeInto(&d, s, now, cost, allowed)
	return d
}

// DescribeInto is Describe into an existing Decision. A struct with that many
// fields is returned in memory, and copying it right away stalls the processor.
func (l *Limit) DescribeInto(d *Decision, s State, now Instant, cost int64, allowed bool) {
	d.Allowed = allowed
	d.RetryAfter = 0
	d.ResetAfter = 0
	d.Delay = 0

	switch l.Kind {
	case TokenBucket, LeakyBucket:
		l.describeBucket(d, s, now, cost)
	case FixedWindow:
		l.describeFixed(d, s, now, cost)
	case SlidingWindow:
		l.describeSliding(d, s, now, cost)
	case FirstWindow:
		l.describeFirst(d, s, now, cost)
	case CellBucket:
		l.describeCell(d, s, now, cost)
	case Concurrency:
		l.describeSlots(d, s, cost)
	}

	d.MoreAfter = l.moreAfter(s, now, d.Remaining)
}

// Used returns the usage at now, rounded up; it exceeds the capacity in debt. s must be up to date.
func (l *Limit) Used(s State, now Instant) int64 {
	switch {
	case l.Kind == CellBucket:
		return l.cellOf(s, now).used()
	case l.Kind == FirstWindow:
		return s.Count
	case l.Kind.IsBucket():
		return s.Owed()
	case l.Kind == Concurrency:
		return s.Count
	case s.isQueued():
		return l.usedQueued(s)
	case l.Kind == SlidingWindow:
		return l.usedSliding(s, now.Wall)
	}

	return s.Count
}

// Peek returns the Decision of a Take, but takes nothing.
func (l *Limit) Peek(s State, now Instant, cost int64) Decision {
	s, ok := l.Take(s, now, cost)
	return l.Describe(s, now, cost, ok)
}

// Fullness returns how much of the capacity is used, from 0 (fresh) to 255 (full, or in debt).
func Fullness(remaining, capacity int64) uint8 {
	used := capacity - remaining
	switch {
	case remaining <= 0:
		return math.MaxUint8
	case used <= 0:
		return 0
	}

	// A capacity is at most MaxAmount, so 64 bits suffice.
	used *= math.MaxUint8

	// Usually little is used, and needs no division. The result is not 0, which
	// means fresh.
	if used < 2*capacity {
		return 1
	}
	return uint8(used / capacity)
}

func addClamped(a, b int64) int64 { return min(a+b, maxOwed) }
