package peer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

// A process that did not run for a while, or whose machine was suspended, finds
// its connections silent or closed: the other nodes had to take it for lost.
// That says nothing about the network. So for a moment, its paths are unsure:
// neither working nor failed.

// settleSilences is how many times Config.Silence a process has to find a path:
// since it runs again, or since it last heard the node whose connection it lost.
const settleSilences = 2

// stalls records when this process did not run. Times are readings of Config.Boottime.
type stalls struct {
	lastPulse atomic.Int64
	resumed   atomic.Int64 // when the process ran again after its last stall; 0: there was none
}

// boottime reads Config.Boottime.
func (p *Peers) boottime() int64 { return int64(p.config.Boottime()) }

// isStall reports whether a time since the last pulse is so long that this process can't have run.
func (p *Peers) isStall(passed int64) bool { return passed > int64(p.config.Silence+p.interval()) }

// noteStall records that a pulse takes place. If the process did not run
// before, it makes the links that have no connection dial at once.
func (p *Peers) noteStall() {
	now := p.boottime()

	last := p.stalls.lastPulse.Swap(now)
	if last == 0 || !p.isStall(now-last) {
		return
	}

	p.stalls.resumed.Store(now)
	for _, l := range *p.links.Load() {
		wake.Signal(l.wake)
	}
}

// pathPause is how often AwaitPath looks. Paths have no signal to wait for, and
// waits are rare.
const pathPause = 2 * time.Millisecond

// AwaitPath waits until it is known whether a node can be reached, or ctx ends.
func (p *Peers) AwaitPath(ctx context.Context, to ring.NodeID) {
	for p.PathUnsure(to) && ctx.Err() == nil {
		sleep(ctx, pathPause)
	}
}

// PathUnsure reports whether a node can't be reached now, and it is not known
// yet whether there is a path: this process did not run for a while, or a
// connection has just been lost. That lasts for a fraction of a second.
func (p *Peers) PathUnsure(to ring.NodeID) bool {
	l := (*p.links.Load())[to]
	switch {
	case l == nil || p.Reachable(to):
		return false
	case l.isUnsure():
		return true
	}

	now := p.boottime()
	last := p.stalls.lastPulse.Load()
	if last != 0 && p.isStall(now-last) {
		return true // this process has only just begun to run again
	}

	resumed := p.stalls.resumed.Load()
	return resumed != 0 && time.Duration(now-resumed) < settleSilences*p.config.Silence && l.failed.Load() < resumed
}
