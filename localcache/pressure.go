package localcache

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

const (
	// pressureThreshold is the number of refusals of one subject within a lease's
	// TTL that put a node under pressure. The node then waits before it asks
	// again.
	pressureThreshold = 8
	// backOffDivisor bounds how long a node under pressure waits: at most
	// 1/backOffDivisor of a lease's TTL, and of the time in which the limit's whole
	// capacity comes back.
	backOffDivisor = 4
)

// pressure counts recent refusals of a subject's checks, by this node or its
// owner. The weight of a refusal falls to zero over a lease's TTL.
type pressure struct {
	refused float64
	at      time.Duration
}

func (p *pressure) addRefusal(now, ttl time.Duration) {
	p.refused = p.level(now, ttl) + 1
	p.at = max(p.at, now)
}

func (p *pressure) level(now, ttl time.Duration) float64 {
	left := 1 - float64(max(0, now-p.at))/float64(max(1, ttl))
	return p.refused * max(0, left)
}

// isHigh reports whether the node is under pressure.
func (p *pressure) isHigh(now, ttl time.Duration) bool { return p.level(now, ttl) >= pressureThreshold }

// backOff returns how long a node under pressure waits before it asks for more
// of a limit that regains room continuously. Without the wait, it would ask for
// each unit separately, as soon as the unit becomes available.
//
// The wait is no longer than it takes to regain what one question can bring
// (its cost and a lease), so that a single node can still use the whole limit.
// It is too short for a bucket to fill up in the meantime.
func (p *pressure) backOff(now time.Duration, policy Policy, l *algorithms.Limit, cost int64) time.Duration {
	continuous := l.Kind == algorithms.TokenBucket || l.Kind == algorithms.SlidingWindow
	if !continuous || l.Amount == 0 || !p.isHigh(now, policy.TTL) {
		return 0
	}
	unit := float64(l.Window) / float64(l.Amount)
	gain := float64(cost) + float64(policy.IdlePart(l))
	return time.Duration(min(float64(policy.TTL)/backOffDivisor, float64(l.Capacity())*unit/backOffDivisor, gain*unit))
}
