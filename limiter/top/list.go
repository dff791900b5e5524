package top

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/rules"
)

const (
	stripes     = 16  // each subject belongs to one stripe
	capacity    = 256 // subjects in a stripe
	maxKept     = stripes * capacity
	filterWords = 64 // words of 64 bits in a stripe's filter

	// Interval is the time between two calls of EndInterval.
	Interval = 30 * time.Second
	// recentIntervals is how many intervals Subject.Recent spans.
	recentIntervals = int(5 * time.Minute / Interval)
)

// List keeps the subjects with the most events of one kind, by the Space-Saving
// algorithm. Its methods may be called concurrently.
type List struct {
	stripe [stripes]listStripe
}

type listStripe struct {
	mu        sync.Mutex // guards all but filter
	entries   []listEntry
	counts    [capacity]int64    // events, by entry; apart, so that the search for the minimum touches few cache lines
	index     map[rules.Hash]int // into entries
	replaced  int                // subjects replaced since the filter was rebuilt
	intervals int                // intervals that have ended
	// countsAtInterval is counts as of the end of each of the last intervals, by
	// the interval's number modulo recentIntervals; 20 kB.
	countsAtInterval [recentIntervals][capacity]int64
	// filter has a bit set for each subject in entries, and for some subjects that
	// have been replaced. Allowed checks read it without a lock, and need the lock
	// only if the bit is set. It is written under mu.
	filter [filterWords]atomic.Uint64
}

type listEntry struct {
	hash             rules.Hash
	rule             string
	key              Key
	checks           int64
	intervalsAtEntry int   // the stripe's intervals when the subject entered
	countAtEntry     int64 // the entry's count at that moment, which is the count of the replaced subject
}

// NewList returns a list without subjects.
func NewList() *List {
	list := &List{}
	for i := range list.stripe {
		list.stripe[i].index = make(map[rules.Hash]int)
	}
	return list
}

// Record counts a check of h's subject, which was an event or not. priorChecks
// is how many such checks the refusing counter already held; a new entry counts
// them.
func (list *List) Record(h *rules.Hit, event bool, priorChecks int64, keys KeySource) {
	if event || list.MayHold(h.Subject) {
		list.stripeOf(h.Subject).record(h, event, 1, priorChecks, keys)
	}
}

// Add counts weight events of h's subject.
func (list *List) Add(h *rules.Hit, weight int64, keys KeySource) {
	list.stripeOf(h.Subject).record(h, true, weight, 0, keys)
}

func (list *List) stripeOf(subject rules.Hash) *listStripe { return &list.stripe[subject.Lo%stripes] }

// MayHold reports whether subject may be in list.
func (list *List) MayHold(subject rules.Hash) bool {
	word, bit := list.stripeOf(subject).filterBit(subject)
	return word.Load()&bit != 0
}

// filterBit returns a subject's word and bit in the filter.
func (stripe *listStripe) filterBit(subject rules.Hash) (word *atomic.Uint64, bit uint64) {
	at, bit := filterBit(subject)
	return &stripe.filter[at], bit
}

// filterBit returns the index of a subject's word in the filter, and the bit.
// It uses no part of the hash that is the same for all inline subjects.
func filterBit(subject rules.Hash) (index int, bit uint64) {
	return int(subject.Lo % filterWords), 1 << (subject.Lo >> 58)
}

func (stripe *listStripe) record(h *rules.Hit, event bool, weight, priorChecks int64, keys KeySource) {
	stripe.mu.Lock()
	defer stripe.mu.Unlock()

	i, known := stripe.index[h.Subject]
	if !known {
		if !event {
			return
		}
		i = stripe.insert(h, keys)
		stripe.entries[i].checks += priorChecks
		word, bit := stripe.filterBit(h.Subject)
		word.Or(bit)
	}

	stripe.entries[i].checks += weight
	if event {
		stripe.counts[i] += weight
	}
}

// insert adds h's subject, and returns the index of its entry. If the stripe is
// full, the subject replaces the one with the fewest events, and inherits its
// count. The caller must hold mu.
func (stripe *listStripe) insert(h *rules.Hit, keys KeySource) (i int) {
	e := listEntry{hash: h.Subject, rule: h.Rule.Name}
	i = len(stripe.entries)
	if i < capacity {
		stripe.entries = append(stripe.entries, e)
	} else {
		i = 0
		for j, n := range stripe.counts {
			if n < stripe.counts[i] {
				i = j
			}
		}

		delete(stripe.index, stripe.entries[i].hash)
		e.checks = stripe.counts[i]
		e.key = stripe.entries[i].key
		stripe.entries[i] = e

		// The bits of replaced subjects stay until the filter is renewed. They make
		// some checks take the lock in vain.
		stripe.replaced++
		if stripe.replaced > capacity {
			stripe.renewFilter()
		}
	}

	keys.CopySubjectKey(&stripe.entries[i].key, h)
	stripe.entries[i].intervalsAtEntry = stripe.intervals
	stripe.entries[i].countAtEntry = stripe.counts[i]
	stripe.index[e.hash] = i
	return i
}

func (stripe *listStripe) renewFilter() {
	var fresh [filterWords]uint64
	for _, e := range stripe.entries {
		at, bit := filterBit(e.hash)
		fresh[at] |= bit
	}
	for i := range fresh {
		stripe.filter[i].Store(fresh[i])
	}
	stripe.replaced = 0
}

// EndInterval says that an interval is over.
func (list *List) EndInterval() {
	for i := range list.stripe {
		stripe := &list.stripe[i]
		stripe.mu.Lock()
		stripe.countsAtInterval[stripe.intervals%recentIntervals] = stripe.counts
		stripe.intervals++
		stripe.mu.Unlock()
	}
}

// recent returns how many events the i-th entry's subject has had since the
// oldest recorded interval ended, or since it entered. The caller must hold mu.
func (stripe *listStripe) recent(i int) int64 {
	e := &stripe.entries[i]
	if e.intervalsAtEntry > stripe.intervals-recentIntervals {
		return stripe.counts[i] - e.countAtEntry
	}
	return stripe.counts[i] - stripe.countsAtInterval[stripe.intervals%recentIntervals][i]
}

// Subjects returns all subjects, in no particular order.
func (list *List) Subjects() (all []Subject) {
	for i := range list.stripe {
		stripe := &list.stripe[i]
		stripe.mu.Lock()
		for i := range stripe.entries {
			e := &stripe.entries[i]
			all = append(all,
				Subject{Rule: e.rule, Key: e.key.values(), Count: stripe.counts[i], Checks: e.checks,
					Recent: stripe.recent(i)})
		}
		stripe.mu.Unlock()
	}
	return all
}
