package raftio

import (
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/peer"
)

const (
	// maxPool bounds Raft's idle connections to one node: one each for heartbeats,
	// entries and votes.
	maxPool = 3
	// failureRecheck is how often a held failure is checked again; see Transport.
	failureRecheck = 100 * time.Millisecond
	// storeRetry is how long to wait before sending entries again to a node that
	// could not store them.
	storeRetry = 500 * time.Millisecond
	// maxRepetitionHold is how long a message without news for a follower is held.
	maxRepetitionHold = 500 * time.Millisecond
	// heartbeatsPerTimeout is how many heartbeats a follower gets within
	// Config.HeartbeatTimeout.
	heartbeatsPerTimeout = 4
)

// Transport is Raft's network transport. It delays some results and messages,
// for three reasons.
//
// When sending entries to a node fails, Raft backs off after every failure, up
// to ten seconds. A node that comes back from a long cut would wait that long
// for the entries that it missed, without authority. Raft sends heartbeats from
// another goroutine, and retries them within 200 ms, forever. So Transport
// holds a failure until a heartbeat to the same node has succeeded: Raft then
// counts one failure for each cut, and retries at once. A node whose store
// fails rejects entries, and Raft backs off in the same way. Transport holds
// each rejection for half a second, and tells Raft not to back off.
//
// Raft repeats the commit index to each follower after Raft's CommitTimeout,
// whether the index has changed or not. The interval is short, so that
// followers learn a new commit index soon. To let idle nodes sleep, Transport
// holds repetitions until there is an entry to send, or for half a second.
//
// Raft sends about seven heartbeats within Config.HeartbeatTimeout. To wake
// nodes less often, Transport sends fewer, and sends them together with this
// node's other heartbeats.
//
// While this node leads, heartbeats also prove which nodes still follow it; see
// [authority.Confirmations].
type Transport struct {
	*raft.NetworkTransport
	config         Config
	heartbeatEvery time.Duration // about the time between heartbeats to one node

	// mu guards acceptedNotices and lastHeartbeats, which are bounded like Confirmations.
	mu              sync.Mutex
	acceptedNotices map[raft.ServerID]commitNotice  // the last message without entries that each node accepted
	lastHeartbeats  map[raft.ServerID]sentHeartbeat // the last heartbeat to each node

	// Confirmations holds the answers to heartbeats, for each node ever in Raft.
	Confirmations authority.Confirmations

	closing   chan struct{}
	closeOnce sync.Once
}

// commitNotice is the content of a message without entries.
type commitNotice struct{ term, last, committed uint64 }

// sentHeartbeat is a heartbeat that was sent.
type sentHeartbeat struct {
	term uint64
	at   time.Time
}

// Config configures a Transport.
type Config struct {
	Peers            *peer.Peers
	Addresses        raft.ServerAddressProvider
	HeartbeatTimeout time.Duration // how long a follower goes without hearing from the leader before it stands for election
	RPC              time.Duration // bounds one RPC
	Logger           *slog.Logger
	// StillReplicatesTo reports whether this node must still send entries of the
	// term to the node.
	StillReplicatesTo func(to raft.ServerID, term uint64) bool
	// WrittenAfter returns a channel that is closed once this node's log may have
	// an entry after index: at the latest, when it is written.
	WrittenAfter func(index uint64) <-chan struct{}
}

// NewTransport creates a transport. The caller must close it.
func NewTransport(config Config) *Transport {
	closing := make(chan struct{})
	network := raft.NetworkTransportConfig{
		ServerAddressProvider: config.Addresses,
		Logger:                NewLogger(config.Logger),
		Stream:                streamLayer{config.Peers.Raft(), closing},
		Timeout:               config.RPC,
		MaxPool:               maxPool,
		// With two requests in flight, Raft can deadlock after a follower fails to append.
		MaxRPCsInFlight:         1,
		MsgpackUseNewTimeFormat: true,
	}

	return &Transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&network),
		config:           config,
		heartbeatEvery:   config.HeartbeatTimeout / heartbeatsPerTimeout,
		acceptedNotices:  map[raft.ServerID]commitNotice{},
		lastHeartbeats:   map[raft.ServerID]sentHeartbeat{},
		closing:          closing,
	}
}

// isHeartbeat distinguishes heartbeats from other empty requests in the same way as Raft.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.Term != 0 && r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}

