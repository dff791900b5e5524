package limiter

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/rules"
)

// forwardBounds are the upper bounds of counts.forwardTimes.
var forwardBounds = [...]time.Duration{
	25 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond,
	500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
}

// counts holds counts since the process started; Metrics says what they mean.
type counts struct {
	forwardTimes                                                            [len(forwardBounds) + 1]atomic.Int64
	forwardTimeSum                                                          atomic.Int64
	coalesced, failed, standbyDecisions, served, relayed, givenBack, busy   atomic.Int64
	leaseSpends, cachedRefusals, renewals, granted, grantsRefused, returned atomic.Int64
	debtsDropped, lost, slotTasksDropped                                    atomic.Int64
	lent, lentUnits, borrowed, borrowedUnits, unitsLost, loansFailed        atomic.Int64
	fallback                                                                [4]atomic.Int64
}

// addForward counts a question that was answered after d.
func (n *counts) addForward(d time.Duration) {
	i, _ := slices.BinarySearch(forwardBounds[:], d)
	n.forwardTimes[i].Add(1)
	n.forwardTimeSum.Add(int64(d))
}

// DecisionNames holds the names of the decisions, indexed by their constants.
var DecisionNames = [...]string{"allowed", "refused", "shadow-refused"}

// headroomBounds are the upper bounds of RuleStats.Headroom.
var headroomBounds = []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}

// Metrics reports the limiter's metrics. A standalone node leaves out those
// about other nodes, regions, reservations and requests with an id.
func (l *Limiter) Metrics(sink metrics.Sink) {
	for _, stats := range l.Stats() {
		stats.show(sink)
		if stats.Rule == "" {
			unmatched := int64(0)
			for decision := range stats.Checks {
				unmatched += stats.Checks[decision][ByNone]
			}
			sink.Count("unmatched_total",
				"Checks that matched neither a rule nor a list, decided by `default`.", unmatched)
		}
	}

	l.showEntries(sink)
	l.showSlots(sink)
	sink.Count("unknown_rule_total", "Calls that named a rule that does not exist.", l.unknownRules.Load())
	sink.Count("undeclared_attributes_total",
		"Attributes of checks that the document does not declare. They are ignored.",
		l.undeclared.Load())

	if set := l.Rules(); set != nil {
		sink.Gauge("inline_sets",
			"Sets of inline limits kept compiled. Any more are compiled for each call and take no lease.",
			float64(set.Interned()))
	}

	if l.cluster == nil {
		return
	}

	l.showForwards(sink)
	l.showLoans(sink)
	l.showReservations(sink)

	lead := time.Duration(l.table.MaxClockLead(l.clock.Now()))
	sink.Gauge("clock_lead_seconds",
		"How far the clock by which a partition counts its windows is ahead of this node's, at most. Counters came "+
			"from a node, or from disk, whose clock was ahead.", lead.Seconds())
}

// countReporter returns a function that reports a count to sink.
func countReporter(sink metrics.Sink) func(name, help string, n *atomic.Int64, labels ...string) {
	return func(name, help string, n *atomic.Int64, labels ...string) {
		sink.Count(name, help, n.Load(), labels...)
	}
}

// showForwards reports the metrics of questions to other nodes and of leases.
func (l *Limiter) showForwards(sink metrics.Sink) {
	f := &l.cluster.counts
	seconds := make([]int64, len(f.forwardTimes))
	for i := range f.forwardTimes {
		seconds[i] = f.forwardTimes[i].Load()
	}

	sink.Histogram("forward_seconds",
		"Time from a question to another node until its answer. A question may stand for several checks, or renew a lease.",
		metrics.Seconds(forwardBounds[:]), seconds, time.Duration(f.forwardTimeSum.Load()).Seconds())

	for i := range f.fallback {
		sink.Count("fallback_total",
			"Subjects decided without the owner or the standby, by their rule's on_partition.",
			f.fallback[i].Load(),
			"on_partition", rules.OnPartition(i).String())
	}

	count := countReporter(sink)
	count("forward_coalesced_total", "Checks that shared a message with an earlier identical check.", &f.coalesced)
	count("forward_failed_total", "Questions that another node did not answer or could not decide.", &f.failed)
	count("standby_decisions_total", "Decisions as a standby, for owners that can't be reached.", &f.standbyDecisions)
	count("served_total", "Decisions as an owner, for other nodes.", &f.served)
	count("relayed_total", "Questions from other nodes forwarded to the owner.", &f.relayed)
	count("given_back_total",
		"Answers from other nodes that were taken back, because another limit refused the check or the answer came too late.",
		&f.givenBack)
	count("busy_total", "Messages from other nodes and regions turned away because too many were waiting.", &f.busy)
	sink.Gauge("leases",
		"Grants that this node holds from other nodes. A subject's lease has at most two.",
		float64(l.cluster.leases.held.GrantCount()))
	sink.Gauge("leases_granted", "Grants that other nodes hold from this node, or may still return.",
		float64(l.cluster.leases.granted.Outstanding()))
	count("lease_spent_total", "Subjects decided from a lease.", &f.leaseSpends)
	count("lease_cached_refusals_total",
		"Subjects refused because their owner had refused them a moment before.",
		&f.cachedRefusals)
	count("lease_renewals_total", "Questions to owners that only renewed a lease, in the background.", &f.renewals)
	count("lease_granted_total", "Grants that this owner has made.", &f.granted)
	count("lease_refused_total",
		"Lease requests not granted because the limit is nearly used up or too small.",
		&f.grantsRefused)
	count("lease_returned_total", "Limits for which a lease returned unspent quota to this owner.", &f.returned)
	count("lease_lost_total",
		"Limits for which a lease's unspent quota was not returned: the counters it came from are gone, or their owner could not be reached.",
		&f.lost)
}

