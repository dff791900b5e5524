package cluster

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/rules"
)

// slate is a note that outlives the process.
type slate struct {
	mu      sync.Mutex // guards content
	content []byte
}

func (s *slate) Read() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.content), nil
}

func (s *slate) Write(content []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content = slices.Clone(content)
	return nil
}

// notes gives each node a slate, and records the versions of the rules that
// each process receives. It checks that a subject has the same hash in all
// processes of all nodes.
func notes(t *testing.T, nodes []*node, snapshotBytes int64) {
	var mu sync.Mutex // guards hashes
	hashes := map[rules.Hash]bool{}
	for _, n := range nodes {
		note := &slate{}
		n.adjust = func(c *Config) {
			c.AppliedStore, c.SnapshotBytes, c.TrailingEntries, c.Timings.Snapshot = note, snapshotBytes, 4, 2*time.Second
			last := int64(0)
			c.OnRules = func(s *rules.Set) {
				if s.Version < last {
					t.Errorf("%s: version %d after %d", n.name, s.Version, last)
				}
				last = s.Version
				n.rules.Store(s)
				var m rules.Match
				if err := s.MatchKey(s.Rules[0], []string{"192.0.2.1"}, &m); err != nil || len(m.Hits) != 1 {
					t.Errorf("have %d hits, %v", len(m.Hits), err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				hashes[m.Hits[0].Subject] = true
				if len(hashes) != 1 {
					t.Errorf("%s: a subject has another hash", n.name)
				}
			}
		}
	}
}

// A member that restarts while no other node runs uses the rules and the ring
// that it remembers, without authority. When the other nodes are back, it
// rejoins them. After a second restart it remembers the same.
func TestARestartedNodeRemembers(t *testing.T) {
	for _, snapshotBytes := range []int64{1, 1 << 30} {
		synctest.Test(t, func(t *testing.T) { remembers(t, snapshotBytes) })
	}
}

func remembers(t *testing.T, snapshotBytes int64) {
	w := newWorld(t)
	defer w.end()
	nodes := w.several(3, 3)
	notes(t, nodes, snapshotBytes)
	for _, n := range nodes {
		n.run()
	}
	w.inRing(nodes...)
	version := int64(0)
	for i := range 12 { // with snapshots in between
		version = nodes[i%3].mustWrite(10 + i)
		time.Sleep(time.Second)
	}
	time.Sleep(2 * time.Second)
	for _, n := range nodes {
		n.crash()
	}
	last := nodes[2]
	for range 2 {
		last.rules.Store(nil)
		last.run()
		for _, m := range last.c.Load().View().Members {
			if m.Name == m.ID.String() {
				t.Errorf("the node that was called so before has no name but %s", m.Name)
			}
		}
		expect.ErrorIs(t, last.c.Load().ReadyError(), errNoAuthority, "it was in a cluster")
		begun := time.Now()
		w.until(5*time.Second, "ready node", func() bool { return last.c.Load().ReadyError() == nil })
		c := last.c.Load()
		if took := time.Since(begun); took < recallAfter {
			t.Errorf("ready after %v", took)
		}
		if s := c.StateInUse(); len(s.To.Members()) != 3 || c.Authority() || c.View().Connected || c.View().Epoch != s.Epoch {
			t.Errorf("have %v, authority %v", s.To.Members(), c.Authority())
		}
		if s := last.rules.Load(); s == nil || s.Version != version {
			t.Fatalf("have rules %+v, want version %d", s, version)
		}
		time.Sleep(3 * time.Second)
		last.crash()
	}
	last.run()
	w.until(5*time.Second, "ready node", func() bool { return last.c.Load().ReadyError() == nil })
	nodes[0].run()
	nodes[1].run()
	w.until(30*time.Second, "authority", func() bool { return last.c.Load().Authority() })
	w.until(30*time.Second, "all applied", func() bool {
		c := last.c.Load()
		return c.StateInUse() == c.State() && c.memory.state.Load() == nil
	})
	if v := nodes[0].mustWrite(99); v != version+1 || !last.c.Load().AwaitRevision(t.Context(), 1, v) ||
		last.rules.Load().Version != v {
		t.Errorf("have version %d after %d, %d in force", v, version, last.rules.Load().Version)
	}

	// Back in the cluster, it is as ready as any other node, and no longer.
	c := last.c.Load()
	expect.NoError(t, c.ReadyError())
	c.tracker.removed.Store(true)
	expect.ErrorIs(t, c.ReadyError(), errRemoved, "removed by an operator")
}

// A node whose log has lost entries that it had applied says so when it starts;
// one whose log has them all says nothing.
func TestAnOlderLogIsNoticed(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		n, note := w.several(1, 1)[0], &slate{}
		var logged bytes.Buffer
		n.adjust = func(c *Config) {
			c.AppliedStore = note
			c.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelError}))
		}
		n.run()
		w.inRing(n)
		n.mustWrite(10)
		time.Sleep(3 * time.Second)

		restart := func(meanwhile func()) string {
			n.crash()
			meanwhile()
			logged.Reset()
			n.run()
			w.until(30*time.Second, "authority", func() bool { return n.c.Load().Authority() })
			return logged.String()
		}
		if have := restart(func() {}); have != "" {
			t.Errorf("after a restart it logs %s", have)
		}

		lose := func() {
			content, _ := note.Read()
			at := content[len(content)-8:]
			binary.LittleEndian.PutUint64(at, binary.LittleEndian.Uint64(at)+1000)
			_ = note.Write(content)
		}
		if have := restart(lose); !strings.Contains(have, "older copy") {
			t.Errorf("with a log that lacks entries it logs %q", have)
		}
	})
}

// A node does not rely on its memory if it starts for the first time, or can reach a majority.
func TestANodeThatIsNotAloneWaits(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.several(3, 3)
		notes(t, nodes, 1<<20)
		for _, n := range nodes {
			n.run()
		}
		w.inRing(nodes...)
		time.Sleep(2 * time.Second)
		a, b, c := nodes[0], nodes[1], nodes[2]
		c.crash()
		c.run()
		w.ready(c)
		if c.c.Load().memory.inUse.Load() || !c.c.Load().Authority() {
			t.Error("it went by its memory")
		}
		c.crash()
		a.crash()
		b.crash()
		fresh := w.add(0, a, b)
		notes(t, []*node{fresh}, 1<<20)
		fresh.run()
		a.run()
		c.run()
		w.ready(a, c)
		if a.c.Load().memory.inUse.Load() || c.c.Load().memory.inUse.Load() {
			t.Error("two of three went by their memory")
		}
		a.crash()
		c.crash()
		time.Sleep(10 * time.Second)
		if fresh.c.Load().memory.inUse.Load() {
			t.Error("a new node has nothing to remember")
		}
	})
}

// A node that is in sync by the time it should rely on its memory does not.
func TestContactThatComesBackInTime(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.several(3, 3)
		notes(t, nodes, 1<<20)
		for _, n := range nodes {
			n.run()
		}
		w.inRing(nodes...)
		w.ready(nodes...)
		c := nodes[0].c.Load()
		c.memory.state.Store(c.State())
		wake.Signal(c.memory.noMajority)
		time.Sleep(time.Second)
		if c.memory.inUse.Load() {
			t.Error("it went by its memory")
		}
		if c.memory.state.Load() != nil {
			t.Error("it still has a memory")
		}
	})
}
