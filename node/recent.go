package node

import (
	"sync"
	"time"

	"github.com/rlnode/rlnode/internal/tick"
	"github.com/rlnode/rlnode/limiter"
)

// recentSeconds is the window of the figures on how checks were decided lately. One reading is taken each second.
const recentSeconds = 10

// waysToDecide is the number of values of limiter.DecidedBy.
const waysToDecide = int(limiter.ByNone) + 1

type recent struct {
	read     func() []limiter.RuleStats
	remember func() // keeps the limiter's history

	mu   sync.Mutex // guards the fields below
	ring [recentSeconds][waysToDecide]int64
	next int // index of the oldest reading
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

// since returns how many checks were decided since the oldest reading, by the words of decided_by. Ways that decided
// none are left out.
func (r *recent) since() map[string]int64 {
	now := r.total()
	r.mu.Lock()
	before := r.ring[r.next]
	r.mu.Unlock()
	out := map[string]int64{}
	for way := range now {
		// Removing a rule removes its figures, so n can be negative.
		if n := now[way] - before[way]; n > 0 {
			out[limiter.DecidedBy(way).String()] = n
		}
	}
	return out
}

// follow takes a reading each second until stop is closed.
func (r *recent) follow(stop <-chan struct{}) {
	for range tick.Every(stop, time.Second) {
		r.note()
		r.remember()
	}
}
