package limiter

import (
	"math"
	"strings"
	"sync"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// activityAge bounds the age of a cached round of answers. However many callers
	// there are, this node asks the others at most five times a second.
	activityAge = 200 * time.Millisecond
	// maxActiveRules bounds the rules in a node's counts. It is also the bound on
	// the rules of a document.
	maxActiveRules = 1000
	countsLen      = decisions * (int(ByNone) + 1) // how many numbers a Counts has
	// maxActivityName bounds a rule's name in a node's counts, in bytes. The
	// counts leave out rules with longer names.
	maxActivityName = 4 << 10
)

// RuleCounts counts the checks that one rule applied to.
type RuleCounts struct {
	Rule   string
	Checks Counts
}

// NodeActivity is what one node has decided since its process began. A check
// counts once in Checks, and once in Rules for each rule that applied to it.
type NodeActivity struct {
	Node   ring.NodeID   // zero for a standalone node
	Boot   uint64        // of the process, 0 for a standalone node; when it changes, the counts start again from zero
	Uptime time.Duration // age of the process when the counts were read; whole milliseconds
	Vitals Vitals
	Checks Counts
	Rules  []RuleCounts // rules with any checks; at most 1,000
}

// Vitals is how much a node uses of its memory and disk, and how much it may
// use. Unknown values and missing bounds are 0.
type Vitals struct {
	Counters, MaxCounters int64
	Memory, MaxMemory     int64 // bytes of the process
	Disk, DiskFree        int64 // bytes in the data directory, and free bytes on its disk
}

func (v *Vitals) code(c *wire.Coder) {
	for _, n := range []*int64{&v.Counters, &v.MaxCounters, &v.Memory, &v.MaxMemory, &v.Disk, &v.DiskFree} {
		wire.Number(c, n, math.MaxInt64)
	}
}

// UseVitals makes the limiter report v in its activity, except for the
// counters, which the limiter counts itself. v may be called concurrently. Call
// UseVitals before the first check.
func (l *Limiter) UseVitals(v func() Vitals) { l.vitals = v }

// cachedRound caches the answers of the last round of questions, so that
// concurrent callers share one round.
type cachedRound[T any] struct {
	mu      sync.Mutex    // held during a round; guards the rest
	ended   time.Duration // by the clock that latest is given
	answers *T            // nil before the first round
}

// latest returns the answers of the last round if it ended less than age ago,
// and otherwise runs a new round. now reads a monotonic clock.
func (r *cachedRound[T]) latest(now func() time.Duration, age time.Duration, round func() *T) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answers == nil || now()-r.ended >= age {
		r.answers = round()
		r.ended = now()
	}
	return r.answers
}

// Activity returns what each node has decided: this node first, then every
// other node that answers within half a second. The caller must not modify the
// result: it is shared with other callers for up to 200 ms.
func (l *Limiter) Activity() []NodeActivity {
	uptime := func() time.Duration { return time.Since(l.startedAt) }
	return *l.activityRound.latest(uptime, activityAge, func() *[]NodeActivity {
		all := []NodeActivity{l.activityHere()}
		if l.cluster != nil {
			gatherFrom(l.cluster, MethodActivity, nil, func(from ring.NodeID, activity *NodeActivity) {
				activity.Node = from
				all = append(all, *activity)
			})
		}
		return &all
	})
}

func (l *Limiter) activityHere() NodeActivity {
	activity := NodeActivity{Boot: l.boot, Uptime: time.Since(l.startedAt).Truncate(time.Millisecond)}
	if l.cluster != nil {
		activity.Node = l.cluster.Self
	}
	if l.vitals != nil {
		activity.Vitals = l.vitals()
	}

	table := l.table.Stats()
	activity.Vitals.Counters = table.Counters
	activity.Vitals.MaxCounters = table.Max
	active := l.active.Load()
	if active == nil {
		return activity
	}

	activity.Checks = active.checks()

	for i, st := range active.stats {
		name := active.set.Names()[i]
		if len(activity.Rules) < maxActiveRules && len(name) <= maxActivityName {
			if counts := st.read(name).Checks; counts != (Counts{}) {
				activity.Rules = append(activity.Rules, RuleCounts{Rule: name, Checks: counts})
			}
		}
	}

	return activity
}

// Code implements wire.Message.
func (activity *NodeActivity) Code(c *wire.Coder) {
	wire.Fixed(c, &activity.Boot)
	c.Millis(&activity.Uptime, math.MaxInt64)
	activity.Vitals.code(c)
	activity.Checks.code(c)
	wire.List(c, &activity.Rules, maxActiveRules, 1+countsLen, func(counts *RuleCounts) {
		c.Text(&counts.Rule, maxActivityName)
		counts.Rule = strings.ToValidUTF8(counts.Rule, "\uFFFD")
		counts.Checks.code(c)
	})
}

func (cs *Counts) code(c *wire.Coder) {
	const maxCount = 1 << 53 // so that a sum over all nodes stays far below math.MaxInt64
	for decision := range cs {
		for by := range cs[decision] {
			wire.Number(c, &cs[decision][by], maxCount)
		}
	}
}
