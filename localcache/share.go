package localcache

import (
	"math/bits"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// Share is how many of amount whole units the node at place rank (from 0) of so many nodes may spend by itself: equal
// parts by largest remainder. The shares of all nodes add up to amount. A node that has no place among them has no
// share.
func Share(amount int64, nodes, rank int) int64 {
	if rank < 0 || rank >= nodes || amount <= 0 {
		return 0
	}
	share, rest := amount/int64(nodes), amount%int64(nodes)
	// The remainders are all equal, so that the order of the members decides who gets one more.
	if int64(rank) < rest {
		share++
	}
	return share
}

// Scaled is a node's share of l as a limit of its own. It reports false where the share is nothing.
func Scaled(l *algorithms.Limit, nodes, rank int) (algorithms.Limit, bool) {
	s := algorithms.Limit{
		Kind: l.Kind, Window: l.Window, Calendar: l.Calendar,
		Amount: Share(l.Amount, nodes, rank), Burst: Share(l.Burst, nodes, rank), MaxDelay: l.MaxDelay,
	}
	return s, s.Amount > 0 && (!s.Kind.Bucket() || s.Burst > 0)
}

// Nothing is what a limit answers to a cost where the node has no share of it.
func Nothing(l *algorithms.Limit, now algorithms.Now, cost int64) algorithms.Decision {
	switch {
	case cost == 0:
		return algorithms.Decision{Allowed: true}
	case cost > l.Capacity():
		return algorithms.Decision{RetryAfter: algorithms.Never}
	}
	return algorithms.Decision{RetryAfter: untilTurn(l, now)}
}

// Told is what a decision by share says of the whole limit l: a cost above the share, but not above the limit, may
// be allowed once the owner is back.
func Told(d algorithms.Decision, l *algorithms.Limit, now algorithms.Now, cost int64) algorithms.Decision {
	if d.RetryAfter == algorithms.Never && cost <= l.Capacity() {
		d.RetryAfter = untilTurn(l, now)
	}
	return d
}

// untilTurn is how long to wait where more is not known: until the window ends, for limits that have numbered ones;
// until a unit has come back, for buckets; else a window.
func untilTurn(l *algorithms.Limit, now algorithms.Now) time.Duration {
	switch {
	case l.Amount < 1:
		return algorithms.Never // a region's share of nothing
	case l.Kind == algorithms.FixedWindow:
		// The end of the window at hand, as a counter in it tells it.
		s := l.Advance(algorithms.State{}, now)
		s.Count = l.Amount
		return l.Describe(s, now, 0, true).ResetAfter
	case l.Kind.Bucket():
		hi, lo := bits.Mul64(1, uint64(l.Window))
		per, rest := bits.Div64(hi, lo, uint64(l.Amount))
		if rest > 0 {
			per++
		}
		return time.Duration(per)
	}
	return l.Window
}
