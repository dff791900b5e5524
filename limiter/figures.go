package limiter

import (
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/figures"
	"github.com/rlnode/rlnode/rules"
)

// ForwardBounds are the upper bounds of ClusterStats.Seconds.
var ForwardBounds = [...]time.Duration{
	25 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
}

// ClusterStats are counts since the process began.
type ClusterStats struct {
	Forwards  int64                         // messages with questions that others answered
	Seconds   [len(ForwardBounds) + 1]int64 // of those, by the first of ForwardBounds that holds; the last is beyond all
	Sum       time.Duration                 // that they took together
	Coalesced int64                         // checks that shared a message with one before them
	Failed    int64                         // questions that were not answered, or that the one asked could not decide
	Fallback  [4]int64                      // subjects decided without owner and standby, by rules.OnPartition
	Acted     int64                         // decisions here as a standby
	Served    int64                         // decisions here for other nodes
	Relayed   int64                         // questions passed on
	Given     int64                         // messages that gave back what another node's refusal made void
	Busy      int64                         // questions turned away
	Leases    int64                         // grants held here
	Out       int64                         // grants that others hold of this node
	Leased    int64                         // subjects of checks spent from leases
	Cached    int64                         // subjects of checks refused as their owners refused a moment ago
	Renewals  int64                         // questions that only renew a lease
	Granted   int64                         // wishes for leases that were granted here
	Ungranted int64                         // and that were not
	Returned  int64                         // limits of which leases came back here unspent
	// Reservations are counted by a node by itself too.
	Reservations ReservationStats
	Requests     RequestStats // likewise
	// Loans to other regions made here, and from them: how many, and of how many units. Lost are units that were lent to
	// this node and came too late, or to where there was no room.
	Lent, LentUnits, Borrowed, BorrowedUnits, LoansFailed, LoanUnitsLost int64

	Uncharged int64 // debts of reservations that their owners could not be told
}

type tallies struct {
	seconds                                                     [len(ForwardBounds) + 1]atomic.Int64
	sum                                                         atomic.Int64
	coalesced, failed, acted, served, relayed, given, busyness  atomic.Int64
	leased, remembered, renewals, granted, ungranted, returned  atomic.Int64
	uncharged                                                   atomic.Int64
	lent, lentUnits, borrowed, borrowedUnits, lost, loansFailed atomic.Int64
	fallback                                                    [4]atomic.Int64
}

// answered counts a question that took d.
func (f *tallies) answered(d time.Duration) {
	i := 0
	for i < len(ForwardBounds) && d > ForwardBounds[i] {
		i++
	}
	f.seconds[i].Add(1)
	f.sum.Add(int64(d))
}

// ClusterStats returns what this node did together with others; zeros for a node by itself.
func (l *Limiter) ClusterStats() (s ClusterStats) {
	s.Reservations, s.Requests = l.ReservationStats(), l.RequestStats()
	if l.member == nil {
		return s
	}
	f := &l.member.figures
	for i := range s.Seconds {
		s.Seconds[i] = f.seconds[i].Load()
		s.Forwards += s.Seconds[i]
	}
	for i := range s.Fallback {
		s.Fallback[i] = f.fallback[i].Load()
	}
	s.Sum, s.Coalesced, s.Failed = time.Duration(f.sum.Load()), f.coalesced.Load(), f.failed.Load()
	s.Acted, s.Served, s.Relayed = f.acted.Load(), f.served.Load(), f.relayed.Load()
	s.Given, s.Busy = f.given.Load(), f.busyness.Load()
	s.Leases, s.Out = l.member.leases.Count(), l.member.book.Out()
	s.Leased, s.Cached, s.Renewals = f.leased.Load(), f.remembered.Load(), f.renewals.Load()
	s.Granted, s.Ungranted, s.Returned = f.granted.Load(), f.ungranted.Load(), f.returned.Load()
	s.Uncharged = f.uncharged.Load()
	s.Lent, s.LentUnits, s.Borrowed, s.BorrowedUnits = f.lent.Load(), f.lentUnits.Load(), f.borrowed.Load(), f.borrowedUnits.Load()
	s.LoansFailed, s.LoanUnitsLost = f.loansFailed.Load(), f.lost.Load()
	return s
}

// DecisionNames are the decisions in words, by their constants.
var DecisionNames = [...]string{"allowed", "refused", "shadow-refused"}

// headroomBounds are the upper bounds of RuleStats.Headroom.
var headroomBounds = []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}

// Figures shows what the limiter counts. What it does with others is left out of a node by itself.
func (l *Limiter) Figures(s figures.Sink) {
	for _, r := range l.Stats() {
		r.show(s)
	}
	if l.member == nil {
		return
	}
	st := l.ClusterStats()
	st.Figures(s)
}

