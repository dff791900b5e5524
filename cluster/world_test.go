package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/memnet"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// Whole clusters make much garbage; fewer collections make the tests faster.
// GOGC sets another bound.
func TestMain(m *testing.M) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	goleak.VerifyTestMain(m)
}

const (
	gossipPort = 7946
	peerPort   = 7947
)

// node is a node of a test.
type node struct {
	w      *world
	name   string
	ip     string
	zone   string
	id     ring.NodeID
	boot   uint64
	idle   bool // don't start its Cluster
	expect int
	join   []string
	region string // "here" if empty
	far    *farNet
	disk   *disk
	adjust func(*Config)
	dieAt  int64        // the process dies at this write of its store; 0: never
	ahead  atomic.Int64 // nanoseconds by which its wall clock is ahead

	c       atomic.Pointer[Cluster]
	store   *store
	peers   *peer.Peers
	rules   atomic.Pointer[rules.Set]
	state   atomic.Pointer[agreement.State]
	running bool
}

// world is the machines of a test and the network between them.
type world struct {
	t     testing.TB
	net   *memnet.Net
	start time.Time
	log   *slog.Logger
	nodes []*node
	boots uint64
	away  map[*node]bool // isolated nodes
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, net: memnet.New(), start: time.Now(), away: map[*node]bool{}, log: slog.New(slog.DiscardHandler)}
	if os.Getenv("RLNODE_TEST_LOG") != "" {
		w.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return w
}

// onVirtualTime runs a test with a new world, and ends that.
func onVirtualTime(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		test(t, w)
	})
}

// add creates a node that is not running yet. IDs follow the node numbers, so
// the first node added has the lowest.
func (w *world) add(expect int, join ...*node) *node {
	n := &node{w: w, expect: expect, disk: newDisk()}
	i := len(w.nodes) + 1
	n.name, n.ip = fmt.Sprintf("n%d", i), fmt.Sprintf("10.0.0.%d", i)
	binary.BigEndian.PutUint64(n.id[:], uint64(i))
	for _, j := range join {
		n.join = append(n.join, j.ip)
	}
	w.nodes = append(w.nodes, n)
	return n
}

// several adds nodes that found a cluster together and know all others' addresses.
func (w *world) several(count, expect int) []*node {
	first := len(w.nodes)
	for range count {
		w.add(expect)
	}
	all := w.nodes[first:]
	for _, n := range all {
		for _, m := range all {
			if n != m {
				n.join = append(n.join, m.ip)
			}
		}
	}
	return all
}

const firstRules = "version: 1\nrules:\n  - name: login\n    key: [ip]\n    limits:\n      - limit: 5\n        per: 1m\n"

// run starts the node's process, or a new one if it ran before.
func (n *node) run() *node {
	n.w.t.Helper()
	w, host := n.w, n.w.net.Host(n.ip)
	w.boots++
	n.boot = w.boots
	log := w.log.With("at", n.name)
	self := Node{ID: n.id, Boot: n.boot, Name: n.name, Address: n.ip,
		Region: cmp.Or(n.region, "here"), Zone: n.zone, PeerPort: peerPort}
	var c *Cluster
	peers, err := peer.New(peer.Config{
		Self:   func() peer.Identity { return c.Identity() },
		Accept: func(remote peer.Identity) error { return c.Accept(remote) },
		Listen: func() (net.Listener, error) { return host.Listen(peerPort) },
		Dial:   host.Dial,
		Wall:   func() int64 { return time.Now().UnixNano() + n.ahead.Load() },
		Logger: log,
	})
	expect.NoError(w.t, err)
	transport, err := host.GossipTransport(gossipPort)
	expect.NoError(w.t, err)
	n.store = &store{disk: n.disk, dieAt: n.dieAt, onDeath: func() { w.net.Crash(n.ip) }}
	config := DefaultConfig()
	config.Self, config.BootstrapExpect, config.Store, config.Peers, config.Logger = self, n.expect, n.store, peers, log
	config.Gossip = gossip.Config{BindAddr: n.ip, Port: gossipPort, Advertise: n.ip, Join: n.join,
		Transport: transport, Logger: log}
	config.InitialRules = func() ([]byte, string) { return []byte(firstRules), n.name }
	config.OnState = func(s *agreement.State) { n.state.Store(s) }
	config.OnRules = func(s *rules.Set) { n.rules.Store(s) }
	config.Boottime = func() time.Duration { return time.Since(w.start) }
	if n.far != nil {
		config.OtherRegions, config.Primary = &far{net: n.far, node: n}, n.far.primaries()[n.region]
		config.InitialRules = func() ([]byte, string) { return worldWide(5).Body, n.name }
	}
	if n.adjust != nil {
		n.adjust(&config)
	}
	if c, err = New(config); err != nil {
		w.t.Fatal(err)
	}
	c.Handle(peers)
	peers.Start()
	if n.idle {
		err = transport.Shutdown() // otherwise gossip would have closed it
	} else {
		err = c.Start()
	}
	expect.NoError(w.t, err)
	n.peers, n.running = peers, true
	n.c.Store(c)
	return n
}

