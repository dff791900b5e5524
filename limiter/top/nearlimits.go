package top

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/rules"
)

const (
	nearStripes  = 16
	nearCapacity = 64 // subjects in a stripe
	recentNotes  = 16 // notes that a stripe remembers as the last ones
	// noteEvery is how often a subject is noted while nothing changes, as while all
	// its checks are refused, in nanoseconds.
	noteEvery = int64(100 * time.Millisecond)
	// expiryStep is by how much an expiry must change to be noted at once, in
	// nanoseconds. The shortest window is ten times as long.
	expiryStep = int64(time.Millisecond)
)

// NearLimits keeps the subjects that are nearest to their limits, however few
// checks they have. Each belongs to one stripe. If that is full, the subject
// replaces an expired one, or else the one that is farthest from its limit. The
// methods may be called concurrently.
type NearLimits struct{ stripe [nearStripes]nearStripe }

type nearStripe struct {
	mu      sync.Mutex // guards entries and index
	entries []nearEntry
	index   map[rules.Hash]int // into entries

	// recent has digests of the last notes. A note like one of them takes no lock:
	// otherwise, all checks of a subject that is being refused would queue for it.
	recent [recentNotes]atomic.Uint64
}

type nearEntry struct {
	hash        rules.Hash
	rule        string
	key         Key
	used, limit int64 // of the limit with the least headroom, after the last check
	expiresAt   int64 // Unix nanoseconds: nothing is used any more by then, if no check follows
}

// NewNearLimits returns a list without subjects.
func NewNearLimits() *NearLimits {
	n := &NearLimits{}
	for i := range n.stripe {
		n.stripe[i].index = make(map[rules.Hash]int)
	}
	return n
}

// Nearness is how near a subject is to the limit of which it has the least left.
// ResetAfter is how long until nothing is used any more, if no check follows.
type Nearness struct {
	Used, Limit int64
	ResetAfter  time.Duration
}

// Note records what a check of h's subject left of its limit at now, in Unix
// nanoseconds. While nothing changes, it records that ten times a second.
func (n *NearLimits) Note(h *rules.Hit, near Nearness, now int64, keys KeySource) {
	stripe := &n.stripe[h.Subject.Lo%nearStripes]
	last := &stripe.recent[h.Subject.Hi%recentNotes]
	digest := digestOf(h.Subject, near, now)
	if last.Load() == digest {
		return
	}

	last.Store(digest)

	e := nearEntry{
		hash: h.Subject, rule: h.Rule.Name,
		used: near.Used, limit: near.Limit, expiresAt: now + int64(near.ResetAfter),
	}
	stripe.mu.Lock()
	defer stripe.mu.Unlock()

	i, known := stripe.index[e.hash]
	if !known {
		i = stripe.entryFor(&e, now)
		if i < 0 {
			return
		}
	}

	place := &stripe.entries[i]
	if !known {
		keys.CopySubjectKey(&place.key, h)
		stripe.index[e.hash] = i
	}

	e.key = place.key
	*place = e
}

// digestOf returns a digest of a note. It is the same for all notes within
// noteEvery whose expiries differ by less than expiryStep, and nothing else does.
func digestOf(subject rules.Hash, near Nearness, now int64) uint64 {
	const ( // odd: the multipliers of SplitMix64 and of MurmurHash3
		a, b = 0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9
		c, d = 0x94d049bb133111eb, 0xff51afd7ed558ccd
	)
	expiresAt := now + int64(near.ResetAfter)
	return subject.Hi ^ uint64(near.Used)*a ^ uint64(near.Limit)*b ^
		uint64(now/noteEvery)*c ^ uint64(expiresAt/expiryStep)*d
}

// entryFor returns the index of an entry for e, or -1 if the stripe is full of
// subjects that are at least as near to their limits. The caller must hold mu.
func (stripe *nearStripe) entryFor(e *nearEntry, now int64) int {
	if len(stripe.entries) < nearCapacity {
		stripe.entries = append(stripe.entries, nearEntry{})
		return len(stripe.entries) - 1
	}

	i := stripe.farthest(now)
	if stripe.entries[i].expiresAt > now && !isNearer(e.used, e.limit, stripe.entries[i].used, stripe.entries[i].limit) {
		return -1
	}

	delete(stripe.index, stripe.entries[i].hash)
	return i
}

// farthest returns the index of an expired entry or, if there is none, of the
// entry that is farthest from its limit. The caller must hold mu.
func (stripe *nearStripe) farthest(now int64) (at int) {
	for i := range stripe.entries {
		e := &stripe.entries[i]
		if e.expiresAt <= now {
			return i
		}
		if isNearer(stripe.entries[at].used, stripe.entries[at].limit, e.used, e.limit) {
			at = i
		}
	}
	return at
}

// Subjects returns the subjects that still use something at now.
func (n *NearLimits) Subjects(now int64) (all []Subject) {
	for i := range n.stripe {
		stripe := &n.stripe[i]
		stripe.mu.Lock()
		for j := range stripe.entries {
			e := &stripe.entries[j]
			if e.expiresAt > now {
				all = append(all, Subject{Rule: e.rule, Key: e.key.values(), Used: e.used, Limit: e.limit})
			}
		}
		stripe.mu.Unlock()
	}
	return all
}
