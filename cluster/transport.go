package cluster

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

const (
	// maxPool bounds Raft's idle connections to one node: one each for heartbeats, entries and votes.
	maxPool = 3
	// heldCheck is how often to check whether to release a held failure; see transport.
	heldCheck = 100 * time.Millisecond
	// storeRetry is how long to wait before sending entries again to a node that could not store them.
	storeRetry = 500 * time.Millisecond
	// repeatEvery is how long to hold a message that has nothing new for a follower.
	repeatEvery = 500 * time.Millisecond
	// beats is how many heartbeats a follower gets within Timings.Heartbeat.
	beats = 4
)

// transport is Raft's network transport. It delays some results and messages, for three reasons.
//
// When sending entries to a node fails, Raft backs off after every failure, up to ten seconds. A node that comes back from a
// long cut would wait that long for the entries that it missed, without authority. Raft retries heartbeats, which another of
// its goroutines sends, within 200 ms forever. So transport holds a failure until a heartbeat to the same node has
// succeeded: Raft then counts one failure per cut, no matter how long, and retries at once. A node whose store fails rejects
// entries, and Raft backs off in the same way: transport holds each rejection for a moment, and tells Raft not to back off.
//
// Raft repeats the commit index to each follower after Timings.Commit, whether it has changed or not. The interval is short,
// so that followers learn a new commit index soon. To let idle nodes sleep, transport holds repetitions until there is an
// entry to send.
//
// Raft sends about seven heartbeats within Timings.Heartbeat. To wake nodes less often, transport sends fewer, and sends
// them together with this node's other heartbeats.
//
// While this node leads, heartbeats also prove which nodes still follow it; see [authority.Confirmations].
type transport struct {
	*raft.NetworkTransport
	// still reports whether this node must still send entries of the term to the node.
	still func(to raft.ServerID, term uint64) bool
	// beyond returns a channel that is closed once this node's log has an entry after index.
	beyond func(index uint64) <-chan struct{}

	beatEvery time.Duration          // about the time between heartbeats to one node
	pulse     func() <-chan struct{} // returns a channel that is closed at this node's next pulse

	// mu guards told and beaten, which are bounded like followers.
	mu     sync.Mutex
	told   map[raft.ServerID]told // the last message without entries that each node accepted
	beaten map[raft.ServerID]beat // the last heartbeat to each node

	followers authority.Confirmations // bounded by the nodes that were ever in Raft

	closing   chan struct{}
	closeOnce sync.Once
}

// told is the content of a message without entries.
type told struct{ term, last, committed uint64 }

// beat is a heartbeat that was sent.
type beat struct {
	term uint64
	at   time.Time
}

func newTransport(
	cfg *Config, addresses raft.ServerAddressProvider, still func(raft.ServerID, uint64) bool, beyond func(uint64) <-chan struct{},
) *transport {
	closing := make(chan struct{})
	return &transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			ServerAddressProvider: addresses,
			Logger:                raftLogger(cfg.Logger),
			Stream:                streamLayer{cfg.Peers.Raft(), closing},
			MaxPool:               maxPool,
			// With two requests in flight, Raft can deadlock after a follower fails to append.
			MaxRPCsInFlight:         1,
			Timeout:                 cfg.Timings.RPC,
			MsgpackUseNewTimeFormat: true,
		}),
		still:     still,
		beyond:    beyond,
		beatEvery: cfg.Timings.Heartbeat / beats,
		pulse:     cfg.Peers.Pulse,
		told:      map[raft.ServerID]told{},
		beaten:    map[raft.ServerID]beat{},
		closing:   closing,
	}
}

// isHeartbeat distinguishes heartbeats from other empty requests in the same way as Raft.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.Term != 0 && r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}

// AppendEntries sends entries or a heartbeat. It implements raft.Transport.
func (t *transport) AppendEntries(id raft.ServerID, at raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if isHeartbeat(args) {
		t.holdHeartbeat(id, args.Term)
		number := t.followers.Number()
		err := t.NetworkTransport.AppendEntries(id, at, args, resp)
		if err == nil {
			t.followers.Answered(nodeID(id), resp.Term, number)
		}
		return err
	}
	empty, tells := len(args.Entries) == 0, told{args.Term, args.PrevLogEntry, args.LeaderCommitIndex}
	if empty {
		t.holdRepetition(id, tells)
	}
	before := t.followers.Last(nodeID(id))
	err := t.NetworkTransport.AppendEntries(id, at, args, resp)
	switch {
	case err != nil:
		t.hold(id, args.Term, before)
	case !resp.Success && resp.Term == args.Term && !resp.NoRetryBackoff: // the node could not store them
		t.pause(storeRetry, nil)
		resp.NoRetryBackoff = true
	case empty && resp.Success:
		t.mu.Lock()
		t.told[id] = tells
		t.mu.Unlock()
	}
	return err
}

// holdHeartbeat waits until a heartbeat to the node is due and then records it. The first heartbeat of a term is due at once.
func (t *transport) holdHeartbeat(id raft.ServerID, term uint64) {
	t.mu.Lock()
	last := t.beaten[id]
	t.mu.Unlock()
	if last.term == term {
		t.holdUntilPulse(last.at)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.beaten[id] = beat{term, time.Now()}
}

// holdUntilPulse waits for this node's pulse that comes about beatEvery after last.
func (t *transport) holdUntilPulse(last time.Time) {
	timer := time.NewTimer(time.Until(last.Add(t.beatEvery * 5 / 4)))
	defer timer.Stop()
	for {
		select {
		case <-t.pulse():
			if time.Since(last) >= t.beatEvery*3/4 {
				return
			}
		case <-timer.C:
			return
		case <-t.closing:
			return
		}
	}
}

// holdRepetition holds a message that the node has already accepted, if all entries are committed: until there is another
// entry, but at most for repeatEvery.
func (t *transport) holdRepetition(id raft.ServerID, now told) {
	t.mu.Lock()
	again := t.told[id] == now
	t.mu.Unlock()
	if !again || now.committed < now.last {
		return
	}
	t.pause(repeatEvery, t.beyond(now.last))
}

// pause waits until d has passed, early is closed, or this transport closes.
func (t *transport) pause(d time.Duration, early <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-t.closing:
	}
}

// InstallSnapshot sends a snapshot. It implements raft.Transport.
func (t *transport) InstallSnapshot(id raft.ServerID, at raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	before := t.followers.Last(nodeID(id))
	err := t.NetworkTransport.InstallSnapshot(id, at, args, resp, data)
	if err != nil {
		t.hold(id, args.Term, before)
	}
	return err
}

// hold waits until the node has answered a later heartbeat than before, or this node need not send it entries any more.
func (t *transport) hold(id raft.ServerID, term, before uint64) {
	tick := time.NewTicker(heldCheck)
	defer tick.Stop()
	for t.followers.Last(nodeID(id)) == before && t.still(id, term) {
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

// streamLayer provides Raft with connections on the peer port.
type streamLayer struct {
	peer.RaftLayer
	closing <-chan struct{}
}

// Dial connects to another node's Raft. It refuses while closing, because Raft waits for its dialers.
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

// nodeID is the inverse of serverID. It returns zero if id is not a node's ID.
func nodeID(id raft.ServerID) ring.NodeID {
	n, err := ring.ParseNodeID(string(id))
	if err != nil {
		return ring.NodeID{}
	}
	return n
}
