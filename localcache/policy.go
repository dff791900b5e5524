package localcache

import (
	"cmp"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules"
)

// Bounds of a lease's TTL, and of the limits that can be leased.
const (
	MinTTL = 50 * time.Millisecond
	MaxTTL = 5 * time.Second

	// ttlParts is the number of lease TTLs in a window, unless the rule sets the TTL.
	ttlParts = 20
	// minWindow is the shortest window of limits that can be leased; in a shorter
	// one, leases would come back too late.
	minWindow = 200 * time.Millisecond
	// minPerNode is how many units a limit must have for each node; with fewer,
	// asking for each check works better.
	minPerNode = 10
)

// Policy says how a subject may be leased. The zero Policy means that it can't be.
type Policy struct {
	Threshold float64 // 0.5…0.95: grants are large while at most this fraction of the limit is used
	// Idle is the fraction of the limit that all grants together may hold above
	// Threshold: above 0, at most 0.5.
	Idle     float64
	TTL      time.Duration // MinTTL…MaxTTL
	Nodes    int           // among how many nodes limits are divided, as far as this node knows
	TooSmall bool          // a limit is too small to be leased: the lease only remembers refusals
}

// PolicyOf returns the policy for a rule's subject with these limits, among
// that many nodes. It returns the zero Policy if each check must ask the owner:
// because the rule says so (`consistency`, `on_limit: delay`, `block`) or is
// compiled for its call alone, because the algorithm's promise depends on when
// each hit happens, or because a window is too short.
func PolicyOf(r *rules.Rule, limits []*rules.Limit, nodes int) Policy {
	if r.Consistency != rules.Hybrid || r.OnLimit == rules.DelayCheck || r.Blocks != nil || r.ForOneCall {
		return Policy{}
	}

	pol := Policy{Threshold: r.Lease.Threshold, Idle: r.Lease.Idle, TTL: r.Lease.TTL, Nodes: nodes}

	auto := MaxTTL
	for _, l := range limits {
		if !hasLeasableForm(&l.Limit) {
			return Policy{}
		}
		pol.TooSmall = pol.TooSmall || !LeasableAmong(&l.Limit, nodes)
		auto = min(auto, DefaultTTL(l.Limit.Window))
	}

	pol.TTL = cmp.Or(pol.TTL, auto)
	return pol
}

// DefaultTTL returns the TTL of leases of a limit with that window, unless the rule sets it.
func DefaultTTL(window time.Duration) time.Duration { return min(MaxTTL, max(MinTTL, window/ttlParts)) }

// LeasableAmong reports whether a limit can be leased among that many nodes.
func LeasableAmong(l *algorithms.Limit, nodes int) bool {
	return hasLeasableForm(l) && min(l.Amount, l.Capacity()) >= minPerNode*int64(max(1, nodes))
}

// hasLeasableForm reports whether a limit like l can be leased if it is large
// enough.
func hasLeasableForm(l *algorithms.Limit) bool {
	return l.Kind.Leasable() && l.MaxDelay == 0 && l.Window >= minWindow
}

// IdleTotal returns how much of a limit all grants together may hold above Threshold.
func (pol Policy) IdleTotal(l *algorithms.Limit) int64 {
	return int64(pol.Idle * float64(l.Capacity()))
}

// IdlePart returns one node's part of IdleTotal.
func (pol Policy) IdlePart(l *algorithms.Limit) int64 {
	return pol.IdleTotal(l) / int64(max(1, pol.Nodes))
}

// None reports whether the subject can't be leased.
func (pol Policy) None() bool { return pol.TTL == 0 }
