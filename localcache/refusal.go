package localcache

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// refusal is an owner's refusal that this node repeats for a while.
type refusal struct {
	until time.Duration
	at    time.Duration
	ops   []refusedOp
}

// refusedOp is one limit's part of a refusal.
type refusedOp struct {
	cost     int64
	until    time.Duration // the limit refuses until then
	decision algorithms.Decision
}

// applyTo reports whether the refusal still applies to ops, and if so copies its
// decisions into them. It applies to the costs that were refused and to higher
// ones. For a shadow rule, which never makes a check fail, it applies only if
// every limit with a cost refuses.
func (rf *refusal) applyTo(now time.Duration, ops []counters.Op) bool {
	if now >= rf.until || len(rf.ops) != len(ops) {
		return false
	}

	shadow := len(ops) > 0 && ops[0].Shadow
	anyRefuses := false
	for i := range ops {
		refuses := rf.refuses(i, now, ops[i].Cost)
		if shadow && !refuses && ops[i].Cost > 0 {
			return false
		}
		anyRefuses = anyRefuses || refuses
	}

	if !anyRefuses {
		return false
	}

	for i := range ops {
		decision := ageDecision(rf.ops[i].decision, now-rf.at)
		switch {
		case ops[i].Cost > ops[i].Limit.Capacity():
			decision.Allowed, decision.RetryAfter = false, algorithms.Never
		case !rf.refuses(i, now, ops[i].Cost):
			decision.Allowed, decision.RetryAfter = true, 0
		}
		ops[i].Decision, ops[i].NoRoom = decision, false
	}
	return true
}

// refuses reports whether the i-th limit still refuses a cost.
func (rf *refusal) refuses(i int, now time.Duration, cost int64) bool {
	op := &rf.ops[i]
	return !op.decision.Allowed && cost >= op.cost && now < op.until
}

// ageDecision returns what a decision has become after some time in which
// nothing was taken.
func ageDecision(decision algorithms.Decision, passed time.Duration) algorithms.Decision {
	passed = max(0, passed)
	decision.ResetAfter = max(0, decision.ResetAfter-passed)
	decision.MoreAfter = max(0, decision.MoreAfter-passed)
	if decision.RetryAfter > 0 {
		decision.RetryAfter = max(time.Nanosecond, decision.RetryAfter-passed)
	}
	return decision
}

// predictRefusal invents a refusal at the time sent, so that a node under
// pressure pauses before it asks again. The refusal applies to costs of more than
// the owner had left after its grant: the owner would refuse them, too. It is
// empty if the node is not under pressure, or if no limit calls for a pause.
func (le *lease) predictRefusal(sent time.Duration, ops []counters.Op) refusal {
	if !le.pressure.isHigh(sent, le.lastPolicy.TTL) {
		return refusal{}
	}

	rf := refusal{at: sent}
	for i := range ops {
		ll := &le.limits[i]
		op := refusedOp{cost: ll.lastDecision.Remaining + 1, decision: ll.lastDecision}

		pause := le.pressure.backOff(sent, le.lastPolicy, ops[i].Limit, ops[i].Cost)
		if pause > 0 {
			op.decision.Allowed, op.decision.RetryAfter = false, pause
			op.until = sent + pause
		}

		rf.until = max(rf.until, op.until)
		rf.ops = append(rf.ops, op)
	}

	if rf.until == 0 {
		return refusal{}
	}
	return rf
}
