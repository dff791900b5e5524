package cluster

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/raftio"
	"github.com/rlnode/rlnode/internal/tasks"
	"github.com/rlnode/rlnode/ring"
)

// core is shared by all parts of a Cluster: this node's identity, the agreed state, and Raft.
type core struct {
	config    Config
	machine   *machine
	granter   *authority.Granter
	holder    *authority.Holder
	startedAt time.Time

	// handlers answer calls from this region and from others, by method.
	handlers map[peer.Method]handler

	// Start sets these. Until then, this node never leads, and knows no other
	// nodes.
	transport *raftio.Transport
	logs      *raftio.LogStore
	raft      atomic.Pointer[raft.Raft]
	gossip    atomic.Pointer[gossip.Gossip]
	started   atomic.Bool // all of the above are set

	nodeAddresses  atomic.Pointer[map[ring.NodeID]string] // addresses at which the other nodes accept calls; never nil
	identity       atomic.Pointer[peer.Identity]          // never nil
	leavingRing    atomic.Bool                            // this node wants to leave the ring
	leavingCluster atomic.Bool                            // this node wants to leave the cluster for good
	mostVoters     atomic.Int64                           // highest known number of voters; see mostVotersKnown

	memory memory
	feed   stateFeed
	// leaderChanges counts how many times this node has won or lost the lead.
	leaderChanges atomic.Uint64

	// Wake-up signals, each of capacity 1.
	stateApplied, leadChanged, reconcileNeeded, gossipChanged chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
	// Close waits for these for a bounded time.
	loops      tasks.Group
	calls      tasks.Group // of other nodes, being answered
	background tasks.Group // tasks that may outlive their callers
}

// Identity returns this node's identity, for peer.Config.Self.
func (c *core) Identity() peer.Identity { return *c.identity.Load() }

// Accept returns an error, which wraps ErrRefused, if the remote node belongs
// to another cluster. It is meant for peer.Config.Accept.
func (c *core) Accept(remote peer.Identity) error {
	ours := c.identity.Load().Cluster
	if ours != [16]byte{} && remote.Cluster != [16]byte{} && ours != remote.Cluster {
		return fmt.Errorf("%w: node %s (%s) belongs to cluster %s, but this node belongs to %s", ErrRefused,
			remote.Node, remote.Name, agreement.ClusterID(remote.Cluster), agreement.ClusterID(ours))
	}
	return nil
}

// Authority reports whether this node may act as an owner now.
func (c *core) Authority() bool { return c.holder.Valid() }

// ReadAuthority is Authority, and also returns for which generation of this node
// it was granted: see [authority.Holder.Read].
func (c *core) ReadAuthority() (generation int64, valid bool) { return c.holder.Read() }

// loop runs step once per interval and whenever wake has a value, until step
// returns true or this node closes.
func (c *core) loop(every time.Duration, wake <-chan struct{}, step func() (last bool)) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-wake:
		case <-c.ctx.Done():
			return
		}

		last := step()
		if last {
			return
		}
	}
}

// agree is propose, but it also fails if the entry was rejected.
func (c *core) agree(ctx context.Context, e agreement.Entry) (agreement.Result, error) {
	r, err := c.propose(ctx, e)
	if err == nil {
		err = r.Err
	}
	return r, err
}

// waitAtMost waits until all channels are closed, for at most bound. It reports
// whether they were closed in time.
func waitAtMost(bound time.Duration, all ...<-chan struct{}) bool {
	over := time.After(bound)
	for _, done := range all {
		select {
		case <-done:
		case <-over:
			return false
		}
	}
	return true
}
