package limiter

import (
	"sync"

	"github.com/rlnode/rlnode/rules"
)

const (
	nearStripes  = 16
	nearCapacity = 64 // subjects in a stripe
	// nearHeadroom is the headroom, in tenths of a limit, at or below which every
	// check is noted. Above it, only checks that are sampled are noted.
	nearHeadroom = 2
)

// nearLimits keeps the subjects that are nearest to their limits, whatever
// their number of checks. If it is full, a subject replaces the one that is
// farthest from its limit.
type nearLimits struct{ stripe [nearStripes]nearStripe }

type nearStripe struct {
	mu      sync.Mutex // guards the fields below
	entries []nearEntry
	index   map[rules.Hash]int // into entries
}

type nearEntry struct {
	hash        rules.Hash
	rule        string
	key         keptKey
	used, limit int64 // of the tightest limit, after the last check
	expiresAt   int64 // Unix nanoseconds: when nothing is used any longer, unless there are more checks
}

func newNearLimits() *nearLimits {
	n := &nearLimits{}
	for i := range n.stripe {
		n.stripe[i].index = make(map[rules.Hash]int)
	}
	return n
}

// note records what a check left of a limit.
func (n *nearLimits) note(h *rules.Hit, la *LimitAnswer, now int64, q *Query) {
	e := nearEntry{
		hash: h.Subject, rule: h.Rule.Name, used: la.Used, limit: la.share(), expiresAt: now + int64(la.ResetAfter),
	}
	stripe := &n.stripe[h.Subject.Lo%nearStripes]
	stripe.mu.Lock()
	defer stripe.mu.Unlock()

	i, known := stripe.index[e.hash]
	if !known {
		i = stripe.placeFor(&e, now)
		if i < 0 {
			return
		}
	}

	e.key = stripe.entries[i].key
	if !known {
		e.key.set(h, q)
		stripe.index[e.hash] = i
	}

	stripe.entries[i] = e
}

// placeFor returns the index of an entry that e may use, or -1 if the entries
// are full and e is no nearer to its limit than any other.
func (stripe *nearStripe) placeFor(e *nearEntry, now int64) int {
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

// farthest returns the index of an entry that has expired or, if there is none,
// of the one that is farthest from its limit.
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

// list returns the subjects that still use something.
func (n *nearLimits) list(now int64) (all []TopSubject) {
	for i := range n.stripe {
		stripe := &n.stripe[i]
		stripe.mu.Lock()
		for j := range stripe.entries {
			e := &stripe.entries[j]
			if e.expiresAt > now {
				all = append(all, TopSubject{Rule: e.rule, Key: e.key.values(), Used: e.used, Limit: e.limit})
			}
		}
		stripe.mu.Unlock()
	}
	return all
}
