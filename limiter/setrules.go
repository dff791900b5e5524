package limiter

import (
	"slices"
	"sync/atomic"

	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

// SetRules puts set in force. Checks in flight finish with the rules they began
// with. A rule keeps its metrics as long as it keeps its name.
func (l *Limiter) SetRules(set *rules.Set) {
	l.mu.Lock()
	defer l.mu.Unlock()

	kept := make(map[string]*ruleMetrics)
	set = l.notHonoured.Stamp(set, l.authorityAt())
	if l.entries.Version() > 0 { // otherwise the set keeps its own entries, as in a replay
		var like *rules.Set
		if old := l.active.Load(); old != nil {
			like = old.set
		}
		set = set.WithEntries(l.entries, like)
	}

	next := &activeRules{set: set, slots: &slotIndex{}, overall: &ruleMetrics{}}
	next.hasMonthly = slices.ContainsFunc(set.Rules, func(rule *rules.Rule) bool { return rule.CountsMonthly })
	next.recordShares()

	if old := l.active.Load(); old != nil {
		next.overall = old.overall
		for i, name := range old.set.Names() {
			kept[name] = old.stats[i]
		}
	}

	for _, name := range set.Names() {
		st := kept[name]
		if st == nil {
			st = &ruleMetrics{}
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
	before := l.active.Swap(next)
	// Before the first set, no check of this process has used any rate.
	if before != nil {
		l.markRatesChanging()
	}
}

// SetEntries puts entries beside the rules in force. Checks in flight finish
// with the entries they began with.
func (l *Limiter) SetEntries(e *entries.State) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.entries = e
	old := l.active.Load()
	if old == nil {
		return
	}

	subjects := false
	e.Diff(old.set.Entries(), func(before, after *entries.Entry) {
		for _, entry := range [2]*entries.Entry{before, after} {
			subjects = subjects || entry != nil && entry.Kind == entries.Subject
		}
	})
	next := *old // it keeps its metrics and steps
	next.set = old.set.WithEntries(e, old.set)
	l.active.Store(&next)

	// Only entries of subjects change limits, and with them rates.
	if subjects {
		l.markRatesChanging()
	}
}
