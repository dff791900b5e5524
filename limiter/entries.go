package limiter

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

// longestBlock bounds how much longer a block by hand lasts according to answers:
// a duration can't hold more than 292 years.
const longestBlock = 100 * 366 * 24 * time.Hour

// wallMillis returns the wall time, in Unix ms.
func (l *Limiter) wallMillis() int64 { return l.clock.Now().Wall / int64(time.Millisecond) }

// Every node knows the blocks by hand. So the node that is asked refuses the
// subject itself, reports ByOwner, and takes nothing.

// refuseBlocked decides a matched check if its subject is blocked by hand in one
// of the rules, and reports whether it did. A count is not decided here: it takes
// its cost, and foldHandBlocks refuses it afterwards. Shadow rules never refuse.
func (l *Limiter) refuseBlocked(q *Query, a *Answer) bool {
	match := &a.scratch.match
	for i := range match.Hits {
		h := &match.Hits[i]
		if h.Rule.Shadow {
			continue
		}

		until := a.Set.BlockedUntil(match, h)
		if until == 0 {
			continue
		}
		if q.Mode == counters.CountMode {
			a.scratch.countsHandBlocked = true
			continue
		}

		// The answer is about this rule only.
		match.Hits[0] = *h
		match.Hits = match.Hits[:1]
		a.refuseHit(q, &match.Hits[0], until)
		return true
	}

	return false
}

// refuseHit makes the limits of a's only hit refuse until a wall time, in Unix ms.
func (a *Answer) refuseHit(q *Query, h *rules.Hit, until int64) {
	a.decideByMatching(false, ByOwner)

	for i, limit := range h.Limits {
		op := a.addOp(h, limit, 0, costOf(q.Costs, h, limit))
		op.Shadow = false
		op.Mode = q.Mode
		op.Decision = untilBlockEnds(&a.scratch.match, op.Decision, until)
		la := &a.Limits[i]
		la.set(op)
		la.Blocked = true
		la.ByHand = true

		if a.isTightestSoFar(la) {
			a.TightestIndex = i
		}
	}
}

// untilBlockEnds returns what a limit decides, in place of decision, while its
// subject is blocked by hand until a wall time, in Unix ms.
func untilBlockEnds(match *rules.Match, decision algorithms.Decision, until int64) algorithms.Decision {
	out := whileBlocked(decision, blockLeft(match, until))
	if until == entries.Forever {
		out.RetryAfter, out.MoreAfter = algorithms.Never, 0
	}
	return out
}

// blockLeft returns how much longer a block by hand lasts that ends at a wall time, in Unix ms.
func blockLeft(match *rules.Match, until int64) time.Duration {
	left := until - match.WallTime()
	if left >= int64(longestBlock/time.Millisecond) {
		return longestBlock
	}
	return max(0, time.Duration(left)) * time.Millisecond
}

// addHandBlock extends u's block by those by hand.
func (l *Limiter) addHandBlock(u *Usage) {
	set := l.Rules()
	match := &rules.Match{Now: u.At.Wall / int64(time.Millisecond), Clock: l.wallClock}
	until := set.BlockedUntil(match, &rules.Hit{Rule: u.Rule, Subject: u.Hash})
	if until == 0 {
		return
	}

	// blockLeft counts from the last whole millisecond of u.At. Subtract the time
	// since then, so that the block does not seem to outlast its entry.
	left := blockLeft(match, until) - time.Duration(u.At.Wall)%time.Millisecond
	u.Blocked = max(u.Blocked, left)
	u.BlockedUntil = max(u.BlockedUntil, until)
}

func (l *Limiter) showEntries(sink metrics.Sink) {
	set := l.Rules()
	if set == nil {
		return
	}
	e := set.Entries()
	for k := entries.Deny; k <= entries.Block; k++ {
		sink.Level("entries", "Entries beside the rules.", e.Count(k), "kind", k.String())
	}
	sink.Level("entries_bytes", "About how many bytes the entries beside the rules take.", e.Bytes())
	sink.Gauge("entries_version", "Changes of entries beside the rules so far.", float64(e.Version()))
	sink.Level("entries_asleep",
		"Entries beside the rules that name a tier or a rule that the document lacks.",
		set.Asleep())
}
