package gossip

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/memnet"
	"github.com/rlnode/rlnode/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testPort = 7946

// journal collects log output.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (*journal) Enabled(context.Context, slog.Level) bool { return true }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler     { return j }
func (j *journal) WithGroup(string) slog.Handler          { return j }
func (j *journal) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", r.Level, r.Message)
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s", a); return true })
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, b.String())
	return nil
}

// count returns the number of lines at level or above that contain text.
func (j *journal) count(level slog.Level, text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for _, l := range j.lines {
		var at slog.Level
		word, _, _ := strings.Cut(l, " ")
		if at.UnmarshalText([]byte(word)) == nil && at >= level && strings.Contains(l, text) {
			n++
		}
	}
	return n
}

// world is a network in memory with nodes on it. Node i has the IP 10.0.0.i.
type world struct {
	t     *testing.T
	net   *memnet.Net
	nodes map[int]*node
}

type node struct {
	*Gossip
	log *journal
	ip  string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, net: memnet.New(), nodes: make(map[int]*node)}
	t.Cleanup(w.close)
	return w
}

// newAgreedWorld returns a world of n nodes that see each other.
func newAgreedWorld(t *testing.T, n int) *world {
	t.Helper()
	w := newWorld(t)
	for i := 1; i <= n; i++ {
		w.start(i)
	}
	w.agree(15*time.Second, summaryOf(n, nil))
	return w
}

func (w *world) close() {
	for _, n := range w.nodes {
		n.Close()
	}
	time.Sleep(10 * time.Second) // virtual; by then memberlist's last probes have ended
}

func ip(i int) string { return fmt.Sprintf("10.0.0.%d", i) }

func id(i int) ring.NodeID { return ring.NodeID{15: byte(i)} }

// start opens node i, with node 1 as its seed.
func (w *world) start(i int, options ...func(*Config)) *node {
	w.t.Helper()
	n := w.startAt(i, ip(i), options...)
	w.nodes[i] = n
	return n
}

// startAt opens a node with the ID of node i at ip. The caller closes it.
func (w *world) startAt(i int, ip string, options ...func(*Config)) *node {
	w.t.Helper()
	n := &node{log: &journal{}, ip: ip}
	transport, err := w.net.Host(ip).GossipTransport(testPort)
	expect.NoError(w.t, err)
	c := Config{
		Self: Member{ID: id(i), Boot: uint64(i), Name: fmt.Sprintf("n%d", i), Region: "default",
			Zone: "z", PeerPort: 7947},
		Port: testPort, Advertise: ip, Join: []string{"10.0.0.1"}, Transport: transport, Logger: slog.New(n.log),
	}
	for _, o := range options {
		o(&c)
	}
	if n.Gossip, err = Open(c); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// crash removes node i from the network without notice to any other.
func (w *world) crash(i int) {
	n := w.nodes[i]
	delete(w.nodes, i)
	w.net.Crash(n.ip)
	n.Close()
}

// summary sums up the members that a node lists, such as "1 alive, 2 failed".
func (n *node) summary() string {
	var parts []string
	for _, m := range n.Members() {
		parts = append(parts, fmt.Sprintf("%d %s", m.ID[15], m.State))
	}
	return strings.Join(parts, ", ")
}

// summaryOf returns the summary of a node if nodes 1 to n are alive, except those in other.
func summaryOf(n int, other map[int]State) string {
	var parts []string
	for i := 1; i <= n; i++ {
		parts = append(parts, fmt.Sprintf("%d %s", i, other[i]))
	}
	return strings.Join(parts, ", ")
}

// until waits for a condition and returns how long that took.
func until(t *testing.T, most time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > most {
			t.Fatalf("not within %v: %s", most, what)
		}
		time.Sleep(10 * time.Millisecond) // virtual in a bubble; a polling pause elsewhere
	}
	return time.Since(began)
}

// agree waits until each of the nodes sees want.
func (w *world) agree(most time.Duration, want string, nodes ...int) time.Duration {
	w.t.Helper()
	if len(nodes) == 0 {
		for i := range w.nodes {
			nodes = append(nodes, i)
		}
	}
	began := time.Now()
	for _, i := range nodes {
		for w.nodes[i].summary() != want {
			if time.Since(began) > most {
				w.t.Fatalf("node %d after %v: have %q, want %q", i, most, w.nodes[i].summary(), want)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return time.Since(began)
}

// staysTrue checks that a condition stays true for some time.
func staysTrue(t *testing.T, long time.Duration, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); time.Since(began) < long; time.Sleep(50 * time.Millisecond) {
		if !ok() {
			t.Fatalf("no longer true after %v: %s", time.Since(began), what)
		}
	}
}
