package node

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/ring"
)

// The address of a node without ports between nodes. No other node ever learns
// of it.
const (
	aloneIP   = "127.0.0.1"
	alonePort = 1
)

var errAlone = errors.New("this node runs alone")

// useNoNetwork replaces the network of a node that runs alone: nothing can
// connect to it, and it can reach nothing.
func (e *environment) useNoNetwork() {
	e.listen = func() (net.Listener, error) { return &silentListener{closed: make(chan struct{})}, nil }
	e.dial = func(context.Context, string) (net.Conn, error) { return nil, errAlone }
	e.gossip = silentTransport{}
	e.wan = func() (memberlist.Transport, error) { return silentTransport{}, nil }
}

// silentListener is a listener that never accepts a connection.
type silentListener struct {
	once   sync.Once
	closed chan struct{}
}

// Accept blocks until the listener is closed.
func (l *silentListener) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

// Close ends Accept.
func (l *silentListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr returns a placeholder address, which is never given to other nodes.
func (l *silentListener) Addr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(aloneIP), Port: alonePort}
}

// silentTransport is a gossip transport that delivers nothing.
type silentTransport struct{}

func (silentTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return net.ParseIP(aloneIP), alonePort, nil
}
func (silentTransport) WriteTo([]byte, string) (time.Time, error)           { return time.Now(), nil }
func (silentTransport) PacketCh() <-chan *memberlist.Packet                 { return nil }
func (silentTransport) StreamCh() <-chan net.Conn                           { return nil }
func (silentTransport) DialTimeout(string, time.Duration) (net.Conn, error) { return nil, errAlone }
func (silentTransport) Shutdown() error                                     { return nil }

// newIdentity returns a random identity, for a node without a data directory.
func newIdentity() (id ring.NodeID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// memoryStore holds Raft's state in memory, for a node without a data directory.
type memoryStore struct {
	log       *raft.InmemStore
	snapshots *raft.InmemSnapshotStore
}

func newMemoryStore() *memoryStore {
	return &memoryStore{log: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore()}
}

func (ms *memoryStore) Logs() raft.LogStore           { return ms.log }
func (ms *memoryStore) Stable() raft.StableStore      { return ms.log }
func (ms *memoryStore) Snapshots() raft.SnapshotStore { return ms.snapshots }
func (ms *memoryStore) Probe() error                  { return nil }
func (ms *memoryStore) Close() error                  { return nil }
