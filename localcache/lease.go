package localcache

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// lease is what this node may spend of one subject without asking its owner,
// and the owner's last refusal.
type lease struct {
	subject       uint64
	source        Source
	limits        []leasedLimit // at least one
	grants        []grant       // at most MaxGrants; the first one is being spent
	lastGrant     uint64        // ID of the last grant that arrived
	lastRefusal   refusal
	forgottenAt   time.Duration // when Forget last dropped a refusal; 0 if never
	pressure      pressure
	renewingUntil time.Duration // a renewal is in flight until then, or until it is answered
	nextRenewal   time.Duration // the earliest time of the next renewal
	decisionAt    time.Duration // when the owner's decisions that limits record arrived here
	lastUsed      time.Duration // when a check or request last used the lease
	lastPolicy    Policy        // of the last request
	keepFor       time.Duration // how long to remember the lease after lastUsed
	hasChecks     bool          // an op in CheckMode with a cost has used the lease
	hasCounts     bool          // an op in CountMode has used the lease

	due   time.Duration // when expire must run
	index int           // in the shard's queue
}

// Source identifies the origin of a grant: the owner, its process, and the lineage of its counters.
type Source struct {
	Owner   ring.NodeID
	Boot    uint64 // of the owner
	Lineage uint64
}

// leasedLimit is one limit's part of a lease.
type leasedLimit struct {
	counter      uint64
	limit        *algorithms.Limit
	demand       demand
	lastDecision algorithms.Decision // the owner's last decision, less the grant that came with it
}

// MaxGrants bounds the grants that this node holds of one subject: the one
// being spent, and the next.
const MaxGrants = 2

// grant is what the owner debited in advance for this node to spend.
type grant struct {
	id        uint64
	until     time.Duration // the node must stop spending then
	life      counters.Life // as in Grant
	debitedAt int64         // as in Grant
	parts     []balance     // by limit
}

// balance is what is left of one limit's part of a grant.
type balance struct {
	left, size int64
	mark       algorithms.TakeMark // when the owner debited it
}

// isInline reports whether the lease belongs to an inline subject.
func (le *lease) isInline() bool { return counters.Key{Counter: le.limits[0].counter}.IsInline() }

// matches reports whether ops have exactly the lease's limits, in the same
// order.
func (le *lease) matches(ops []counters.Op) bool {
	if len(ops) != len(le.limits) {
		return false
	}
	for i := range ops {
		if ll := &le.limits[i]; ll.counter != ops[i].Key.Counter || !ll.limit.Equal(ops[i].Limit) {
			return false
		}
	}
	return true
}

// setRefusal remembers rf, which follows from the answer to a question sent at
// the time sent. It does not if Forget was called later: the answer may not know
// of what has freed the subject.
func (le *lease) setRefusal(sent time.Duration, rf refusal) {
	if sent >= le.forgottenAt {
		le.lastRefusal = rf
	}
}

// reset empties the lease and gives it the limits of ops.
func (le *lease) reset(ops []counters.Op) {
	le.limits = le.limits[:0]
	for i := range ops {
		le.limits = append(le.limits, leasedLimit{counter: ops[i].Key.Counter, limit: ops[i].Limit})
	}
	le.grants = le.grants[:0]
	le.lastRefusal = refusal{}
	le.pressure = pressure{}
	le.hasChecks, le.hasCounts = false, false
}

// unspend puts the cost of ops, which was spent from the grant, back into it.
func (gr *grant) unspend(ops []counters.Op) {
	for i := range ops {
		b := &gr.parts[i]

		// A part never has more left than the owner debited, whatever comes back.
		b.left = min(b.size, b.left+ops[i].Cost)
	}
}

// covers reports whether the i-th grant has enough left for ops, all of them.
// It reports false for looks that the lease may not answer.
func (le *lease) covers(i int, ops []counters.Op) bool {
	if i >= len(le.grants) || ops[0].Mode == counters.PeekMode && !le.canAnswerLooks() {
		return false
	}
	for j := range ops {
		if le.grants[i].parts[j].left < ops[j].Cost {
			return false
		}
	}
	return true
}

// canAnswerLooks reports whether the lease may answer a look: only if checks
// have used it, and no counts. A count may overdraw the owner's counter. What
// is left of a grant then says nothing about what is left of the counter.
func (le *lease) canAnswerLooks() bool { return le.hasChecks && !le.hasCounts }

// recordModes records the mode of ops, all of one subject. A check without costs
// does not count: such ops also come from renewals.
func (le *lease) recordModes(ops []counters.Op) {
	mode := ops[0].Mode
	switch {
	case mode == counters.CountMode:
		le.hasCounts = true
	case mode == counters.CheckMode && slices.ContainsFunc(ops, func(op counters.Op) bool { return op.Cost > 0 }):
		le.hasChecks = true
	}
}

// spend debits ops from the first grant, which covers them, and sets their
// decisions: an estimate of those that the owner would have made. Looks debit
// nothing.
func (le *lease) spend(now time.Duration, ops []counters.Op) {
	for i := range ops {
		ll := &le.limits[i]
		op := &ops[i]

		took := op.Cost
		if op.Mode == counters.PeekMode {
			took = 0
		}

		le.grants[0].parts[i].left -= took
		ll.demand.add(op.Cost)

		decision := ageDecision(ll.lastDecision, now-le.decisionAt)
		decision.Allowed = true
		decision.RetryAfter = 0
		decision.Delay = 0
		decision.MoreAfter = 0
		for j := range le.grants {
			decision.Remaining += le.grants[j].parts[i].left
		}

		share := max(0, op.Limit.Capacity()+decision.NetBorrowed)
		decision.Remaining = min(decision.Remaining, share)
		decision.Used = share - decision.Remaining
		decision.Remaining -= op.Cost - took // as in every peek

		// Remaining is only an estimate, so nobody knows when it grows, except at the
		// end of a fixed window.
		if op.Limit.Kind == algorithms.FixedWindow {
			decision.MoreAfter = decision.ResetAfter
		}

		op.Decision, op.NoRoom = decision, false
	}

	le.lastUsed = now
}

// needsRenewal reports whether so much of the first grant is spent that the
// node should fetch the next one.
func (le *lease) needsRenewal(now time.Duration) bool {
	if len(le.grants) == MaxGrants || now < le.renewingUntil || now < le.nextRenewal || now < le.lastRefusal.until {
		return false
	}

	// If all holders of a subject asked at the same level, they would ask at once.
	// So the level varies with the grant and the subject: 3 to 5 eighths.
	gr := &le.grants[0]
	eighths := 3 + int64(gr.id&1) + int64(le.subject>>5&1)
	for i := range gr.parts {
		if b := &gr.parts[i]; b.size > 0 && b.left <= b.size*eighths/8 {
			return true
		}
	}
	return false
}

// addUnspent adds what is left of the lease's grants to the decisions of ops.
// include says which grants to add.
func (le *lease) addUnspent(ops []counters.Op, include func(gr *grant) bool) {
	for i := range le.grants {
		gr := &le.grants[i]
		if !include(gr) {
			continue
		}

		for j := range ops {
			decision := &ops[j].Decision
			left := gr.parts[j].left
			maxRemaining := max(0, ops[j].Limit.Capacity()+decision.NetBorrowed)
			if !decision.Allowed {
				// Keep Remaining below the cost, as the answer is a refusal.
				maxRemaining = max(decision.Remaining, min(maxRemaining, ops[j].Cost-1))
			}
			decision.AddRemaining(ops[j].Limit, max(0, min(left, maxRemaining-decision.Remaining)))
			decision.Used = max(0, decision.Used-left)
		}
	}
}
