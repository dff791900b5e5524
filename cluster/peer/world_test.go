package peer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/memnet"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Methods that the nodes of these tests serve.
const (
	methodEcho Method = iota + 1
	methodFail
	methodNever // keeps the call and never answers
	methodLater // answers from another goroutine, twice
	methodCount // one-way
	methodSlow  // answers after 50 ms
	methodBusy  // takes a millisecond of the reader's time
)

const peerPort = 7401

// world is the network of a test's nodes: in memory, or TCP on this machine.
type world struct {
	t   *testing.T
	net *memnet.Net // nil: TCP
}

// onVirtualTime runs a test on a network in memory, with virtual time.
func onVirtualTime(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, &world{t: t, net: memnet.New()}) })
}

// onBothNetworks runs a test on both networks.
func onBothNetworks(t *testing.T, test func(t *testing.T, w *world)) {
	t.Run("memory", func(t *testing.T) { onVirtualTime(t, test) })
	t.Run("tcp", func(t *testing.T) { test(t, &world{t: t}) })
}

// node is a node of a test.
type node struct {
	*Peers
	id      ring.NodeID
	ip      string
	address string
	log     *process.Output
	fromFar *atomic.Int64 // messages from other regions; nil: not counted

	mu     sync.Mutex // guards the fields below
	self   Identity
	counts int
	calls  []*Call // those of methodNever
	later  sync.WaitGroup
}

func nodeID(i int) ring.NodeID { return ring.NodeID{0: 0xaa, 15: byte(i)} }

type option func(*Config, *node)

func withBoot(b uint64) option { return func(_ *Config, n *node) { n.self.Boot = b } }

func withID(id ring.NodeID) option { return func(_ *Config, n *node) { n.id, n.self.Node = id, id } }

func withCluster(c byte) option {
	return func(config *Config, n *node) {
		n.self.Cluster = [16]byte{c}
		config.Accept = func(remote Identity) error {
			if remote.Cluster != [16]byte{} && remote.Cluster != n.self.Cluster {
				return fmt.Errorf("it belongs to cluster %x, not %x", remote.Cluster[0], c)
			}
			return nil
		}
	}
}

func withTLS(s *TLS) option {
	return func(c *Config, _ *node) {
		if s != nil {
			c.TLS = s
		}
	}
}

// node starts node i, which is at 10.0.0.i if the network is in memory.
func (w *world) node(i int, options ...option) *node {
	w.t.Helper()
	n := &node{id: nodeID(i), log: &process.Output{}, ip: "127.0.0.1"}
	n.self = Identity{Node: n.id, Boot: 1, Name: "node-" + strconv.Itoa(i)}
	config := Config{
		Self:   func() Identity { n.mu.Lock(); defer n.mu.Unlock(); return n.self },
		Logger: slog.New(slog.NewTextHandler(n.log, nil)),
		Listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		},
	}
	if w.net == nil {
		config.Silence = 10 * time.Second // real time: a loaded machine must not fail a test
	} else {
		n.ip = "10.0.0." + strconv.Itoa(i)
		host := w.net.Host(n.ip)
		config.Listen = func() (net.Listener, error) { return host.Listen(peerPort) }
		config.Dial = host.Dial
	}
	for _, o := range options {
		o(&config, n)
	}
	p, err := New(config)
	expect.NoError(w.t, err)
	handleAll(p, Near, n.serve)
	handleAll(p, Far, func(c *Call) {
		if n.fromFar != nil {
			n.fromFar.Add(1)
		}
		n.serve(c)
	})
	n.Peers = p
	p.Start()
	n.address = p.Raft().Addr().String()
	w.t.Cleanup(func() { n.close(w.t) })
	return n
}

// handleAll registers a handler for all methods in a scope, but for this package's own.
func handleAll(p *Peers, s Scope, handler func(*Call)) {
	for m := range 1 << 8 {
		if Method(m) != MethodClock {
			p.Handle(Method(m), s, handler)
		}
	}
}

func (n *node) close(t *testing.T) {
	if err := n.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	n.later.Wait()
}

func (n *node) serve(c *Call) {
	switch c.Method {
	case methodEcho:
		c.Reply(c.Body)
	case methodFail:
		c.Fail(7, string(c.Body))
	case methodNever:
		c.CopyBody()
		n.mu.Lock()
		n.calls = append(n.calls, c)
		n.mu.Unlock()
	case methodLater:
		c.CopyBody()
		n.later.Go(func() {
			c.Reply(c.Body)
			c.Fail(1, "answered twice")
		})
	case methodBusy:
		time.Sleep(time.Millisecond)
		c.Reply(nil)
	case methodSlow:
		c.CopyBody()
		n.later.Go(func() {
			time.Sleep(50 * time.Millisecond)
			c.Reply(c.Body)
		})
	case methodCount:
		n.mu.Lock()
		n.counts++
		n.mu.Unlock()
		c.Reply([]byte("nobody waits for this"))
	}
}

func (n *node) counted() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counts
}

func (n *node) kept() []*Call {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls
}

func (n *node) knows(others ...*node) {
	nodes := make(map[ring.NodeID]string)
	for _, o := range others {
		nodes[o.id] = o.address
	}
	n.SetNodes(nodes)
}

// until polls until a condition holds, and fails the test after a deadline.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("not in time: %s", what)
		}
	}
}

// pair starts two nodes that are connected in both directions.
func (w *world) pair(options ...option) (a, b *node) {
	w.t.Helper()
	a, b = w.node(1, options...), w.node(2, options...)
	w.connect(a, b)
	return a, b
}

// connect makes two nodes know each other, and waits until each reaches the other.
func (w *world) connect(a, b *node) {
	w.t.Helper()
	a.knows(b)
	b.knows(a)
	w.connected(a, b)
	w.connected(b, a)
}

func (w *world) connected(a, b *node) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s reaches %s", a.self.Name, b.self.Name), func() bool { return a.Reachable(b.id) })
}

func (w *world) echo(from, to *node, text string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	have, err := from.Call(ctx, to.id, methodEcho, []byte(text))
	if err != nil || string(have) != text {
		w.t.Fatalf("have %q, %v, want %q", have, err, text)
	}
}

// dialer returns a function that makes plain connections to nodes, as a stranger would.
func (w *world) dialer() func(address string) net.Conn {
	return func(address string) net.Conn {
		w.t.Helper()
		var c net.Conn
		var err error
		if w.net != nil {
			c, err = w.net.Host("10.9.9.9").Dial(context.Background(), address)
		} else {
			c, err = net.Dial("tcp", netip.MustParseAddrPort(address).String())
		}
		expect.NoError(w.t, err)
		w.t.Cleanup(func() { c.Close() })
		return c
	}
}

// Remote returns the identity of the remote on the connection for calls to a node.
func (n *node) Remote(to ring.NodeID) (Identity, bool) {
	if l := (*n.links.Load())[to]; l != nil {
		if c := l.currentConn(); c != nil {
			return c.remote, true
		}
	}
	return Identity{}, false
}
