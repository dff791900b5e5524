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
	// maxPool bounds Raft's idle connections to one node: one for heartbeats, one for entries, one for votes.
	maxPool = 3
	// heldCheck is how often a held-back failure is checked; see transport.
	heldCheck = 100 * time.Millisecond
)

// transport is Raft's network transport with held-back failures. When sending entries to a node fails, Raft waits longer
// after every failure, up to ten seconds. A node that comes back from a long cut would wait as long for the entries it
// missed, and get no authority meanwhile. Heartbeats, which another goroutine of Raft sends, are retried within 200 ms
// forever. So transport holds a failure back until a heartbeat to the same node has succeeded: Raft then counts one failure
// per cut, however long, and retries at once.
type transport struct {
	*raft.NetworkTransport
	// still reports whether this node still has to send entries of that term to that node.
	still func(to raft.ServerID, term uint64) bool

	// mu guards beats.
	mu    sync.Mutex
	beats map[raft.ServerID]uint64 // successful heartbeats by node; bounded by the nodes that were ever in Raft

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

// isHeartbeat detects heartbeats the way that Raft does, among other empty requests.
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

// hold waits until there is a heartbeat beyond the count before, or the entries are no longer needed.
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

// Close closes all of Raft's connections: Raft reads without a deadline, and waits for its readers.
func (t *transport) Close() error {
	t.closeOnce.Do(func() { close(t.closing) })
	err := t.NetworkTransport.Close()
	t.CloseStreams()
	return err
}

// streamLayer gives Raft connections on the peer port.
type streamLayer struct {
	peer.RaftLayer
	closing <-chan struct{}
}

// Dial connects to another node's Raft. Raft also waits for its dialers, so Dial refuses while closing.
func (l streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	select {
	case <-l.closing:
		return nil, raft.ErrTransportShutdown
	default:
	}
	return l.RaftLayer.Dial(string(address), timeout)
}

// serverID returns a node's ID in Raft.
func serverID(id ring.NodeID) raft.ServerID { return raft.ServerID(id.String()) }

// nodeID is the inverse of serverID; zero if id is not a node's.
func nodeID(id raft.ServerID) ring.NodeID {
	n, err := ring.ParseNodeID(string(id))
	if err != nil {
		return ring.NodeID{}
	}
	return n
}
