package limiter

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
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

// TopBy says by what subjects are listed.
type TopBy uint8

// The lists of subjects.
const (
	TopRefused TopBy     = iota
	TopShadow            // refused if the rule were not a shadow rule
	TopUsed              // checks that were admitted
	TopDelayed           // checks that were allowed after a delay
	TopNear              // nearest to a limit
	topKinds   = TopNear // the lists that count events
)

// TopOptions say which subjects to list.
type TopOptions struct {
	By     TopBy
	Recent bool   // by the last five minutes; not for TopNear
	Rule   string // only of this rule; empty for all
	N      int    // how many, at most 1,000
}

// TopSubject is a subject with the events that put it into a list. Count counts
// them from the time the subject entered the list; it may be too high by the
// count of the subject that it replaced.
type TopSubject struct {
	Rule  string
	Key   []string
	Count int64
	// Checks counts checks since the subject entered the list, and the earlier
	// ones that the refusing counter held. It is at least Count.
	Checks int64
	// Recent counts the events of the last five minutes, to within half a minute.
	Recent int64
	// Used and Limit are of the subject's tightest limit after its last check, for
	// TopNear; 0 in other lists.
	Used, Limit int64
}

// top keeps the subjects with most events of one kind, in bounded memory. It
// counts events with the Space-Saving algorithm of Metwally, Agrawal and El
// Abbadi (ICDT 2005), which always keeps a subject with more than 1/256 of its
// stripe's events.
type top struct {
	stripe [topStripes]topStripe
}

type topStripe struct {
	mu        sync.Mutex // guards all but filter
	entries   []topEntry
	counts    [topCapacity]int64 // events, by entry; kept apart so that finding the minimum touches few cache lines
	index     map[rules.Hash]int // into entries
	replaced  int                // subjects replaced since the filter was rebuilt
	intervals int                // intervals that have ended
	// countsAtInterval holds counts as of the end of each of the last intervals, by number; 20 kB.
	countsAtInterval [topIntervals][topCapacity]int64
	// filter has a bit set for each subject in entries, and for some subjects that
	// have been replaced. Allowed checks read it before they take the lock. It is
	// written under mu.
	filter [topFilter]atomic.Uint64
}

type topEntry struct {
	hash             rules.Hash
	rule             string
	key              keptKey
	checks           int64
	intervalsAtEntry int   // the stripe's intervals when the subject entered
	countAtEntry     int64 // its count at that moment: the count of the replaced subject
}

func newTop() *top {
	t := &top{}
	for i := range t.stripe {
		t.stripe[i].index = make(map[rules.Hash]int)
	}
	return t
}

// count counts a check of h's subject, which was an event or not. priorChecks
// is the number of such checks that the refusing counter already held.
func (t *top) count(h *rules.Hit, event bool, priorChecks int64, q *Query) {
	if event || t.mayHold(h.Subject) {
		t.stripeOf(h.Subject).count(h, event, 1, priorChecks, q)
	}
}

// add counts weight events of h's subject.
func (t *top) add(h *rules.Hit, weight int64, q *Query) {
	t.stripeOf(h.Subject).count(h, true, weight, 0, q)
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

// filterPlace returns the index of a subject's word in the filter, and its bit.
// It uses no bits that are the same for all inline subjects.
func filterPlace(subject rules.Hash) (index int, bit uint64) {
	return int(subject.Lo % topFilter), 1 << (subject.Lo >> 58)
}

func (stripe *topStripe) count(h *rules.Hit, event bool, weight, priorChecks int64, q *Query) {
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

// insert adds h's subject. If the stripe is full, the subject replaces the one
// with the fewest events, and inherits its count.
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

		// The bits of subjects that were replaced stay until the filter is
		// renewed. They send some checks to the lock in vain.
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

// recent returns how many events an entry's subject had since the oldest
// recorded interval, or since it entered. The caller must hold mu.
func (stripe *topStripe) recent(i int) int64 {
	e := &stripe.entries[i]
	if e.intervalsAtEntry > stripe.intervals-topIntervals {
		return stripe.counts[i] - e.countAtEntry
	}
	return stripe.counts[i] - stripe.countsAtInterval[stripe.intervals%topIntervals][i]
}

// Top lists subjects in order of o.By, and the nodes whose counts are included,
// this one first. In a cluster it adds up the counts of all nodes
// that answer within half a second. Counts are since each node's process
// started.
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

// topHere returns what this node has of a list.
func (l *Limiter) topHere(by TopBy) []TopSubject {
	switch {
	case by == TopNear:
		return l.nearLimits.list(l.clock.Now().Wall)
	case by < topKinds:
		return l.tops[by].list()
	}
	return nil
}

// rank sorts subjects and returns the first ones.
func rank(all []TopSubject, o TopOptions) []TopSubject {
	n := max(o.N, 0)
	switch {
	case o.By == TopNear:
		return rankByNear(all, n)
	case o.Recent:
		return rankByRecent(all, n)
	}
	return rankByCount(all, n)
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

// rankByCount sorts all, those with most events first, and returns the first n.
func rankByCount(all []TopSubject, n int) []TopSubject {
	slices.SortFunc(all, func(a, b TopSubject) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Rule, b.Rule), slices.Compare(a.Key, b.Key))
	})
	return all[:min(n, len(all))]
}

