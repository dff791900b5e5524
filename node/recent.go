package node

import (
	"sync"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/tick"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules/document"
)

// recentSeconds is the number of readings kept, one per second.
const recentSeconds = 10

// waysToDecide is the number of values of limiter.DecidedBy.
const waysToDecide = int(limiter.ByNone) + 1

// recent counts how checks were decided in the last seconds. Each second it
// also tells the limiter that one has passed.
type recent struct {
	ruleStats  func() []limiter.RuleStats
	passSecond func() // ends a step of what the limiter counts by time

	mu       sync.Mutex // guards the fields below
	readings [recentSeconds][waysToDecide]int64
	next     int // index of the oldest reading
}

// takeReading puts a new reading in place of the oldest.
func (r *recent) takeReading() {
	now := r.total()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readings[r.next] = now
	r.next = (r.next + 1) % recentSeconds
}

func (r *recent) total() (sum [waysToDecide]int64) {
	for _, s := range r.ruleStats() {
		for _, by := range s.Checks {
			for way, n := range by {
				sum[way] += n
			}
		}
	}
	return sum
}

// decidedBy returns how many checks were decided since the oldest reading, by
// the value of decided_by. A check counts for each rule that applied to it. It
// omits zeros.
func (r *recent) decidedBy() map[string]int64 {
	now := r.total()
	r.mu.Lock()
	before := r.readings[r.next]
	r.mu.Unlock()

	counts := map[string]int64{}
	for way := range now {
		// The counts of a rule go when the rule is removed, so n can be negative.
		n := now[way] - before[way]
		if n > 0 {
			counts[limiter.DecidedBy(way).String()] = n
		}
	}
	return counts
}

// follow takes a reading each second until stop is closed.
func (r *recent) follow(stop <-chan struct{}) {
	for range tick.Every(stop, time.Second) {
		r.takeReading()
		r.passSecond()
	}
}

// refusalPeriod is the time in which at most one refusal by a rule is logged, if they are sampled.
const refusalPeriod = time.Minute

// refusals returns the refused checks to log; nil if there are none to log.
func (n *Node) refusals() <-chan *limiter.Refusal {
	switch n.config.RefusalLog {
	case RefusalsSampled:
		return n.limiter.FollowRefusals(refusalPeriod)
	case RefusalsAll:
		return n.limiter.FollowRefusals(0)
	}
	return nil
}

// followRefusals logs refused checks until the node stops.
func (n *Node) followRefusals(list <-chan *limiter.Refusal) {
	for {
		select {
		case refusal := <-list:
			n.logRefusal(refusal)
		case <-n.ctx.Done():
			return
		}
	}
}

func (n *Node) logRefusal(r *limiter.Refusal) {
	switch r.DecidedBy {
	case limiter.ByList:
		n.log.Info("denied by the deny list", "subject", r.Subject, "left_out", r.More)
		return
	case limiter.ByNone:
		n.log.Info("denied by default", "subject", r.Subject, "left_out", r.More)
		return
	}

	retry := "never"
	if r.RetryAfter != algorithms.Never {
		retry = document.FormatDuration(ceilMillis(r.RetryAfter))
	}
	n.log.Info("refused", "rule", r.Rule, "subject", r.Subject, "used", r.Used, "limit", r.Limit, "unit", r.Unit,
		"retry", retry, "left_out", r.More)
}
