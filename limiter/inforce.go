package limiter

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/rules"
)

// activeRules is a version of the rules with the metrics of its rules.
type activeRules struct {
	set              *rules.Set
	stats            []*ruleMetrics // by Rule.Index
	overall          *ruleMetrics   // counts each check once, however many rules applied
	hasMonthly       bool           // some rule has `usage: monthly`
	hasDividedLimits bool           // regions divide some limits of the set
	// recordedVersion is the latest version that the primary has recorded as
	// honoured by all regions; zero if there is none.
	recordedVersion int64
	// steps holds, by Rule.Index, the step in force plus one; zero if there is
	// none. It is nil if no rule is adaptive.
	steps    []atomic.Int32
	loadLeft func(source string) time.Duration // see FollowLoads; may be nil

	slots *slotIndex
}

// markRatesChanging records that the rates of limits may change now.
func (l *Limiter) markRatesChanging() {
	if l.clock != nil {
		l.ratesChangedAt.Store(l.clock.Now().Steady)
	}
}

// authorityAt returns a wall time (Unix nanoseconds) at which this node had
// authority and still used the rules in force, or zero if it has no authority
// now.
func (l *Limiter) authorityAt() int64 {
	if l.cluster == nil {
		return 0
	}

	// Read the time before authority. If this node has authority at the later
	// moment, its region has not honoured the next version by then, so not by the
	// earlier moment either. In the other order, authority could end in between, and
	// the region could have honoured the next version by the time that is returned.
	now := l.clock.Now().Wall
	if !l.cluster.Authority() {
		return 0
	}
	return now
}

// Rules returns the rules in force, or nil before the first SetRules.
func (l *Limiter) Rules() *rules.Set {
	if active := l.active.Load(); active != nil {
		return active.set
	}
	return nil
}

// findRule returns the rule that a caller names. The error wraps ErrUnknownRule.
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
	if active := l.active.Load(); active != nil {
		return active.set.Version
	}
	return 0
}

// slotRule is a rule with limits of slots.
type slotRule struct {
	name    string
	longest time.Duration // the longest ttl
	stats   *ruleMetrics
}

// slotIndex finds rules with limits of slots. slotRules fills it when first called.
type slotIndex struct {
	once    sync.Once
	byGroup map[uint32]*slotRule
}

// slotRules returns the rules with limits of slots, by their group.
func (active *activeRules) slotRules() map[uint32]*slotRule {
	active.slots.once.Do(func() {
		active.slots.byGroup = map[uint32]*slotRule{}
		for name, longest := range active.set.SlotTTLs() {
			if rule := active.set.Rule(name); rule != nil {
				active.slots.byGroup[groupOfRule(name, false)] = &slotRule{name, longest, active.stats[rule.Index]}
			}
		}
	})
	return active.slots.byGroup
}

// slotTTL returns the longest ttl that a rule, identified by its group, has for
// slots. found is false if it has none.
func (active *activeRules) slotTTL(group uint32) (ttl time.Duration, found bool) {
	rule := active.slotRules()[group]
	if rule == nil {
		return 0, false
	}
	return rule.longest, true
}
