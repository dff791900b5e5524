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
	// holdParts is into how many parts a lease's life, and what a bucket holds, are divided: one is what comes back to a
	// limit before a node that is pressed asks for more.
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

// hold is how long a node waits before it asks for more of a limit that has room again all the time, where it is
// pressed: else it would ask for each unit by itself as soon as that is there. No bucket becomes full meanwhile.
func (p *pressure) hold(at, ttl time.Duration, l *algorithms.Limit) time.Duration {
	if p.of(at, ttl) < pressedBy {
		return 0
	}
	switch l.Kind {
	case algorithms.TokenBucket:
		full := float64(l.Capacity()) / float64(l.Amount) * float64(l.Window)
		return time.Duration(min(float64(ttl), full) / holdParts)
	case algorithms.SlidingWindow:
		return ttl / holdParts
	}
	return 0
}

// usedUp is what the owner would say to checks for more than it had left at that time, after what it granted: nothing
// where the node is not pressed.
func (e *lease) usedUp(at time.Duration, ops []counters.Op) refusal {
	r := refusal{at: at}
	for i := range ops {
		d := e.limits[i].told
		o := refusedOp{cost: d.Remaining + 1, decision: d}
		if hold := e.pressed.hold(at, e.ttl, ops[i].Limit); hold > 0 {
			o.decision.Allowed, o.decision.RetryAfter = false, hold
			o.until = at + hold
		}
		r.until = max(r.until, o.until)
		r.ops = append(r.ops, o)
	}
	if r.until == 0 {
		return refusal{}
	}
	return r
}
