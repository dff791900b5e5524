package cluster

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// core is what all parts of a Cluster stand on: who this node is, what was agreed, and its place in Raft.
type core struct {
	cfg     Config
	machine *machine
	giver   *authority.Giver
	holder  *authority.Holder
	opened  time.Time

	// handlers answer calls, of this region and of others, by method.
	handlers map[peer.Method]handler

	// Start sets these, in this order. Before, this node leads nobody, and knows nobody.
	trans   *transport
	logs    *watchedLogs
	raft    atomic.Pointer[raft.Raft]
	gossip  atomic.Pointer[gossip.Gossip]
	started atomic.Bool // all of it is there

	known     atomic.Pointer[map[ring.NodeID]string] // where the other nodes take calls; never nil
	identity  atomic.Pointer[peer.Identity]          // never nil
	leaving   atomic.Bool                            // this node wants to leave the ring
	departing atomic.Bool                            // and the cluster, for good
	voters    atomic.Int64                           // the most that there were; see votersBefore

	memory memory
	follow follower
	// leaderChanges is how often this node has won or lost the lead.
	leaderChanges atomic.Uint64

	// Each of capacity 1: there is something to look at.
	applied, found, reconcile, founding chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup // the loops
	tasks  chan struct{}  // one for each call that is being answered
	late   sync.WaitGroup // what Close waits for at the very end, bounded

	// spawning guards closed, so that no task begins after Close has begun to wait.
	spawning sync.Mutex
	closed   bool
}

// loop runs step at each tick and each time that wake has a value, until a step was the last, or this node closes.
func (c *core) loop(every time.Duration, wake <-chan struct{}, step func() (last bool)) {
	t := time.NewTicker(every)
	defer t.Stop()
	for last := false; !last; last = step() {
		select {
		case <-t.C:
		case <-wake:
		case <-c.ctx.Done():
			return
		}
	}
}
