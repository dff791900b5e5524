package partitions

import (
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// OwnerProblem is why an owner does not decide.
type OwnerProblem uint8

const (
	Unreachable      OwnerProblem = iota // this node can't reach it
	WithoutAuthority                     // it answered that it has no authority
)

// DecideAsStandby decides ops in place of an owner that can't: as its standby
// or, during a move, as the node that handed the partition over. It decides
// from the copy here and within shares, which are the limits reduced to what
// one node may spend; a share with Amount 0 admits no cost, unless its op is
// Shadow. It returns Undecided if this node must not act. All ops must be of
// partitions with the same owner.
func (k *Keeper) DecideAsStandby(
	now algorithms.Instant, ops []counters.Op, shares []algorithms.Limit, problem OwnerProblem,
) counters.Verdict {
	k.mu.Lock()
	defer k.mu.Unlock()

	if !k.canActAsStandby(ops, problem) {
		return counters.Undecided
	}

	shareOps, ok := shareOpsOf(ops, shares)
	if !ok {
		return counters.Undecided
	}

	verdict := k.standbyCounters.Take(now, shareOps)
	if verdict != counters.Admitted {
		k.describeRefusal(now, ops, shareOps)
		return verdict
	}

	verdict = k.config.Table.TakeUngated(now, ops)
	if verdict != counters.Admitted {
		for i := range shareOps {
			if shareOps[i].Took() {
				k.giveBackShare(now, &shareOps[i])
			}
		}
		return verdict
	}

	for i := range ops {
		op := &ops[i]
		if op.Took() {
			k.debts.addDebt(op, takeRecordNow(op.Limit, now), 0, false)
		}

		// Neither this node's share nor what the copy has left may be exceeded.
		op.Decision.Remaining = min(op.Decision.Remaining, shareOps[i].Decision.Remaining)
		op.Decision.Delay = max(op.Decision.Delay, shareOps[i].Decision.Delay)
	}

	return verdict
}

// describeRefusal copies to ops what the shares decided, one of which refused.
// What is used is that of the whole limit, as in the answers that are admitted.
func (k *Keeper) describeRefusal(now algorithms.Instant, ops, shareOps []counters.Op) {
	whole := slices.Clone(ops)
	for i := range whole {
		whole[i].Cost = 0
	}
	k.config.Table.PeekUngated(now, whole)

	for i := range ops {
		ops[i].Decision, ops[i].NoRoom = shareOps[i].Decision, shareOps[i].NoRoom
		ops[i].Decision.Used = whole[i].Decision.Used
	}
}

// shareOpsOf returns ops with the shares as their limits. It returns false if a
// share admits no cost of its op.
func shareOpsOf(ops []counters.Op, shares []algorithms.Limit) (shareOps []counters.Op, ok bool) {
	shareOps = make([]counters.Op, len(ops))
	for i := range ops {
		shareOps[i] = ops[i]
		shareOps[i].Limit = &shares[i]
		if shares[i].Amount < 1 && !ops[i].Shadow && ops[i].Cost > 0 {
			return nil, false
		}
		if shares[i].Amount < 1 {
			// This op takes nothing, or is Shadow, so the whole limit may answer it.
			shareOps[i].Limit = ops[i].Limit
		}
	}
	return shareOps, true
}

// giveBackShare gives back the cost that op has just taken from
// standbyCounters.
func (k *Keeper) giveBackShare(now algorithms.Instant, op *counters.Op) {
	taken := op.TakeRecord()
	// The cost was taken a moment ago under mu, so nothing has drained faster since.
	taken.MaxRate = op.Limit.Amount
	life := k.standbyCounters.Life(op.Key.Partition())
	_ = k.standbyCounters.GiveBack(now, op.Key, op.Limit, taken, op.Cost, life) // the gates are always open
}

// canActAsStandby reports whether this node may act for the owner of ops. The caller must hold mu.
func (k *Keeper) canActAsStandby(ops []counters.Op, problem OwnerProblem) bool {
	if len(ops) == 0 || !k.debts.hasRoom(ops) || !k.config.Authority() || k.isStopped() {
		return false
	}

	state := k.adopted.Load()
	if !state.registered {
		return false
	}

	for i := range ops {
		p := ring.PartitionOf(ops[i].Key.Subject)
		pt := &k.parts[p]
		if !pt.phase.acceptsPushes() || !pt.isOthersCopy(k.config.Self) {
			return false
		}

		owner, other := state.Owners(p)
		if pt.phase == handedOver {
			owner, other = other, owner
		}

		ownerDecides := k.config.Calls.Reachable(owner) && problem != WithoutAuthority
		if owner == k.config.Self || ownerDecides {
			return false
		}

		// The owner may have no authority because it has handed the token over. Then
		// the other side decides.
		if pt.phase == away && other != owner && other != k.config.Self && k.config.Calls.Reachable(other) {
			return false
		}
	}

	return true
}

// DecideAlone admits ops on this node alone, in fallback; the caller's own
// counters have admitted them, within shares. The verdict is never Undecided.
//
//   - If this node has counters of ops (as an owner without authority, as a
//     standby or from a checkpoint), they must admit the ops, too, under the whole
//     limits; otherwise the verdict is Refused, and nothing is owed.
//   - Admitted costs are a debt to the owner, reported once the owner is known. An
//     op without a cost owes nothing.
func (k *Keeper) DecideAlone(now algorithms.Instant, ops []counters.Op) counters.Verdict {
	k.mu.Lock()
	defer k.mu.Unlock()

	var hereBuf [8]bool
	here := hereBuf[:0] // by op: see takesHere
	for i := range ops {
		here = append(here, k.takesHere(ops[i].Key.Partition()))
	}

	var countedBuf, peekedBuf [8]counters.Op
	counted, peeked := countedBuf[:0], peekedBuf[:0]
	for i := range ops {
		op := ops[i]
		if here[i] {
			counted = append(counted, op)
			continue
		}
		op.Cost += k.debts.lackingCost(now, &op)
		peeked = append(peeked, op)
	}

	// The peeks come first: if one of them refuses, nothing may be taken.
	verdict := k.config.Table.PeekUngated(now, peeked)
	if verdict == counters.Admitted {
		verdict = k.config.Table.TakeUngated(now, counted)
	} else {
		k.config.Table.PeekUngated(now, counted) // fills in their Decisions
	}

	copyDecisions(ops, here, counted, peeked)
	if verdict != counters.Admitted {
		return verdict
	}

	for i := range ops {
		op := &ops[i]
		if !op.Took() {
			continue
		}

		lacking := op.Cost
		if here[i] {
			lacking = 0
		}
		if !k.debts.addDebt(op, takeRecordNow(op.Limit, now), lacking, true) {
			k.stats.DebtsDropped++
		}
	}

	return verdict
}

// takesHere reports whether a cost that is admitted here is also taken from
// the counters here. That is so if this node owns p, or has a full copy from
// another node. It is not so while p moves, or after a restart: the counters
// may then be merged with others that have the debt, and the cost would count
// twice. The caller must hold mu.
func (k *Keeper) takesHere(p int) bool {
	pt := &k.parts[p]
	return pt.phase == owning || pt.phase == away && pt.isOthersCopy(k.config.Self)
}

// copyDecisions copies the decisions on counted and peeked to ops. Both are in
// the order of ops. here says which ops are in counted.
func copyDecisions(ops []counters.Op, here []bool, counted, peeked []counters.Op) {
	nextCounted, nextPeeked := 0, 0
	for i := range ops {
		op := &ops[i]
		if here[i] {
			copyDecision(op, &counted[nextCounted])
			nextCounted++
		} else {
			copyDecision(op, &peeked[nextPeeked])
			nextPeeked++
		}
	}
}

// copyDecision copies to op the decision on asked. asked is op with a cost that
// includes what the counter here lacks.
func copyDecision(op, asked *counters.Op) {
	lacking := asked.Cost - op.Cost
	op.Decision, op.NoRoom = asked.Decision, asked.NoRoom
	if lacking == 0 || op.Decision.Allowed {
		return
	}
	op.Decision.Remaining = max(0, op.Decision.Remaining-lacking)
	if op.Cost == 0 {
		op.Decision.Allowed, op.Decision.RetryAfter = true, 0
	}
}

// ForgiveDebt takes op's cost, which DecideAlone recorded at the given time,
// off the debt, because another limit of the check refused it. A debt that has
// been reported already stays, and so does the cost in a counter here: that can
// lose quota, but never make any.
func (k *Keeper) ForgiveDebt(at algorithms.Instant, op *counters.Op) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.debts.forgive(at, op)
}