// rankByRecent sorts all, those with most events in the last five minutes
// first, and returns the first n.
func rankByRecent(all []TopSubject, n int) []TopSubject {
	all = rankByCount(all, len(all))
	slices.SortStableFunc(all, func(a, b TopSubject) int { return cmp.Compare(b.Recent, a.Recent) })
	return all[:min(n, len(all))]
}

const (
	maxTop = 1000 // bounds the subjects that Top returns
	// maxTopKept bounds the subjects in one node's list: all that the node keeps.
	maxTopKept = topStripes * topCapacity
	// maxTopBytes bounds a node's list as sent. The last subjects are dropped.
	maxTopBytes = 4 << 20
	maxKeyParts = 32
)

// mergeSubjects adds up the counts that several nodes report for the same subject.
func mergeSubjects(all []TopSubject) []TopSubject {
	at := make(map[string]int, len(all))
	out := all[:0]
	for _, subj := range all {
		// The encoded lengths keep different keys from looking alike.
		name := string(wire.AppendTexts(wire.AppendText(nil, subj.Rule), subj.Key))
		if i, ok := at[name]; ok {
			out[i].Count += subj.Count
			out[i].Checks += subj.Checks
			out[i].Recent += subj.Recent
			if nearer(&subj, &out[i]) {
				out[i].Used, out[i].Limit = subj.Used, subj.Limit
			}
			continue
		}

		at[name] = len(out)
		out = append(out, subj)
	}

	return out
}

// truncateToMessage returns the leading part of list that fits a message.
func truncateToMessage(list []TopSubject) *topList {
	size := 0
	for i := range list {
		size += len(list[i].Rule) + len(strings.Join(list[i].Key, "")) + 64
		if size > maxTopBytes {
			return &topList{list[:i]}
		}
	}
	return &topList{list}
}

// topList is the reply to MethodTop.
type topList struct{ list []TopSubject }

// Code implements wire.Message.
func (list *topList) Code(c *wire.Coder) {
	wire.List(c, &list.list, maxTopKept, 7, func(subj *TopSubject) { subj.code(c) })
}

func (subj *TopSubject) code(c *wire.Coder) {
	const maxTopText = 1 << 20
	c.Text(&subj.Rule, maxTopText)
	subj.Rule = strings.ToValidUTF8(subj.Rule, "\uFFFD")
	c.Texts(&subj.Key, maxKeyParts, maxTopText)
	for _, n := range []*int64{&subj.Count, &subj.Checks, &subj.Recent, &subj.Used, &subj.Limit} {
		wire.Number(c, n, 1<<62)
	}
}

// serveTop answers another node with what this one has of a list.
func (l *Limiter) serveTop(body []byte, to Responder) {
	if len(body) != 1 || TopBy(body[0]) > TopNear {
		to.Fail(CodeMessage, "unknown list of subjects")
		return
	}
	by := TopBy(body[0])
	l.membership.serveInBackground(to, func() {
		to.Reply(wire.Encode(nil, truncateToMessage(rank(l.topHere(by), TopOptions{By: by, N: maxTopKept}))))
	})
}

// sampleWeight returns how many checks the current one stands for in the list
// of subjects used most: 0 if it is not sampled. A sample takes a lock. So only
// one in sampleEvery is sampled if there are very many checks.
func (l *Limiter) sampleWeight(sc *scratch) int64 {
	// Read exactLeft before lowering it: once it is used up, no check writes to
	// it.
	if l.exactLeft.Load() > 0 && l.exactLeft.Add(-1) >= 0 {
		return 1
	}
	sc.unsampled++
	if sc.unsampled < sampleEvery {
		return 0
	}
	sc.unsampled = 0
	return sampleEvery
}

// noteUse adds a decided check of h's subject to the lists of those that use
// most, are delayed, or are near to a limit.
func (l *Limiter) noteUse(h *rules.Hit, limits []LimitAnswer, allowed bool, weight int64, q *Query) {
	if len(limits) == 0 {
		return // Envoy's unlimited descriptors have none
	}

	tightest := tightestOf(limits)
	delayed := false
	for i := range limits {
		delayed = delayed || allowed && limits[i].Delay > 0 && !h.Rule.Shadow
	}

	if allowed && weight > 0 {
		l.tops[TopUsed].add(h, weight, q)
	}
	if delayed {
		l.tops[TopDelayed].add(h, 1, q)
	}
	if l.clock != nil && (weight > 0 || tightest.headroom() <= nearHeadroom) {
		l.nearLimits.note(h, tightest, l.clock.Now().Wall, q)
	}
}

// topOf returns the list in which the refusals of a rule are counted.
func (l *Limiter) topOf(rule *rules.Rule) *top {
	if rule.Shadow {
		return l.tops[TopShadow]
	}
	return l.tops[TopRefused]
}
