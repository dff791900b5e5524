package limiter

import (
	"sync"
	"time"
)

const (
	// noticeTime is the least time between two messages of one kind to all nodes about one subject.
	noticeTime = 20 * time.Millisecond
	// maxNotices bounds the subjects that a node knows it has sent messages about.
	maxNotices = 4096
)

// notices are the subjects of which all nodes were told something a moment ago.
type notices struct {
	mu sync.Mutex
	// told has when the nodes were last told of a subject, or will be; guarded by mu.
	told map[uint64]time.Duration
}

// next returns how long to wait before the nodes are told of a subject; below zero if they will be told anyway.
func (n *notices) next(at time.Duration, hi uint64) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	last, known := n.told[hi]
	switch {
	case known && last > at:
		return -1
	case known && at-last < noticeTime:
		n.told[hi] = last + noticeTime
		return last + noticeTime - at
	}
	if n.told == nil || len(n.told) >= maxNotices { // to forget all costs a few messages more
		n.told = make(map[uint64]time.Duration)
	}
	n.told[hi] = at
	return 0
}

// notify makes all nodes forget what f says, at once or a moment later.
func (ls *leases) notify(n *notices, f forgetMessage) {
	m := ls.l.member
	wait := n.next(m.Boottime(), f.hi)
	if wait < 0 {
		return
	}
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
