package limiter

import (
	"sync"
	"time"
)

const (
	// giftTime is the least time between two messages that make all nodes forget the refusals of one subject because something
	// was given back to it.
	giftTime = 20 * time.Millisecond
	// maxGifts bounds the subjects that gifts knows of.
	maxGifts = 4096
)

// gifts are the subjects to which something was given back a moment ago.
type gifts struct {
	mu sync.Mutex
	// told has when the nodes were last told of a subject, or will be; guarded by mu.
	told map[uint64]time.Duration
}

// next returns how long to wait before the nodes are told of a gift to a subject; below zero if they will be told of it anyway.
func (g *gifts) next(at time.Duration, hi uint64) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	last, known := g.told[hi]
	switch {
	case known && last > at:
		return -1
	case known && at-last < giftTime:
		g.told[hi] = last + giftTime
		return last + giftTime - at
	}
	if g.told == nil || len(g.told) >= maxGifts { // to forget all costs a few messages more
		g.told = make(map[uint64]time.Duration)
	}
	g.told[hi] = at
	return 0
}

// forgetRefusals makes all nodes forget what they remember of refusals of a subject, at once or a moment later.
func (ls *leases) forgetRefusals(hi uint64) {
	m := ls.l.member
	wait := ls.gifts.next(m.Boottime(), hi)
	if wait < 0 {
		return
	}
	f := forgetMessage{hi: hi, room: true}
	if wait > 0 && m.spawn(func() {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-m.ctx.Done():
		}
		ls.forgetEverywhere(f)
	}) {
		return
	}
	ls.forgetEverywhere(f)
}
