package localcache

import (
	"math/bits"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// Share returns how many of amount whole units a node may spend alone, among
// that many nodes. rank is the node's place among them, from 0. Shares add up
// to amount: all are equal, except that the lowest ranks get one unit more if
// amount can't be divided evenly. A node without a rank (below 0) has no share.
func Share(amount int64, nodes, rank int) int64 {
	if rank < 0 || rank >= nodes || amount <= 0 {
		return 0
	}
	share, rest := amount/int64(nodes), amount%int64(nodes)
	if int64(rank) < rest {
		share++
	}
	return share
}

// ShareOf returns a node's share of l as a limit of its own; see Share. It
// returns false if the share is zero.
func ShareOf(l *algorithms.Limit, nodes, rank int) (algorithms.Limit, bool) {
	s := algorithms.Limit{
		Kind: l.Kind, Window: l.Window, Calendar: l.Calendar,
		Amount: Share(l.Amount, nodes, rank), Burst: Share(l.Burst, nodes, rank), MaxDelay: l.MaxDelay,
	}
	return s, s.Amount > 0 && (!s.Kind.IsBucket() || s.Burst > 0)
}

// RefuseWithoutCounter returns the decision on a cost by a node that has no
// counter to tell when the cost will fit. It refuses any cost but 0.
func RefuseWithoutCounter(l *algorithms.Limit, now algorithms.Instant, cost int64) algorithms.Decision {
	switch {
	case cost == 0:
		return algorithms.Decision{Allowed: true}
	case cost > l.Capacity():
		return algorithms.Decision{RetryAfter: algorithms.Never}
	}
	return algorithms.Decision{RetryAfter: retryWithoutCounter(l, now)}
}

// retryWithoutCounter returns how long to wait when no counter gives a better
// answer: for fixed windows, until the window ends; for buckets, until one unit
// has come back; otherwise one window.
func retryWithoutCounter(l *algorithms.Limit, now algorithms.Instant) time.Duration {
	switch {
	case l.Amount < 1:
		return algorithms.Never // the region has no share
	case l.Kind == algorithms.FixedWindow:
		// The end of the current window, as a counter in it would report it.
		state := l.Advance(algorithms.State{}, now)
		state.Count = l.Amount
		return l.Describe(state, now, 0, true).ResetAfter
	case l.Kind.IsBucket():
		hi, lo := bits.Mul64(1, uint64(l.Window))
		per, rest := bits.Div64(hi, lo, uint64(l.Amount))
		if rest > 0 {
			per++
		}
		return time.Duration(per)
	}

	return l.Window
}

// minFallbackCounters is the smallest bound on the fallback counters.
const minFallbackCounters = 1000

// NewFallbackTable returns the table of the counters that a node decides alone,
// to go with a main table of at most bound counters. Its bound is an eighth of
// that, but at least 1,000. Its counters survive a restart, so that a restart
// does not renew shares. Its gates are always open.
func NewFallbackTable(bound int64) *counters.Table {
	return counters.New(max(bound/8, minFallbackCounters))
}