// stop ends the process as a signal would.
func (n *node) stop() {
	n.w.t.Helper()
	if !n.running {
		return
	}
	n.running = false
	if err := n.c.Load().Close(); err != nil {
		n.w.t.Errorf("close %s: %v", n.name, err)
	}
	n.c.Store(nil)
	if err := n.peers.Close(); err != nil {
		n.w.t.Errorf("close the peers of %s: %v", n.name, err)
	}
}

// crash ends the process as kill -9 would: no other node hears from it again.
func (n *node) crash() {
	n.w.net.Crash(n.ip)
	n.stop()
}

// end stops all nodes.
func (w *world) end() {
	w.net.HealAll()
	for _, n := range w.nodes {
		w.net.Thaw(n.ip)
	}
	for _, n := range w.nodes {
		n.stop()
	}
	// memberlist does not wait for its probes, but a bubble waits for all goroutines.
	time.Sleep(time.Minute)
}

// until waits for a condition, and fails the test if it does not hold within a bound.
func (w *world) until(bound time.Duration, what string, ok func() bool) {
	w.t.Helper()
	end := time.Now().Add(bound)
	for !ok() {
		if time.Now().After(end) {
			for _, n := range w.nodes {
				if c := n.c.Load(); c != nil {
					w.t.Logf("%s: ready %v, %v, %+v", n.name, c.ReadyError(), c.raft.Load(), c.View())
				}
			}
			w.t.Fatalf("no %s within %s", what, bound)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// ready waits until the nodes are ready.
func (w *world) ready(nodes ...*node) {
	w.t.Helper()
	w.until(40*time.Second, "ready nodes", func() bool {
		for _, n := range nodes {
			if n.c.Load().ReadyError() != nil {
				return false
			}
		}
		return true
	})
}

// inRing waits until the ring has settled with exactly these nodes.
func (w *world) inRing(nodes ...*node) {
	w.t.Helper()
	want := make([]ring.NodeID, len(nodes))
	for i, n := range nodes {
		want[i] = n.id
	}
	slices.SortFunc(want, ring.NodeID.Compare)
	w.until(60*time.Second, "ring of these nodes", func() bool {
		for _, n := range nodes {
			s := n.c.Load().State()
			if !s.Settled || !slices.Equal(s.To.Members(), want) {
				return false
			}
		}
		return true
	})
}

// leader returns a node that leads and is not cut off, or nil.
func (w *world) leader() *node {
	for _, n := range w.nodes {
		if c := n.c.Load(); c != nil && c.leads() && !w.away[n] {
			return n
		}
	}
	return nil
}

// isolate cuts a node off.
func (w *world) isolate(n *node) {
	w.away[n] = true
	w.net.Isolate(n.ip)
}

// rejoin undoes isolate.
func (w *world) rejoin(n *node) {
	delete(w.away, n)
	w.net.Rejoin(n.ip)
}

// aLeader waits until a node leads.
func (w *world) aLeader() *node {
	w.t.Helper()
	w.until(20*time.Second, "leader", func() bool { return w.leader() != nil })
	return w.leader()
}

// changeTo returns a change to a rules file with the given limit.
func changeTo(limit int) document.Change {
	return document.Change{Body: fmt.Appendf(nil,
		"version: 1\nrules:\n  - name: login\n    key: [ip]\n    limits:\n      - limit: %d\n        per: 1m\n", limit)}
}

// write changes the rules through a node.
func (n *node) write(limit int, ifMatch int64) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	change := changeTo(limit)
	if n.far != nil {
		change = worldWide(limit)
	}
	return n.c.Load().Write(ctx, change, WriteOptions{IfMatch: ifMatch, By: n.name})
}

// mustWrite writes, and fails the test on an error.
func (n *node) mustWrite(limit int) int64 {
	n.w.t.Helper()
	v, err := n.write(limit, 0)
	if err != nil {
		n.w.t.Fatalf("write through %s: %v", n.name, err)
	}
	return v
}

func shuffled(nodes []*node) []*node {
	out := slices.Clone(nodes)
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}
