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
// That says nothing about the network. So for a moment, paths that are down are
// unsure: not known to have failed.

// settleSilences is how many times Config.Silence a path may be unsure: since
// the process runs again, or since it last heard a node that it has lost.
const settleSilences = 2

// stalls records when this process did not run. Times are readings of Config.Boottime.
type stalls struct {
	lastPulse atomic.Int64
	resumed   atomic.Int64 // when the process ran again after its last stall; 0: there was none
}

// boottime reads Config.Boottime.
func (p *Peers) boottime() int64 { return int64(p.config.Boottime()) }

// isStall reports whether the time since the last pulse shows a stall.
func (p *Peers) isStall(passed int64) bool { return passed > int64(p.config.Silence+p.interval()) }

// checkStall records that a pulse takes place. If the process did not run before
// it, links without a connection dial at once.
func (p *Peers) checkStall() {
	now := p.boottime()

	last := p.stalls.lastPulse.Swap(now)
	if last == 0 || !p.isStall(now-last) {
		return
	}

	p.stalls.resumed.Store(now)
	for _, l := range *p.links.Load() {
		wake.Signal(l.dialNow)
	}
}

// pathPause is the time between two looks of AwaitPath. Paths have no signal to
// wait for, and waits are rare.
const pathPause = 2 * time.Millisecond

// AwaitPath waits until it is known whether a node has a path, or ctx ends.
func (p *Peers) AwaitPath(ctx context.Context, to ring.NodeID) {
	for p.PathUnsure(to) && ctx.Err() == nil {
		sleep(ctx, pathPause)
	}
}

// PathUnsure reports whether a node can't be reached now, but may be in a
// moment, because this process did not run for a while, or has just lost a
// connection to the node. That lasts for a fraction of a second.
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

	// A dial that has failed since the process runs again has settled it.
	resumed := p.stalls.resumed.Load()
	return resumed != 0 && time.Duration(now-resumed) < settleSilences*p.config.Silence && l.lastDialFailure.Load() < resumed
}
