package limiter

import (
	"sync"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
)

const (
	// forgetNoticePause is the minimum time between two broadcasts of one kind
	// about one subject.
	forgetNoticePause = 20 * time.Millisecond
	// maxNotices bounds the subjects whose last broadcast a node remembers.
	maxNotices = 4096
)

// notices remembers recent broadcasts about subjects, to limit their rate.
type notices struct {
	mu sync.Mutex
	// lastSent has, by Key.Subject, the time at which the subject's last broadcast
	// was sent or is due. mu guards the map.
	lastSent map[uint64]time.Duration
}

// delay returns how long after at to send a broadcast about a subject, and
// records that broadcast. It is negative if one is still due, which will do.
func (n *notices) delay(at time.Duration, subject uint64) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()

	last, known := n.lastSent[subject]
	switch {
	case known && last > at:
		return -1
	case known && at-last < forgetNoticePause:
		n.lastSent[subject] = last + forgetNoticePause
		return last + forgetNoticePause - at
	}

	if n.lastSent == nil || len(n.lastSent) >= maxNotices { // forgetting them only costs a few more messages
		n.lastSent = make(map[uint64]time.Duration)
	}

	n.lastSent[subject] = at
	return 0
}

// forgetSoon makes all nodes forget what f names, within forgetNoticePause.
func (ls *leases) forgetSoon(n *notices, f forgetMessage) {
	cp := ls.limiter.cluster
	wait := n.delay(cp.Boottime(), f.subject)
	if wait < 0 {
		return
	}

	if wait > 0 && cp.background.Go(func() {
		select {
		case <-time.After(wait):
		case <-cp.ctx.Done():
		}
		ls.broadcastForget(f)
	}) {
		return
	}

	// There is nothing to wait for, or too much is running in the background. In
	// the second case, too early is better than never.
	ls.broadcastForget(f)
}

// broadcastForget makes all nodes forget what f names. A node that the
// message does not reach forgets it within a lease's TTL anyway.
func (ls *leases) broadcastForget(f forgetMessage) {
	cp := ls.limiter.cluster
	body := wire.Encode(nil, &f)
	ls.held.Forget(cp.Boottime(), f.subject, f.refusalsOnly)
	for _, id := range cp.otherMembers() {
		_ = cp.Peers.Send(id, MethodForget, body)
	}
}

// forgetMessage is the body of MethodForget.
type forgetMessage struct {
	subject      uint64 // Key.Subject of the subject
	refusalsOnly bool   // there is room again: forget the refusals, keep the leases
}

// Code implements wire.Message.
func (f *forgetMessage) Code(c *wire.Coder) {
	wire.Fixed(c, &f.subject)
	c.Bool(&f.refusalsOnly)
}
