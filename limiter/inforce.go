package limiter

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/rules"
)

// activeRules is a version of the rules with the metrics of its rules.
type activeRules struct {
	set        *rules.Set
	stats      []*ruleStats // by Rule.Index
	overall    *ruleStats   // counts each check once, however many rules applied
	hasMonthly bool         // some rule has `usage: monthly`
	// hasGlobal is true if regions divide some limits of the set. recordedVersion
	// is the latest version that the primary has recorded as honoured by all
	// regions; zero if there is none.
	hasGlobal       bool
	recordedVersion int64
	// steps holds, by Rule.Index, the step in force plus one; zero if there is
	// none. It is nil if no rule is adaptive.
	steps    []atomic.Int32
	loadLeft func(source string) time.Duration // see FollowLoads; may be nil

	slots *slotIndex
}

// SetRules puts set in force. Checks in flight finish with the rules they began
// with. A rule keeps its metrics as long as it keeps its name.
func (l *Limiter) SetRules(set *rules.Set) {
	l.mu.Lock()
	defer l.mu.Unlock()

	kept := make(map[string]*ruleStats)
	set = l.notHonoured.Stamp(set, l.authorityAt())
	if l.entries.Version() > 0 { // otherwise the set keeps its own entries, as in a replay
		var like *rules.Set
		if old := l.inForce.Load(); old != nil {
			like = old.set
		}
		set = set.WithEntries(l.entries, like)
	}

	next := &activeRules{set: set, slots: &slotIndex{}, overall: &ruleStats{}}
	next.hasMonthly = slices.ContainsFunc(set.Rules, func(rule *rules.Rule) bool { return rule.CountsMonthly })
	next.recordShares()

	if old := l.inForce.Load(); old != nil {
		next.overall = old.overall
		for i, name := range old.set.Names() {
			kept[name] = old.stats[i]
		}
	}

	for _, name := range set.Names() {
		st := kept[name]
		if st == nil {
			st = &ruleStats{}
		}
		delete(kept, name)
		next.stats = append(next.stats, st)
	}

	if slices.ContainsFunc(set.Rules, func(rule *rules.Rule) bool { return rule.Adaptive != nil }) {
		next.steps = make([]atomic.Int32, len(set.Rules))
	}

	// The counts left in kept are of rules that are gone. They go into the overall
	// counts, so that totals do not fall.
	for _, st := range kept {
		next.overall.absorb(st)
	}

	next.adapt(l.loadSteps)
	next.loadLeft = l.loadLeft
	before := l.inForce.Swap(next)
	if before != nil {
		l.noteOtherRates()
	}
}

// noteOtherRates records that the rates of limits may change now.
func (l *Limiter) noteOtherRates() {
	if l.clock != nil {
		l.ratesChangedAt.Store(l.clock.Now().Steady)
	}
}

// authorityAt returns a wall time (Unix nanoseconds) at which this node had
// authority and still used the rules in force, or zero if it has no authority
// now.
func (l *Limiter) authorityAt() int64 {
	if l.membership == nil {
		return 0
	}

	// The time is read before authority: a version that is not honoured at the
	// later moment was not honoured at the earlier one, either.
	now := l.clock.Now().Wall
	if !l.membership.Authority() {
		return 0
	}
	return now
}

// Rules returns the rules in force, or nil before the first SetRules.
func (l *Limiter) Rules() *rules.Set {
	if active := l.inForce.Load(); active != nil {
		return active.set
	}
	return nil
}

// findRule returns the rule that a caller names.
func (l *Limiter) findRule(active *activeRules, name string) (*rules.Rule, error) {
	rule := active.set.Rule(name)
	if rule == nil {
		l.unknownRules.Add(1)
		return nil, fmt.Errorf("%w %q", ErrUnknownRule, name)
	}
	return rule, nil
}

// version returns the version of the rules in force, or zero if there are none.
func (l *Limiter) version() int64 {
	if active := l.inForce.Load(); active != nil {
		return active.set.Version
	}
	return 0
}
