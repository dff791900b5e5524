package regions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/memnet"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	peerPort = 7947
	wanPort  = 7948

	methodEcho  peer.Method = 1 // replies with the serving node, a space and the body
	methodFail  peer.Method = 2
	methodNever peer.Method = 3
)

// world is a network in memory with regions of nodes. Node i of region r is at 10.r.0.i.
type world struct {
	t     *testing.T
	net   *memnet.Net
	nodes []*node
	boot  uint64

	mu     sync.Mutex     // guards the fields below, and nodes where goroutines other than the test's use them
	served map[string]int // how many times nodes of another region served a body
}

// node is a node of a test.
type node struct {
	world  *world
	region int
	i      int
	ip     string
	id     ring.NodeID
	log    *process.Output
	peers  *peer.Peers
	pool   atomic.Pointer[Pool]
	entry  bool

	mu         sync.Mutex // guards remembered
	remembered []string
}

func (n *node) String() string { return fmt.Sprintf("%s-%d", regionName(n.region), n.i) }

func regionName(r int) string { return []string{"ap", "eu", "us", "sa"}[r] }

// onVirtualTime runs a test on virtual time.
func onVirtualTime(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, net: memnet.New(), served: make(map[string]int)}
		w.net.Delay(40 * time.Millisecond)
		t.Cleanup(func() {
			for _, n := range w.nodes {
				n.close()
			}
			time.Sleep(20 * time.Second) // virtual; by then memberlist's last probes have ended
		})
		test(t, w)
	})
}

type option func(*Config, *peer.Config)

// start starts node i of a region, which is not an entry node yet. It is
// configured with a node of each other region.
func (w *world) start(r, i int, options ...option) *node {
	w.t.Helper()
	w.boot++
	n := &node{world: w, region: r, i: i, ip: fmt.Sprintf("10.%d.0.%d", r, i),
		id: ring.NodeID{byte(r + 1), 15: byte(i)}, log: &process.Output{}}
	host := w.net.Host(n.ip)
	logger := slog.New(slog.NewTextHandler(n.log, nil))
	boot := w.boot << 20
	pc := peer.Config{
		Self: func() peer.Identity {
			return peer.Identity{Node: n.id, Boot: boot, Name: n.String(), Region: regionName(r),
				Cluster: [16]byte{byte(r + 1)}}
		},
		Listen: func() (net.Listener, error) { return host.Listen(peerPort) },
		Dial:   host.Dial, Logger: logger,
		AcceptFar: func(remote peer.Identity) error { return n.pool.Load().Accept(remote) },
	}
	c := Config{
		Self:    Node{ID: n.id, Boot: boot, Name: n.String(), Region: regionName(r), PeerPort: peerPort},
		Primary: "eu", Bind: n.ip, Port: wanPort, Advertise: n.ip, Logger: logger,
		Transport: func() (memberlist.Transport, error) { return host.GossipTransport(wanPort) },
		Remember: func(all []string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.remembered = all
		},
	}
	for other := range 3 {
		if other != r {
			c.Join = append(c.Join, fmt.Sprintf("10.%d.0.1", other))
		}
	}
	for _, o := range options {
		o(&c, &pc)
	}
	peers, err := peer.New(pc)
	expect.NoError(w.t, err)
	n.peers, c.Peers = peers, peers
	p, err := Open(c)
	expect.NoError(w.t, err)
	n.pool.Store(p)
	w.mu.Lock()
	w.nodes = append(w.nodes, n)
	w.mu.Unlock()
	p.SetOwnEntryNodes(n.ownEntries)
	p.Handle(peers)
	for m := range 1 << 8 {
		if peer.Method(m) == peer.MethodClock { // package peer answers it
			continue
		}
		peers.Handle(peer.Method(m), peer.Far, n.serveFar)
	}
	peers.Start()
	w.introduce(r)
	return n
}

