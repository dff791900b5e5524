package limiter

import (
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// addOp appends a limit to the check and returns its op for the caller to fill
// in. It writes both in place, because copying these large structs would cost
// more than filling them in. subject is an index in Query.Subjects.
func (a *Answer) addOp(h *rules.Hit, limit *rules.Limit, subject int, cost int64) *counters.Op {
	sc := &a.scratch
	if len(sc.ops) == cap(sc.ops) {
		sc.ops = slices.Grow(sc.ops, 1)
	}

	sc.ops = sc.ops[:len(sc.ops)+1]
	op := &sc.ops[len(sc.ops)-1]
	op.Key = counterKey(h, limit)
	op.Limit = &limit.Limit
	op.Cost = cost
	op.Block = false
	op.Lends = false
	op.NoRoom = false
	op.Decision = algorithms.Decision{}

	if len(a.Limits) == cap(a.Limits) {
		a.Limits = slices.Grow(a.Limits, 1)
	}

	a.Limits = a.Limits[:len(a.Limits)+1]
	la := &a.Limits[len(a.Limits)-1]

	// conclude writes the other fields.
	la.Rule = h.Rule
	la.Limit = limit
	la.SubjectIndex = int32(subject)
	la.Cost = cost
	la.ByHand = false
	la.Blocked = false
	la.byNodeShare = false
	la.shortShare = notShort
	la.isRegionIsolated = false

	return op
}

// costOf returns the cost in the limit's unit.
func costOf(costs []UnitCost, h *rules.Hit, limit *rules.Limit) int64 {
	for i := range costs {
		if costs[i].Unit == limit.Unit {
			return costs[i].Cost
		}
	}
	switch {
	case limit.UnitID == h.Rule.CostUnitID:
		return h.Cost
	case limit.UnitID == 0:
		return 1 // a check counts as 1 request: the rule's cost table is about another unit
	}
	return 0
}

func counterKey(h *rules.Hit, limit *rules.Limit) counters.Key {
	k := counters.Key{Subject: h.Subject.Hi, Counter: h.Subject.Lo ^ limit.ID}
	if h.Rule.Inline {
		k.Counter = counters.InlineCounter(k.Counter)
	}
	return k
}

// requireDistinctKeys returns an error if two of the check's counters have the same key.
func (a *Answer) requireDistinctKeys() error {
	for i := range a.scratch.ops {
		for j := range i {
			if a.scratch.ops[i].Key == a.scratch.ops[j].Key { // the hashes of their IDs collide: one chance in 2^32
				return fmt.Errorf("%w: two of the windows have the same hash; change one of them slightly", ErrInline)
			}
		}
	}
	return nil
}

// modesLevel is the feature level at which all nodes support the modes of ops,
// windows that begin with the first hit, and slots.
const modesLevel = 2

// requireLevel returns an error if the check needs something that not all nodes
// of the cluster support.
func (l *Limiter) requireLevel(q *Query, a *Answer) error {
	if l.cluster == nil || l.cluster.Level == nil || l.cluster.Level() >= modesLevel {
		return nil
	}
	for i := range a.scratch.ops {
		op := &a.scratch.ops[i]
		if op.Limit.Kind == algorithms.FirstWindow || op.Limit.Kind == algorithms.Concurrency ||
			op.Mode != counters.CheckMode && !q.Peeks() {
			return fmt.Errorf("%w: mode count, different modes in one check, windows from the first hit and slots need level %d, but the cluster is at %d",
				ErrLevelTooLow, modesLevel, l.cluster.Level())
		}
	}
	return nil
}

// countHitOps returns how many ops a hit has: one for each limit, and one for
// each length of its block.
func countHitOps(h *rules.Hit) int { return len(h.Limits) + len(h.Rule.Blocks) }

// addBlocks appends a hit's blocks, after the hit's limits. The blocks have the
// mode of the check: a block never refuses a count.
func (a *Answer) addBlocks(h *rules.Hit, mode counters.Mode) {
	a.scratch.hasBlockOps = true
	for _, block := range h.Rule.Blocks {
		op := counters.Op{Key: counterKey(h, block), Limit: &block.Limit, Shadow: h.Rule.Shadow,
			Mode: mode, Block: true}
		a.scratch.ops = append(a.scratch.ops, op)
		a.Limits = append(a.Limits, LimitAnswer{Rule: h.Rule, Limit: block})
	}
}

// whileBlocked returns what a limit decides, in place of decision, while its
// subject is blocked. left is how much longer the block lasts. The limit refuses
// for at least that long, and nothing remains. Used stays as it is.
func whileBlocked(decision algorithms.Decision, left time.Duration) algorithms.Decision {
	out := algorithms.Decision{
		Used: decision.Used, RetryAfter: left, ResetAfter: max(decision.ResetAfter, left), MoreAfter: left,
	}
	if decision.Remaining == 0 {
		out.MoreAfter = max(left, decision.MoreAfter)
	}
	if !decision.Allowed && (decision.RetryAfter == algorithms.Never || decision.RetryAfter > left) {
		out.RetryAfter, out.Reduced = decision.RetryAfter, decision.Reduced
	}
	return out
}
