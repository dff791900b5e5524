package limiter

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

const (
	topStripes   = 16  // each subject belongs to one stripe
	topCapacity  = 256 // subjects in a stripe
	topFilter    = 64  // words of 64 bits in a stripe's filter
	topIntervals = int(5 * time.Minute / recentInterval)

	// exactSamples is the number of checks in a second that are all sampled. Each
	// Answer samples one in sampleEvery of its other checks.
	exactSamples = 256
	sampleEvery  = 128
)

// top keeps the subjects with the most events of one kind, in bounded memory.
// It counts events with the Space-Saving algorithm of Metwally, Agrawal and El
// Abbadi (ICDT 2005), which always keeps a subject with more than 1/256 of its
// stripe's events.
type top struct {
	stripe [topStripes]topStripe
}

type topStripe struct {
	mu        sync.Mutex // guards all but filter
	entries   []topEntry
	counts    [topCapacity]int64 // events, by entry; apart, so that the search for the minimum touches few cache lines
	index     map[rules.Hash]int // into entries
	replaced  int                // subjects replaced since the filter was rebuilt
	intervals int                // intervals that have ended
	// countsAtInterval is counts as of the end of each of the last intervals, by
	// the interval's number modulo topIntervals; 20 kB.
	countsAtInterval [topIntervals][topCapacity]int64
	// filter has a bit set for each subject in entries, and for some subjects that
	// have been replaced. Allowed checks read it without a lock, and need the lock
	// only if the bit is set. It is written under mu.
	filter [topFilter]atomic.Uint64
}

type topEntry struct {
	hash             rules.Hash
	rule             string
	key              keptKey
	checks           int64
	intervalsAtEntry int   // the stripe's intervals when the subject entered
	countAtEntry     int64 // the entry's count at that moment, which is the count of the replaced subject
}

func newTop() *top {
	t := &top{}
	for i := range t.stripe {
		t.stripe[i].index = make(map[rules.Hash]int)
	}
	return t
}

// record counts a check of h's subject, which was an event or not. priorChecks
// is how many such checks the refusing counter already held; a new entry counts
// them.
func (t *top) record(h *rules.Hit, event bool, priorChecks int64, q *Query) {
	if event || t.mayHold(h.Subject) {
		t.stripeOf(h.Subject).record(h, event, 1, priorChecks, q)
	}
}

// add counts weight events of h's subject.
func (t *top) add(h *rules.Hit, weight int64, q *Query) {
	t.stripeOf(h.Subject).record(h, true, weight, 0, q)
}

func (t *top) stripeOf(subject rules.Hash) *topStripe { return &t.stripe[subject.Lo%topStripes] }

// mayHold reports whether subject may be in t.
func (t *top) mayHold(subject rules.Hash) bool {
	word, bit := t.stripeOf(subject).filterBit(subject)
	return word.Load()&bit != 0
}

// filterBit returns a subject's word and bit in the filter.
func (stripe *topStripe) filterBit(subject rules.Hash) (word *atomic.Uint64, bit uint64) {
	at, bit := filterPlace(subject)
	return &stripe.filter[at], bit
}

// filterPlace returns the index of a subject's word in the filter, and the bit.
// It uses no part of the hash that is the same for all inline subjects.
func filterPlace(subject rules.Hash) (index int, bit uint64) {
	return int(subject.Lo % topFilter), 1 << (subject.Lo >> 58)
}

func (stripe *topStripe) record(h *rules.Hit, event bool, weight, priorChecks int64, q *Query) {
	stripe.mu.Lock()
	defer stripe.mu.Unlock()

	i, known := stripe.index[h.Subject]
	if !known {
		if !event {
			return
		}
		i = stripe.insert(h, q)
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
func (stripe *topStripe) insert(h *rules.Hit, q *Query) (i int) {
	e := topEntry{hash: h.Subject, rule: h.Rule.Name}
	i = len(stripe.entries)
	if i < topCapacity {
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
		if stripe.replaced > topCapacity {
			stripe.renewFilter()
		}
	}

	stripe.entries[i].key.set(h, q)
	stripe.entries[i].intervalsAtEntry = stripe.intervals
	stripe.entries[i].countAtEntry = stripe.counts[i]
	stripe.index[e.hash] = i
	return i
}

func (stripe *topStripe) renewFilter() {
	var fresh [topFilter]uint64
	for _, e := range stripe.entries {
		at, bit := filterPlace(e.hash)
		fresh[at] |= bit
	}
	for i := range fresh {
		stripe.filter[i].Store(fresh[i])
	}
	stripe.replaced = 0
}

// endInterval records the counts at the end of an interval.
func (t *top) endInterval() {
	for i := range t.stripe {
		stripe := &t.stripe[i]
		stripe.mu.Lock()
		stripe.countsAtInterval[stripe.intervals%topIntervals] = stripe.counts
		stripe.intervals++
		stripe.mu.Unlock()
	}
}

// recent returns how many events the i-th entry's subject has had since the
// oldest recorded interval ended, or since it entered. The caller must hold mu.
func (stripe *topStripe) recent(i int) int64 {
	e := &stripe.entries[i]
	if e.intervalsAtEntry > stripe.intervals-topIntervals {
		return stripe.counts[i] - e.countAtEntry
	}
	return stripe.counts[i] - stripe.countsAtInterval[stripe.intervals%topIntervals][i]
}

// Top lists subjects in order of o.By, and the nodes whose counts are included,
// this one first; its ID is zero without a cluster. In a cluster, Top adds up
// the counts of all nodes that answer within half a second. Each node has
// counted since its process started.
func (l *Limiter) Top(o TopOptions) ([]TopSubject, []ring.NodeID) {
	all := l.topHere(o.By)
	nodes := make([]ring.NodeID, 1)
	if l.membership != nil {
		nodes[0] = l.membership.Self
		gatherFrom(l.membership, MethodTop, []byte{byte(o.By)}, func(from ring.NodeID, other *topList) {
			all, nodes = append(all, other.list...), append(nodes, from)
		})
		all = mergeSubjects(all)
	}

	if o.Rule != "" {
		all = slices.DeleteFunc(all, func(subj TopSubject) bool { return subj.Rule != o.Rule })
	}

	o.N = min(o.N, maxTop)
	return rank(all, o), nodes
}

// topHere returns this node's part of a list, in no particular order.
func (l *Limiter) topHere(by TopBy) []TopSubject {
	switch {
	case by == TopNear:
		return l.nearLimits.list(l.clock.Now().Wall)
	case by < topKinds:
		return l.tops[by].list()
	}
	return nil
}

// list returns all subjects, in no particular order.
func (t *top) list() (all []TopSubject) {
	for i := range t.stripe {
		stripe := &t.stripe[i]
		stripe.mu.Lock()
		for i := range stripe.entries {
			e := &stripe.entries[i]
			all = append(all,
				TopSubject{Rule: e.rule, Key: e.key.values(), Count: stripe.counts[i], Checks: e.checks,
					Recent: stripe.recent(i)})
		}
		stripe.mu.Unlock()
	}
	return all
}