// AppendEntries sends entries or a heartbeat. It implements raft.Transport.
func (t *Transport) AppendEntries(
	id raft.ServerID, at raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	if isHeartbeat(args) {
		t.holdHeartbeat(id, args.Term)
		// The heartbeat gets its number after the hold. So it also confirms requests
		// for authority that arrived meanwhile.
		number := t.Confirmations.NextNumber()
		err := t.NetworkTransport.AppendEntries(id, at, args, resp)
		if err == nil {
			t.Confirmations.RecordAnswer(NodeID(id), resp.Term, number)
		}
		return err
	}

	isEmpty := len(args.Entries) == 0
	notice := commitNotice{args.Term, args.PrevLogEntry, args.LeaderCommitIndex}
	if isEmpty {
		t.holdRepetition(id, notice)
	}

	before := t.Confirmations.LastAnswered(NodeID(id))
	err := t.NetworkTransport.AppendEntries(id, at, args, resp)
	switch {
	case err != nil:
		t.holdFailure(id, args.Term, before)
	case !resp.Success && resp.Term == args.Term && !resp.NoRetryBackoff:
		// The node could not store the entries.
		t.pause(storeRetry, nil)
		resp.NoRetryBackoff = true
	case isEmpty && resp.Success:
		t.mu.Lock()
		t.acceptedNotices[id] = notice
		t.mu.Unlock()
	}

	return err
}

// holdHeartbeat waits until a heartbeat to the node is due and then records it.
// The first heartbeat of a term is due at once.
func (t *Transport) holdHeartbeat(id raft.ServerID, term uint64) {
	t.mu.Lock()
	last := t.lastHeartbeats[id]
	t.mu.Unlock()

	if last.term == term {
		t.holdUntilPulse(last.at)
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastHeartbeats[id] = sentHeartbeat{term, time.Now()}
}

// holdUntilPulse waits for this node's pulse that comes about heartbeatEvery after last.
func (t *Transport) holdUntilPulse(last time.Time) {
	// Pulses come at another interval, so a pulse counts once three quarters of
	// heartbeatEvery have passed. Without any pulse, the heartbeat is late by a
	// quarter at most.
	timeout := time.After(time.Until(last.Add(t.heartbeatEvery * 5 / 4)))
	for {
		select {
		case <-t.config.Peers.Pulse():
			if time.Since(last) >= t.heartbeatEvery*3/4 {
				return
			}
		case <-timeout:
			return
		case <-t.closing:
			return
		}
	}
}

// holdRepetition holds a message that the node has accepted before, if all
// entries are committed. It waits until there is another entry, but at most for
// maxRepetitionHold.
func (t *Transport) holdRepetition(id raft.ServerID, now commitNotice) {
	t.mu.Lock()
	again := t.acceptedNotices[id] == now
	t.mu.Unlock()
	if !again || now.committed < now.last {
		return
	}
	t.pause(maxRepetitionHold, t.config.WrittenAfter(now.last))
}

// pause waits until d has passed, early is closed, or this transport closes.
func (t *Transport) pause(d time.Duration, early <-chan struct{}) {
	select {
	case <-time.After(d):
	case <-early:
	case <-t.closing:
	}
}

// InstallSnapshot sends a snapshot. It implements raft.Transport.
func (t *Transport) InstallSnapshot(
	id raft.ServerID, at raft.ServerAddress, args *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	before := t.Confirmations.LastAnswered(NodeID(id))
	err := t.NetworkTransport.InstallSnapshot(id, at, args, resp, data)
	if err != nil {
		t.holdFailure(id, args.Term, before)
	}
	return err
}

// holdFailure waits until the node has answered a newer heartbeat than the one
// with the number before, or this node need not send it entries any more.
func (t *Transport) holdFailure(id raft.ServerID, term, before uint64) {
	tick := time.NewTicker(failureRecheck)
	defer tick.Stop()
	for t.Confirmations.LastAnswered(NodeID(id)) == before && t.config.StillReplicatesTo(id, term) {
		select {
		case <-tick.C:
		case <-t.closing:
			return
		}
	}
}

// Close closes all of Raft's connections: Raft reads without a deadline, and
// waits for its readers.
func (t *Transport) Close() error {
	// Held messages are released first: Raft could not end while they wait.
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

// Dial connects to another node's Raft. It refuses while closing, because Raft
// waits for its dialers.
func (l streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	select {
	case <-l.closing:
		return nil, raft.ErrTransportShutdown
	default:
	}
	return l.RaftLayer.Dial(string(address), timeout)
}