// showLoans reports the metrics of loans between regions.
func (l *Limiter) showLoans(sink metrics.Sink) {
	f := &l.cluster.counts
	count := countReporter(sink)

	const loans, units = "Loans of shares that this owner made to other regions or received from them.", "Units in those loans."
	count("loans_total", loans, &f.lent, "direction", "lent")
	count("loans_total", loans, &f.borrowed, "direction", "borrowed")
	count("loan_units_total", units, &f.lentUnits, "direction", "lent")
	count("loan_units_total", units, &f.borrowedUnits, "direction", "borrowed")
	count("loans_failed_total", "Requests for a loan that another region did not answer.", &f.loansFailed)
	count("loan_units_lost_total",
		"Units lent to this owner that it could not credit: lost until the window ends.",
		&f.unitsLost)
}

// showReservations reports the metrics of reservations and of answers kept for
// their ids.
func (l *Limiter) showReservations(sink metrics.Sink) {
	rs := &l.reservations
	count := countReporter(sink)

	count("reservations_total", "Reservations made here.", &rs.reserved)
	const settlings = "Settlements of reservations decided here: settled, repeated, or of an unknown reservation."
	count("settlings_total", settlings, &rs.settled, "result", "settled")
	count("settlings_total", settlings, &rs.repeated, "result", "repeated")
	count("settlings_total", settlings, &rs.unknown, "result", "unknown")
	const ends = "Ends of reservations with on_expiry that nobody settled in time: carried out here, or not to be carried out, because the home could not be reached."
	count("reservation_ends_total", ends, &rs.expired, "result", "carried-out")
	count("reservation_ends_total", ends, &rs.unscheduled, "result", "lost")
	count("refunds_dropped_total",
		"Refunds of reservations that were lost: their counters are gone, or their owners could not be reached in time.",
		&rs.dropped)
	count("settle_debts_dropped_total",
		"Debts of reservations dropped because their owners could not be reached.",
		&l.cluster.counts.debtsDropped)
	kept := l.table.Notes().Stats()
	sink.Gauge("reservations",
		"Reservations whose home is here, as owner or standby, and that are not settled.",
		float64(kept.Open))
	sink.Gauge("reservations_bytes", "What reservations take of their budget, settled ones included.",
		float64(kept.Reservations))
	sink.Gauge("reservations_max_bytes", "The budget for reservations.", float64(kept.MaxReservations))
	sink.Count("reservations_refused_total",
		"Reservations refused because there was no room, or no more for their rule or subject.",
		kept.RefusedReserves)
	sink.Gauge("request_answer_bytes", "What answers to checks with an id take that are kept here.", float64(kept.Answers))
	count("requests_repeated_total",
		"Requests with an id that repeated an earlier one and got its answer again.",
		&l.requests.repeated)
	sink.Count("request_answers_refused_total",
		"Writes with an id refused because there was no room to keep their answer.",
		kept.RefusedWrites)
}

// show reports the metrics of one rule, without decisions that never happened.
func (stats *RuleStats) show(sink metrics.Sink) {
	for decision := range stats.Checks {
		for by, n := range stats.Checks[decision] {
			if n > 0 {
				sink.Count("checks_total", "Checks decided. The rule is empty if no rule decided.", n,
					"rule", stats.Rule, "decision", DecisionNames[decision], "decided_by", DecidedBy(by).String())
			}
		}
	}

	if stats.Rule == "" {
		return // without a rule there is neither headroom nor feedback
	}

	sink.Count("false_positives_total", "Refusals that feedback reported as wrong.", stats.FalsePositives, "rule", stats.Rule)
	tenths := int64(0)
	for i, n := range stats.Headroom {
		tenths += int64(i) * n
	}

	sink.Histogram("headroom_ratio",
		"Part of the rule's tightest limit that was left after a check, in tenths, rounded up.",
		headroomBounds, stats.Headroom[:], float64(tenths)/10, "rule", stats.Rule)
}

// showSlots reports the metrics of slots, by rule. All slots whose limits came
// with the call are under rules.InlineName.
func (l *Limiter) showSlots(sink metrics.Sink) {
	active := l.active.Load()
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

	if l.cluster != nil {
		sink.Count("slots_not_freed_total",
			"Releases that could not be carried out, and were dropped: these slots end by themselves.",
			l.cluster.counts.slotTasksDropped.Load())
	}
}