// Figures shows what a node did together with others.
func (st *ClusterStats) Figures(s figures.Sink) {
	s.Histogram("forward_seconds", "Time from a question to another node to the answer; one may be of several checks, or renew a lease.",
		figures.Seconds(ForwardBounds[:]), st.Seconds[:], st.Sum.Seconds())
	for i, n := range st.Fallback {
		s.Count("fallback_total", "Subjects decided without owner and standby, by what their rule says for that.", n,
			"on_partition", rules.OnPartition(i).String())
	}
	s.Count("forward_coalesced_total", "Checks that shared a message with one alike before them.", st.Coalesced)
	s.Count("forward_failed_total", "Questions to other nodes that were not answered, or that they could not decide.", st.Failed)
	s.Count("standby_decisions_total", "Decisions as a standby, for owners that can't be reached.", st.Acted)
	s.Count("served_total", "Decisions as an owner, for other nodes.", st.Served)
	s.Count("relayed_total", "Questions of other nodes passed on to the owner.", st.Relayed)
	s.Count("given_back_total", "Messages that gave back what was taken for a check that another node refused.", st.Given)
	s.Count("busy_total", "Questions of other nodes turned away because too many were waiting.", st.Busy)
	s.Gauge("leases", "Leases that this node holds of other owners.", float64(st.Leases))
	s.Gauge("leases_granted", "Leases that other nodes hold of this owner, or may still give back.", float64(st.Out))
	s.Count("lease_spent_total", "Subjects of checks decided from a lease.", st.Leased)
	s.Count("lease_cached_refusals_total", "Subjects of checks refused as their owner had refused a moment before.", st.Cached)
	s.Count("lease_renewals_total", "Questions to owners that only renewed a lease, in the background.", st.Renewals)
	s.Count("lease_granted_total", "Leases that this owner has granted.", st.Granted)
	s.Count("lease_refused_total", "Wishes for leases that this owner has not granted: the limit is nearly used, or too small.", st.Ungranted)
	s.Count("lease_returned_total", "Limits of which something came back here unspent from a lease.", st.Returned)
	const loans, units = "Loans of shares between regions that this owner made, or got.", "Units that were in them."
	s.Count("loans_total", loans, st.Lent, "direction", "lent")
	s.Count("loans_total", loans, st.Borrowed, "direction", "borrowed")
	s.Count("loan_units_total", units, st.LentUnits, "direction", "lent")
	s.Count("loan_units_total", units, st.BorrowedUnits, "direction", "borrowed")
	s.Count("loans_failed_total", "Requests for a loan that another region did not answer.", st.LoansFailed)
	s.Count("loan_units_lost_total", "Units that were lent to this owner and found no room: lost until the window ends.", st.LoanUnitsLost)
	st.showReservations(s)
}

func (st *ClusterStats) showReservations(s figures.Sink) {
	r := &st.Reservations
	s.Count("reservations_total", "Reservations made here.", r.Reserved)
	const settlings = "Settlings of reservations decided here: settled, repeated, or of no live reservation."
	s.Count("settlings_total", settlings, r.Settled, "result", "settled")
	s.Count("settlings_total", settlings, r.Repeated, "result", "repeated")
	s.Count("settlings_total", settlings, r.Unknown, "result", "unknown")
	s.Count("refunds_dropped_total", "Costs of reservations that were not given back, since the counters that they came from are gone.", r.Dropped)
	s.Count("settle_debts_dropped_total", "Debts of reservations that their owners could not be told.", st.Uncharged)
	s.Gauge("request_answers", "Answers to requests with an id that are kept here, of 65,536 at most.", float64(st.Requests.Kept))
	s.Count("requests_repeated_total", "Requests with an id that were answered as the first time.", st.Requests.Repeated)
	s.Count("request_answers_refused_total", "Requests for whose answer there was no room here.", st.Requests.Refused)
}

// show shows the figures of one rule. Decisions that never happened are left out.
func (r *RuleStats) show(s figures.Sink) {
	for decision := range r.Checks {
		for by, n := range r.Checks[decision] {
			if n > 0 {
				s.Count("checks_total", "Checks decided; rule is empty for those that no rule decided.", n,
					"rule", r.Rule, "decision", DecisionNames[decision], "decided_by", DecidedBy(by).String())
			}
		}
	}
	if r.Rule == "" {
		return // no limit, no headroom
	}
	s.Count("false_positives_total", "Refusals said by feedback to be wrong.", r.FalsePositives, "rule", r.Rule)
	tenths := int64(0)
	for i, n := range r.Headroom {
		tenths += int64(i) * n
	}
	s.Histogram("headroom_ratio", "What was left of the rule's tightest limit after a check, in tenths rounded up.",
		headroomBounds, r.Headroom[:], float64(tenths)/10, "rule", r.Rule)
}
