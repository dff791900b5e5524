package limiter

import (
	"maps"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/rules"
)

// showSlots reports the metrics of slots, by rule. All slots whose limits came
// with the call are under rules.InlineName.
func (l *Limiter) showSlots(sink metrics.Sink) {
	active := l.inForce.Load()
	if active == nil || l.clock == nil {
		return
	}

	byGroup := active.slotRules()
	nameOf := func(group uint32) string {
		if rule := byGroup[group]; rule != nil {
			return rule.name
		}
		return rules.InlineName
	}

	held, expired := map[string]int64{}, map[string]int64{}
	for _, rule := range byGroup {
		held[rule.name], expired[rule.name] = 0, 0
	}
	for group, n := range l.table.HeldSlots(l.clock.Now()) {
		held[nameOf(group)] += n
	}
	for group, n := range l.table.Notes().ExpiredSlots() {
		expired[nameOf(group)] += n
	}

	for _, name := range slices.Sorted(maps.Keys(held)) {
		sink.Gauge("slots_held", "Slots that are held of the rule, in partitions that this node owns.",
			float64(held[name]), "rule", name)
	}
	for _, name := range slices.Sorted(maps.Keys(expired)) {
		sink.Count("slots_expired_total",
			"Slots that ended by themselves, neither renewed nor released: their holders leak them.",
			expired[name], "rule", name)
	}

	byName := func(a, b *slotRule) int { return strings.Compare(a.name, b.name) }
	for _, rule := range slices.SortedFunc(maps.Values(byGroup), byName) {
		sink.Count("slots_refused_total", "Acquires refused here for want of slots of the rule.",
			rule.stats.slotsRefused.Load(), "rule", rule.name)
		sink.Count("slots_renewed_total",
			"Renewals of slots of the rule, at this node as their owner.",
			rule.stats.slotRenewals.Load(), "rule", rule.name)
	}

	st := l.table.Notes().Stats()
	sink.Gauge("slots_bytes", "What slots take of their budget, copies included.", float64(st.Slots))
	sink.Count("slots_no_room_total",
		"Slots refused because there was no room, or no more for their rule or subject.",
		st.RefusedSlots)

	if l.membership != nil {
		sink.Count("slots_not_freed_total",
			"Releases that could not be carried out, and were dropped: these slots end by themselves.",
			l.membership.counts.slotTasksDropped.Load())
	}
}

// countSlotRefusal counts a check if hitLimits, the limits of one rule, refused
// it for want of slots.
func (st *ruleStats) countSlotRefusal(hitLimits []LimitAnswer) {
	for i := range hitLimits {
		if !hitLimits[i].Allowed && hitLimits[i].Limit.Kind == algorithms.Concurrency {
			st.slotsRefused.Add(1)
			return
		}
	}
}
