package localcache

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

const (
	// pressedBy is how many checks of one subject are refused within the life of a lease before there is no hurry to ask
	// again.
	pressedBy = 8
	// holdParts is into how many parts a lease's life, and the time in which a bucket fills, are divided: a node that is
	// pressed waits for one at most.
	holdParts = 4
)

// pressure is how many checks of a subject were refused of late, here or by its owner. What is older than the life of a
// lease counts no more.
type pressure struct {
	refused float64
	at      time.Duration
}

// note counts one more check that was refused.
func (p *pressure) note(at, ttl time.Duration) {
	p.refused = p.of(at, ttl) + 1
	p.at = max(p.at, at)
}

func (p *pressure) of(at, ttl time.Duration) float64 {
	left := 1 - float64(max(0, at-p.at))/float64(max(1, ttl))
	return p.refused * max(0, left)
}

// on reports whether the node is pressed.
func (p *pressure) on(at, ttl time.Duration) bool { return p.of(at, ttl) >= pressedBy }

// hold is how long a node waits before it asks for more of a limit that has room again all the time, where it is
// pressed: else it would ask for each unit by itself as soon as that is there. It is no longer than what one question can
// bring takes to come back, its cost and a lease, so that one node alone can have all of a limit; and no bucket becomes
// full meanwhile.
func (p *pressure) hold(at time.Duration, t Terms, l *algorithms.Limit, cost int64) time.Duration {
	always := l.Kind == algorithms.TokenBucket || l.Kind == algorithms.SlidingWindow
	if !always || l.Amount == 0 || !p.on(at, t.TTL) {
		return 0
	}
	unit := float64(l.Window) / float64(l.Amount)
	brings := float64(cost) + float64(t.Part(l))
	return time.Duration(min(float64(t.TTL)/holdParts, float64(l.Capacity())*unit/holdParts, brings*unit))
}

// usedUp is what the owner would say, some time after the question was sent, to checks for more than it had left after
// what it granted: nothing where the node is not pressed.
func (e *lease) usedUp(sent time.Duration, ops []counters.Op) refusal {
	if !e.pressed.on(sent, e.terms.TTL) {
		return refusal{}
	}
	r := refusal{at: sent}
	for i := range ops {
		l := &e.limits[i]
		o := refusedOp{cost: l.told.Remaining + 1, decision: l.told}
		if hold := e.pressed.hold(sent, e.terms, ops[i].Limit, ops[i].Cost); hold > 0 {
			o.decision.Allowed, o.decision.RetryAfter = false, hold
			o.until = sent + hold
		}
		r.until = max(r.until, o.until)
		r.ops = append(r.ops, o)
	}
	if r.until == 0 {
		return refusal{}
	}
	return r
}
