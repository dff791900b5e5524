package limiter

import (
	"iter"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// uncountedRetry is the RetryAfter if no counter decided a refusal: by
// `on_partition: deny`, or of slots. By that time, the owner may be back.
const uncountedRetry = time.Second

// decideAlone decides subjects on this node alone, all or nothing: subjects of
// `consistency: local` rules (by is ByOwner), or subjects in fallback (by is
// ByFallback). The fallback counters decide and, in fallback, also the copies of
// owners' counters that this node may have. The order of its steps matters:
//
//  1. list the ops, and decide those that no counter decides;
//  2. take the rest from the fallback counters, or peek if one is refused;
//  3. in fallback, ask the copies. They come last: what they admit becomes a
//     debt at once, which only a rollback forgives;
//  4. if anything refused, forget the places of reservations.
func (c *clusterCheck) decideAlone(subjects []int, by DecidedBy) {
	// Keep the ops of an earlier call: they may have to be rolled back.
	start := len(c.fallbackOps)
	refused, listed := c.listFallbackOps(subjects, by)
	if !listed {
		c.forgetFallbackPlaces(subjects, by)
		return
	}
	countersAdmit := c.takeFallbackOps(subjects, c.fallbackOps[start:], refused)
	admitted := countersAdmit && !refused

	// If the fallback counters refused, Remaining is what is left with nothing
	// taken. Otherwise the cost is already subtracted. If a copy refuses below, the
	// cost comes back, and dropUndecided corrects Remaining.
	reportsUntaken := !countersAdmit

	if admitted && by == ByFallback {
		admitted = c.admitByCopies(subjects)
	}

	if !admitted {
		c.forgetFallbackPlaces(subjects, by)
	}
	for _, i := range subjects {
		s := &c.subjects[i]
		c.markDecided(s, by, admitted, undoFallback)
		s.decidedAt = c.now
		s.reportsUntaken = reportsUntaken
	}

	c.refusedOrFailed = c.refusedOrFailed || !admitted
}

// listFallbackOps appends the listed subjects' ops to fallbackOps, with this node's shares
// as limits. refused means that a limit refuses whatever its counter says:
// because on_partition is deny, because it is a limit of slots, or because this
// node's share of it is 0. ok is false if the check has failed.
func (c *clusterCheck) listFallbackOps(subjects []int, by DecidedBy) (refused, ok bool) {
	cp := c.limiter.cluster
	nodes, rank := cp.rankInRing()

	for _, i := range subjects {
		s := &c.subjects[i]
		rule := c.answer.Limits[s.firstOp].Rule
		mode := rules.Share
		if by == ByFallback {
			mode = rule.OnPartition
			cp.counts.fallback[mode].Add(1)
		}

		s.firstFallbackOp = len(c.fallbackOps)
		s.life = cp.Fallback.Life(ring.PartitionOf(s.keySubject))
		ops := c.ops(s)
		if by == ByFallback && hasSlots(ops) && !c.peek {
			// A node with authority is not cut off: the owner is away, and its standby
			// will soon take over.
			if cp.Authority() {
				c.failWith(ErrTryAgain)
				return false, false
			}
			c.answer.scratch.acquiring.markAlone()
		}

		if c.listFallbackOpsOf(ops, mode, nodes, rank) {
			refused = true
		}

		// A reservation notes the rates by which its buckets drain here: those of this
		// node's shares.
		if by == ByOwner && !c.recordFallbackPlace(s, c.fallbackOps[s.firstFallbackOp:]) {
			return false, false
		}
	}

	return refused, true
}

// listFallbackOpsOf is listFallbackOps for ops, those of one subject.
func (c *clusterCheck) listFallbackOpsOf(ops []counters.Op, mode rules.OnPartition, nodes, rank int) (refused bool) {
	for j := range ops {
		op := ops[j]
		counted := c.needsCounter(&op, effectiveMode(&op, mode), nodes, rank)
		ops[j].Decision, ops[j].NoRoom = op.Decision, false
		if !counted {
			refused = refused || op.Refuses()
			op.Cost, op.Shadow = 0, true // the fallback counters neither take nor refuse it
		}
		c.fallbackOps = append(c.fallbackOps, op)
		c.byCounter = append(c.byCounter, counted)
	}
	return refused
}

// fallbackOp returns the counterpart in fallbackOps of the j-th op of the i-th subject.
func (c *clusterCheck) fallbackOp(i, j int) *counters.Op {
	return &c.fallbackOps[c.subjects[i].firstFallbackOp+j]
}

// takeFallbackOps takes ops from the fallback counters, and reports whether they admit
// ops. ops are those of the listed subjects in fallbackOps. If refused is set, it
// only peeks: nothing may be taken, but the answer needs what the counters say.
func (c *clusterCheck) takeFallbackOps(subjects []int, ops []counters.Op, refused bool) (countersAdmit bool) {
	fallback := c.limiter.cluster.Fallback
	if c.peek || refused {
		countersAdmit = fallback.Peek(c.now, ops) == counters.Admitted
	} else {
		countersAdmit = fallback.Take(c.now, ops) == counters.Admitted
	}

	for op, fallbackOp := range c.countedFallbackOps(subjects) {
		op.CopyOutcome(fallbackOp)
	}
	return countersAdmit
}

// needsCounter applies mode to op, and reports whether a fallback counter
// must decide op. If so, the limit of op is now this node's share or, for a
// block or in mode Full, still the whole limit. If not, needsCounter has
// decided op.
func (c *clusterCheck) needsCounter(op *counters.Op, mode rules.OnPartition, nodes, rank int) bool {
	if op.Block && mode == rules.Share {
		return true // nodes don't divide a block: it applies in full on this node
	}

	switch mode {
	case rules.Full:
		return true
	case rules.AllowUncounted:
		op.Decision = op.Limit.Peek(algorithms.State{}, c.now, 0)
		return false
	case rules.RefuseUncounted:
		op.Decision = algorithms.Decision{Allowed: op.Cost == 0}
		if op.Cost > 0 {
			op.Decision.RetryAfter = uncountedRetry
		}
		return false
	}

	share, ok := localcache.ShareOf(op.Limit, nodes, rank)
	if !ok && op.Mode != counters.CountMode { // a count takes its cost all the same
		op.Decision = algorithms.Decision{Allowed: op.Cost == 0}
		if op.Cost > 0 {
			op.Decision.RetryAfter = algorithms.Never
		}
		return false
	}

	// If append reallocates, earlier ops keep pointing into the old array. It stays
	// valid: nobody changes a share after this line.
	c.shares = append(c.shares, share)
	op.Limit = &c.shares[len(c.shares)-1]
	return true
}

// effectiveMode returns the mode in which this node decides op alone. A node has no
// share of slots, so it refuses them unless the mode is AllowUncounted.
func effectiveMode(op *counters.Op, mode rules.OnPartition) rules.OnPartition {
	if op.Limit.Kind == algorithms.Concurrency && mode != rules.AllowUncounted {
		return rules.RefuseUncounted
	}
	return mode
}

// countedFallbackOps yields the ops of the listed subjects with their
// counterparts in fallbackOps, except for those that needsCounter has decided.
func (c *clusterCheck) countedFallbackOps(subjects []int) iter.Seq2[*counters.Op, *counters.Op] {
	return func(yield func(op, fallbackOp *counters.Op) bool) {
		for _, i := range subjects {
			s := &c.subjects[i]
			ops := c.ops(s)
			for j := range ops {
				at := s.firstFallbackOp + j
				if c.byCounter[at] && !yield(&ops[j], &c.fallbackOps[at]) {
					return
				}
			}
		}
	}
}

// admitByCopies decides what the fallback counters admitted by this node's copies
// of owners' counters. What they admit, too, is recorded as debts to the
// subjects' owners. If a copy shows that a whole limit is used up, admitByCopies
// puts back everything that was taken, and returns false.
func (c *clusterCheck) admitByCopies(subjects []int) bool {
	cp := c.limiter.cluster
	c.gatheredOps = c.gatheredOps[:0]
	for op, fallbackOp := range c.countedFallbackOps(subjects) {
		debtOp := *op

		// If the fallback counter took nothing, nothing is owed. The copy still says
		// what is left.
		if c.peek || !fallbackOp.Decision.Allowed && !fallbackOp.Took() {
			debtOp.Cost = 0
		}
		c.gatheredOps = append(c.gatheredOps, debtOp)
	}

	copyAdmits := cp.Ownership.DecideAlone(c.now, c.gatheredOps) == counters.Admitted
	admitted := copyAdmits
	next := 0
	for op := range c.countedFallbackOps(subjects) {
		c.narrowByCopy(op, &c.gatheredOps[next], copyAdmits)
		admitted = admitted && !op.Refuses()
		next++
	}

	if !c.peek {
		c.giveBackRefused(subjects, admitted)
	}
	if !admitted {
		c.beginFallbackBlocks(subjects)
	}
	return admitted
}

// giveBackRefused gives back what the fallback counters took before a copy
// refused it: everything or, if the check is admitted, what shadow limits took.
func (c *clusterCheck) giveBackRefused(subjects []int, admitted bool) {
	for _, i := range subjects {
		s := &c.subjects[i]
		ops := c.ops(s)
		for j := range ops {
			fallbackOp := &c.fallbackOps[s.firstFallbackOp+j]
			keeps := admitted && ops[j].Took()
			if !fallbackOp.Took() || keeps {
				continue
			}

			c.giveBackFallbackOp(fallbackOp, s.life)
			if admitted {
				fallbackOp.Cost = 0 // so that rollBackFallback skips it
			}
		}
	}
}

// giveBackFallbackOp gives back what op took from the fallback counters.
func (c *clusterCheck) giveBackFallbackOp(op *counters.Op, life counters.Life) {
	taken := op.TakeRecord()
	taken.MaxRate = c.limiter.maxRateSince(op, taken.Steady)

	// If this fails, the cost stays taken: the counter was reset, the rate of a
	// bucket may have changed, or there is no room to note what came back.
	_ = c.limiter.cluster.Fallback.GiveBack(c.limiter.clock.Now(), op.Key, op.Limit, taken, op.Cost, life)
}

// narrowByCopy combines two decisions: this node's decision on op, by its
// share, and a copy's decision on copyOp, by the whole limit. The stricter
// one wins. Both report what is left as if the cost had been taken. copyAdmits
// says whether the copy has admitted all ops.
func (c *clusterCheck) narrowByCopy(op, copyOp *counters.Op, copyAdmits bool) {
	decision := c.decisionOfCopy(op, copyOp, copyAdmits)
	if op.Decision.Allowed && !decision.Allowed {
		op.Decision = decision
		op.NoRoom = copyOp.NoRoom
	}
	if decision.Remaining < op.Decision.Remaining {
		op.Decision.Remaining = max(0, decision.Remaining)
		op.Decision.MoreAfter = decision.MoreAfter
	}

	// The copy has also counted what other nodes admitted.
	op.Decision.Used = max(op.Decision.Used, decision.Used)
	op.Decision.Delay = max(op.Decision.Delay, decision.Delay)
}

// decisionOfCopy returns the copy's decision as of after op's cost. If the
// copy did not debit the cost, its Remaining is from before, so the cost is
// subtracted.
func (c *clusterCheck) decisionOfCopy(op, copyOp *counters.Op, copyAdmits bool) algorithms.Decision {
	decision := copyOp.Decision
	if !decision.Allowed {
		return decision
	}

	// A copy that has taken the cost reports what is left afterwards. If the copy of
	// another limit refuses, no copy takes anything.
	hasTaken := copyOp.Cost > 0 && copyAdmits
	if hasTaken {
		return decision
	}

	if copyOp.Cost == 0 && decision.Remaining < op.Cost { // as for a peek: the copy was not asked about the cost
		return localcache.RefuseWithoutCounter(op.Limit, c.now, op.Cost)
	}
	decision.AddRemaining(op.Limit, -op.Cost)
	return decision
}

// rollBackFallback gives s's cost back to the fallback counters and cancels the
// debt recorded for it.
func (c *clusterCheck) rollBackFallback(s *subject) {
	place := c.answer.scratch.place
	if place != nil {
		c.limiter.cluster.Fallback.ForgetReservation(c.now, placeKey(s.keySubject, place.id), true, nil)
	}

	ops := c.ops(s)
	for j := range ops {
		fallbackOp := &c.fallbackOps[s.firstFallbackOp+j]
		if fallbackOp.Took() {
			c.giveBackFallbackOp(fallbackOp, s.life)
			if s.decidedBy == ByFallback {
				c.limiter.cluster.Ownership.ForgiveDebt(s.decidedAt, &ops[j])
			}
		}
	}
}

// beginFallbackBlocks begins, in the fallback counters, the blocks that a copy's
// refusal triggers. They can't begin in the copy, which may be read-only.
func (c *clusterCheck) beginFallbackBlocks(subjects []int) {
	if c.peek {
		return
	}

	for _, i := range subjects {
		s := &c.subjects[i]
		ops := c.ops(s)
		for j := range ops {
			op := &ops[j]
			if blockJustBegan(op) && c.fallbackOps[s.firstFallbackOp+j].Decision.Allowed {
				// If the table is full, the limits still refuse.
				_ = c.limiter.cluster.Fallback.BeginBlock(c.now, op.Key, op.Limit)
			}
		}
	}
}

// blockJustBegan reports whether op is a block that a refusal of this check has
// begun: it has its full length left.
func blockJustBegan(op *counters.Op) bool {
	return op.Block && !op.Decision.Allowed &&
		op.Decision.RetryAfter == op.Limit.Window-op.Limit.MaxDelay
}
