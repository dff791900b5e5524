package limiter

import (
	"sync"
	"time"
)

const (
	// noticeTime is the minimum time between two broadcasts of one kind about one subject.
	noticeTime = 20 * time.Millisecond
	// maxNotices bounds the subjects whose last broadcast a node remembers.
	maxNotices = 4096
)

// notices remembers the recent broadcasts about each subject, to limit their rate.
type notices struct {
	mu sync.Mutex
	// told holds the time of each subject's last broadcast, which may still lie ahead. By Key.Hi; guarded by mu.
	told map[uint64]time.Duration
}

// next returns how long to wait before the broadcast about a subject; negative if one is already scheduled.
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
	if n.told == nil || len(n.told) >= maxNotices { // forgetting them only costs a few more messages
		n.told = make(map[uint64]time.Duration)
	}
	n.told[hi] = at
	return 0
}

// notify makes all nodes forget what f names, at once or up to noticeTime later.
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
