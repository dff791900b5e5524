package cluster

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

const (
	// maxPool is how many idle connections to one node Raft keeps: one for heartbeats, one for entries, one for votes.
	maxPool = 3
	// heldCheck is how often a failure held back is looked at; see transport.
	heldCheck = 100 * time.Millisecond
)

// transport is Raft's network transport with patience. When entries for a node fail, Raft waits longer with every
// failure, up to ten seconds, and a node that comes back from a long cut would wait as long for what it missed: it
// would get no authority meanwhile. Heartbeats, which a goroutine of Raft's own sends, are tried again within 200 ms
// for ever. So a failure is held back here until a heartbeat to the same node has succeeded: Raft then counts one
// failure for a cut, however long, and tries again at once.
type transport struct {
	*raft.NetworkTransport
	// still says whether entries of that term to that node are still wanted from here.
	still func(to raft.ServerID, term uint64) bool

	// mu guards beats.
	mu    sync.Mutex
	beats map[raft.ServerID]uint64 // successful heartbeats to a node, bounded by the nodes there ever were in Raft

	closing   chan struct{}
	closeOnce sync.Once
}

func newTransport(cfg *Config, addresses raft.ServerAddressProvider, still func(raft.ServerID, uint64) bool) *transport {
	closing := make(chan struct{})
	return &transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			ServerAddressProvider: addresses,
			Logger:                raftLogger(cfg.Logger),
			Stream:                streamLayer{cfg.Peers.Raft(), closing},
			MaxPool:               maxPool,
			// Two requests in flight can deadlock after a follower's append failed.
			MaxRPCsInFlight:         1,
			Timeout:                 cfg.Timings.RPC,
			MsgpackUseNewTimeFormat: true,
		}),
		still:   still,
		beats:   map[raft.ServerID]uint64{},
		closing: closing,
	}
}

// isHeartbeat is how Raft itself tells a heartbeat from other empty requests.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.Term != 0 && r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}

// AppendEntries sends entries or a heartbeat.
func (t *transport) AppendEntries(id raft.ServerID, at raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	before := t.beat(id)
	err := t.NetworkTransport.AppendEntries(id, at, args, resp)
	switch {
	case isHeartbeat(args):
		if err == nil {
			t.mu.Lock()
			t.beats[id]++
			t.mu.Unlock()
		}
	case err != nil:
		t.hold(id, args.Term, before)
	}
	return err
}

// InstallSnapshot sends a snapshot.
func (t *transport) InstallSnapshot(id raft.ServerID, at raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	before := t.beat(id)
	err := t.NetworkTransport.InstallSnapshot(id, at, args, resp, data)
	if err != nil {
		t.hold(id, args.Term, before)
	}
	return err
}

func (t *transport) beat(id raft.ServerID) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.beats[id]
}

// hold waits for a heartbeat after those counted before, or until nobody wants the entries any more.
func (t *transport) hold(id raft.ServerID, term, before uint64) {
	tick := time.NewTicker(heldCheck)
	defer tick.Stop()
	for t.beat(id) == before && t.still(id, term) {
		select {
		case <-tick.C:
		case <-t.closing:
			return
		}
	}
}

// Close ends all that Raft has open: it reads without a deadline, and waits for those who read.
func (t *transport) Close() error {
	t.closeOnce.Do(func() { close(t.closing) })
	err := t.NetworkTransport.Close()
	t.CloseStreams()
	return err
}

// streamLayer gives Raft the connections of peer's port.
type streamLayer struct {
	peer.RaftLayer
	closing <-chan struct{}
}

// Dial connects to another node's Raft. Raft waits for those who dial, too, so nobody begins to when it is closing.
func (l streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	select {
	case <-l.closing:
		return nil, raft.ErrTransportShutdown
	default:
	}
	return l.RaftLayer.Dial(string(address), timeout)
}

// serverID is a node's name in Raft.
func serverID(id ring.NodeID) raft.ServerID { return raft.ServerID(id.String()) }

// nodeID is the node of that name, or zero.
func nodeID(id raft.ServerID) ring.NodeID {
	n, err := ring.ParseNodeID(string(id))
	if err != nil {
		return ring.NodeID{}
	}
	return n
}
