package node

import (
	"sync"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

// How the checks of the last seconds were decided, for people who look: recentSeconds of them, a reading each second.
const recentSeconds = 10

// waysToDecide are how many there are.
const waysToDecide = int(limiter.ByNone) + 1

type recent struct {
	read func() []limiter.RuleStats

	mu   sync.Mutex // guards what follows
	ring [recentSeconds][waysToDecide]int64
	next int // place of the oldest reading
}

// note takes a reading.
func (r *recent) note() {
	now := r.total()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring[r.next] = now
	r.next = (r.next + 1) % recentSeconds
}

func (r *recent) total() (sum [waysToDecide]int64) {
	for _, s := range r.read() {
		for _, by := range s.Checks {
			for way, n := range by {
				sum[way] += n
			}
		}
	}
	return sum
}

// since is what was decided since the oldest reading, by the words of decided_by; ways that nothing was decided by are
// left out.
func (r *recent) since() map[string]int64 {
	now := r.total()
	r.mu.Lock()
	before := r.ring[r.next]
	r.mu.Unlock()
	out := map[string]int64{}
	for way := range now {
		// Rules that were removed took their figures with them.
		if n := now[way] - before[way]; n > 0 {
			out[limiter.DecidedBy(way).String()] = n
		}
	}
	return out
}

// follow takes a reading each second until stop is closed.
func (r *recent) follow(stop <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.note()
		case <-stop:
			return
		}
	}
}