// introduce makes the nodes of a region know each other.
func (w *world) introduce(r int) {
	all := make(map[ring.NodeID]string)
	for _, n := range w.nodes {
		if n.region == r {
			all[n.id] = fmt.Sprintf("%s:%d", n.ip, peerPort)
		}
	}
	for _, n := range w.nodes {
		if n.region == r {
			others := make(map[ring.NodeID]string)
			for id, address := range all {
				if id != n.id {
					others[id] = address
				}
			}
			n.peers.SetNodes(others)
			n.pool.Load().SetRegionSize(len(all))
		}
	}
}

// ownEntryNodes returns the entry nodes of this node's region that it can reach.
func (n *node) ownEntries() (entries []ring.NodeID) {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	for _, o := range n.world.nodes {
		if o.region == n.region && o.entry && o != n && n.peers.Reachable(o.id) {
			entries = append(entries, o.id)
		}
	}
	return entries
}

func (n *node) setEntry(yes bool) {
	n.world.mu.Lock()
	n.entry = yes
	n.world.mu.Unlock()
	n.pool.Load().SetEntryNode(yes)
}

func (n *node) serveFar(c *peer.Call) {
	n.world.mu.Lock()
	n.world.served[string(c.Body)]++
	n.world.mu.Unlock()
	switch c.Method {
	case methodEcho:
		c.Reply([]byte(n.String() + " " + string(c.Body)))
	case methodFail:
		c.Fail(7, string(c.Body))
	}
}

func (w *world) timesServed(body string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.served[body]
}

func (n *node) close() {
	n.pool.Load().Close()
	n.peers.Close()
}

// kill stops a node without notice to any other.
func (w *world) kill(n *node) {
	w.net.Crash(n.ip)
	w.forget(n)
	n.close()
}

func (w *world) forget(n *node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = slices.DeleteFunc(w.nodes, func(o *node) bool { return o == n })
}

// startRegions starts three regions of that many entry nodes each, and waits
// until they reach each other.
func (w *world) startRegions(nodes int, options ...option) {
	w.t.Helper()
	for r := range 3 {
		for i := 1; i <= nodes; i++ {
			w.start(r, i, options...).setEntry(true)
		}
	}
	w.until(10*time.Second, "all regions reach each other", w.allReachable)
}

// allReachable reports whether all nodes reach all other regions.
func (w *world) allReachable() bool {
	for _, n := range w.nodes {
		for _, o := range w.nodes {
			if o.region != n.region && !n.pool.Load().Reachable(regionName(o.region)) {
				return false
			}
		}
	}
	return true
}

// node returns node i of region r.
func (w *world) node(r, i int) *node {
	w.t.Helper()
	for _, n := range w.nodes {
		if n.region == r && n.i == i {
			return n
		}
	}
	w.t.Fatalf("no node %d in %s", i, regionName(r))
	return nil
}

// until waits for a condition and returns how long that took.
func (w *world) until(most time.Duration, what string, ok func() bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > most {
			for _, n := range w.nodes {
				w.t.Logf("%v sees %v:\n%s", n, n.pool.Load().Regions(), n.log)
			}
			w.t.Fatalf("not within %v: %s", most, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// call calls a region and returns the name of the node that answered.
func (n *node) call(region int, body string, timeout time.Duration) (by string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	reply, err := n.pool.Load().Call(ctx, regionName(region), methodEcho, []byte(body))
	if err != nil {
		return "", err
	}
	by, have, _ := strings.Cut(string(reply), " ")
	if have != body || !strings.HasPrefix(by, regionName(region)) {
		return by, fmt.Errorf("have %q by %s, want %q by %s", have, by, body, regionName(region))
	}
	return by, nil
}

// isAway reports whether an error means that certainly nothing was sent.
func isAway(err error) bool { return errors.Is(err, ErrNoRoute) }

// cutRegions cuts the links between two regions.
func (w *world) cutRegions(a, b int) {
	for _, n := range w.nodes {
		for _, o := range w.nodes {
			if n.region == a && o.region == b {
				w.net.Cut(n.ip, o.ip)
			}
		}
	}
}
