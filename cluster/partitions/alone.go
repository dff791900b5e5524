package partitions

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// Owe admits ops by this node alone, in fallback; the caller has applied the shares. If counters of ops are here, from an
// owner that lost its authority, a standby or a checkpoint, they must admit the ops too, under the whole limits;
// otherwise the verdict is Refused, and nothing is owed. What is admitted is owed to the owner, once it is known which
// node that is. An op without a cost is only a question, and owes nothing. The verdict is never Shut.
func (k *Keeper) Owe(now algorithms.Now, ops []counters.Op) counters.Verdict {
	k.mu.Lock()
	defer k.mu.Unlock()
	var mine, others [8]counters.Op
	take, look := mine[:0], others[:0]
	for i := range ops {
		op := ops[i]
		if k.counts(op.Key.Partition()) {
			take = append(take, op)
			continue
		}
		op.Cost += k.debts.absent(now, &op)
		look = append(look, op)
	}
	verdict := k.cfg.Table.Look(now, look)
	if verdict == counters.Admitted {
		verdict = k.cfg.Table.Act(now, take)
	} else {
		k.cfg.Table.Look(now, take) // fills in what they have left
	}
	for i := range ops {
		op, absent := &ops[i], int64(0)
		if k.counts(op.Key.Partition()) {
			op.Decision, op.Full = take[0].Decision, take[0].Full
			take = take[1:]
		} else {
			k.tellAbsent(op, &look[0])
			look, absent = look[1:], op.Cost
		}
		if verdict == counters.Admitted && op.Decision.Allowed && op.Cost > 0 &&
			!k.debts.owe(op, takenNow(op.Limit, now), absent, true) {
			k.stats.Dropped++
		}
	}
	return verdict
}

// counts reports whether the next owner of p continues from the counters here, or pushes over them. If so, costs admitted
// here are counted in them. While p moves, and after a restart, they may be replaced or merged, so they are only looked
// at.
func (k *Keeper) counts(p int) bool {
	pt := &k.parts[p]
	return pt.phase == held || pt.phase == away && pt.whole && !pt.source.IsZero() && pt.source != k.cfg.Self
}

// tellAbsent copies to op the decision on asked, which is op with the absent debt added to its cost.
func (k *Keeper) tellAbsent(op, asked *counters.Op) {
	absent := asked.Cost - op.Cost
	op.Decision, op.Full = asked.Decision, asked.Full
	if absent == 0 || op.Decision.Allowed {
		return
	}
	op.Decision.Remaining = max(0, op.Decision.Remaining-absent)
	if op.Cost == 0 {
		op.Decision.Allowed, op.Decision.RetryAfter = true, 0
	}
}

// Forgive takes op's cost, which Owe recorded at the given time, off the debt, because another limit of the check refused
// it. A debt that has been reported already, or that a counter here includes, stays: that costs quota, and makes none.
func (k *Keeper) Forgive(at algorithms.Now, op *counters.Op) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.debts.forgive(at, op)
}
