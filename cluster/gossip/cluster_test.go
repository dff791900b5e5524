package gossip

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestNodesFindEachOther(t *testing.T) {
	for _, n := range []int{3, 5, 7} {
		for _, pause := range []time.Duration{0, 300 * time.Millisecond, 12 * time.Second} {
			t.Run(fmt.Sprintf("%d nodes, %v between", n, pause), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					for _, i := range rand.Perm(n) { // the seed may be the last one
						w.start(i + 1)
						time.Sleep(pause)
					}
					took := w.agree(40*time.Second, summaryOf(n, nil)) // two syncs at worst
					t.Logf("took %v", took)
					m := w.nodes[2].Members()[0]
					want := Member{ID: id(1), Boot: 1, Name: "n1", Address: ip(1), Region: "default", Zone: "z",
						GossipPort: testPort, PeerPort: 7947}
					if m != want {
						t.Errorf("have %+v\nwant %+v", m, want)
					}
				})
			})
		}
	}
}

func TestCrashIsSeenAsFailed(t *testing.T) {
	for _, n := range []int{2, 3, 5, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newAgreedWorld(t, n)
				<-w.nodes[1].Changed()
				w.crash(n)
				took := w.agree(6*time.Second, summaryOf(n, map[int]State{n: Failed}))
				t.Logf("%d nodes: seen by all after %v", n, took)
				select {
				case <-w.nodes[1].Changed():
				default:
					t.Error("Changed has no value")
				}
				// The failed node stays listed until Forget, although memberlist forgets it.
				staysTrue(t, 2*time.Minute, "the failed member is listed", func() bool {
					return w.nodes[1].summary() == summaryOf(n, map[int]State{n: Failed})
				})
				w.nodes[1].Forget(id(1))
				w.nodes[1].Forget(id(n))
				expect.Equal(t, w.nodes[1].summary(), summaryOf(n-1, nil), "after Forget")
				w.start(n)
				w.agree(15*time.Second, summaryOf(n, nil))
			})
		})
	}
}

func TestLeftIsNotFailed(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newAgreedWorld(t, n)
				began := time.Now()
				expect.NoError(t, w.nodes[n].Leave(t.Context()))
				t.Logf("Leave took %v", time.Since(began))
				if err := w.nodes[n].Update(func(m *Member) { m.BootstrapExpect = 9 }); err == nil {
					t.Error("Update after Leave: no error")
				}
				took := w.agree(2*time.Second, summaryOf(n, map[int]State{n: Left}))
				t.Logf("seen by all %v later", took)
				w.nodes[n].Close()
				if err := w.nodes[n].Leave(t.Context()); err == nil {
					t.Error("Leave after Close: no error")
				}
				delete(w.nodes, n)
				if n == 1 {
					return
				}
				staysTrue(t, time.Minute, "the member has left", func() bool {
					return w.nodes[1].summary() == summaryOf(n, map[int]State{n: Left})
				})
				w.start(n, func(c *Config) { c.Self.Boot = 99 })
				w.agree(15*time.Second, summaryOf(n, nil))
			})
		})
	}
}

func TestLeaveEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(1)
		w.start(2)
		w.agree(15*time.Second, summaryOf(2, nil))
		w.net.Isolate(ip(2))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		if err := w.nodes[2].Leave(ctx); err == nil {
			t.Error("no error")
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("took %v", took)
		}
		w.nodes[2].Close() // while it is still leaving
	})
}

func TestLongCutHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5
		w := newAgreedWorld(t, n)
		cut := func(f func(a, b string)) {
			for a := 1; a <= 3; a++ {
				for b := 4; b <= n; b++ {
					f(ip(a), ip(b))
				}
			}
		}
		cut(w.net.Cut)
		took := w.agree(12*time.Second, summaryOf(n, map[int]State{4: Failed, 5: Failed}), 1, 2, 3)
		t.Logf("the three see it after %v", took)
		took = w.agree(12*time.Second, summaryOf(n, map[int]State{1: Failed, 2: Failed, 3: Failed}), 4, 5)
		t.Logf("the two see it %v later", took)
		time.Sleep(10 * time.Minute) // memberlist has long forgotten them
		cut(w.net.Heal)
		took = w.agree(40*time.Second, summaryOf(n, nil))
		t.Logf("healed after %v", took)
	})
}

// A node whose seeds are all gone finds the other nodes by its remembered addresses.
func TestRememberedMembersAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAgreedWorld(t, 3)
		remembered := w.nodes[2].Addresses()
		expect.Equal(t, fmt.Sprint(remembered), "[10.0.0.1:7946 10.0.0.3:7946]", "addresses")
		w.crash(2)
		w.crash(1)
		w.agree(15*time.Second, summaryOf(3, map[int]State{1: Failed, 2: Failed}), 3)
		w.start(2, func(c *Config) { c.Join, c.Remembered = nil, append(remembered, "nonsense") })
		w.agree(15*time.Second, "2 alive, 3 alive", 2)
		// The address where no node was met stays remembered.
		expect.Equal(t, fmt.Sprint(w.nodes[2].Addresses()), "[10.0.0.3:7946 10.0.0.1:7946]", "addresses")
		w.start(1, func(c *Config) { c.Join = nil })
		w.agree(15*time.Second, summaryOf(3, nil))
	})
}

func TestUpdatesReachAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5
		w := newWorld(t)
		for i := 1; i <= n; i++ {
			w.start(i, func(c *Config) { c.Self.BootstrapExpect, c.Self.RaftEmpty = n, true })
		}
		w.agree(15*time.Second, summaryOf(n, nil))
		cluster := [16]byte{1, 2, 3}
		for i := 1; i <= n; i++ {
			err := w.nodes[i].Update(func(m *Member) { m.Cluster, m.RaftEmpty, m.BootstrapExpect = cluster, false, 0 })
			expect.NoError(t, err)
		}
		took := until(t, 5*time.Second, "all have heard of all", func() bool {
			for _, nd := range w.nodes {
				for _, m := range nd.Members() {
					if m.Cluster != cluster || m.RaftEmpty || m.BootstrapExpect != 0 || m.State != Alive {
						return false
					}
				}
			}
			return true
		})
		t.Logf("took %v", took)
		if err := w.nodes[1].Update(func(m *Member) { m.Name = "other" }); err == nil {
			t.Error("another name: no error")
		}
		if err := w.nodes[1].Update(func(m *Member) { m.BootstrapExpect = 1 << 20 }); err == nil {
			t.Error("too many expected: no error")
		}
	})
}

// A node restarts at once, before any other node has seen the old process fail.
func TestRestartIsTheSameMember(t *testing.T) {
	for _, moved := range []bool{false, true} {
		t.Run(fmt.Sprintf("moved %v", moved), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newAgreedWorld(t, 3)
				w.crash(3)
				at := ip(3)
				if moved {
					at = ip(33)
				}
				w.nodes[3] = w.startAt(3, at, func(c *Config) { c.Self.Boot = 1003 })
				took := until(t, 30*time.Second, "all see the new process", func() bool {
					for _, nd := range w.nodes {
						ms := nd.Members()
						if len(ms) != 3 || ms[2].Boot != 1003 || ms[2].Address != at || ms[2].State != Alive {
							return false
						}
					}
					return true
				})
				t.Logf("took %v", took)
				w.agree(30*time.Second, summaryOf(3, nil))
				until(t, 2*time.Minute, "no twin is remembered", func() bool { return !w.nodes[3].hasTwin() })
				staysTrue(t, time.Minute, "all are alive",
					func() bool { return w.nodes[1].summary() == summaryOf(3, nil) })
				for i, nd := range w.nodes {
					if n := nd.log.count(slog.LevelError, ""); n > 0 {
						t.Errorf("node %d: got %d errors, want none: %q", i, n, nd.log.lines)
					}
					if n := nd.log.count(slog.LevelInfo, "has a new address"); moved && i != 3 && n != 1 {
						t.Errorf("node %d: got %d lines about a new address, want 1: %q", i, n, nd.log.lines)
					}
				}
			})
		})
	}
}

func TestClonedIDIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAgreedWorld(t, 3)
		clone := w.startAt(3, ip(33), func(c *Config) { c.Self.Boot = 1003 })
		defer clone.Close()
		staysTrue(t, 5*time.Minute, "the older one stays", func() bool {
			for _, nd := range w.nodes {
				if ms := nd.Members(); len(ms) != 3 || ms[2].Boot != 3 || ms[2].State != Alive {
					return false
				}
			}
			return true
		})
		if !clone.hasTwin() || clone.log.count(slog.LevelError, ip(3)+":7946") != 1 {
			t.Errorf("the clone does not log its twin: %q", clone.log.lines)
		}
		for i, nd := range map[int]*node{1: w.nodes[1], 33: clone} {
			expect.Equal(t, nd.log.count(slog.LevelError, "ID"), 1, "node %d: errors in the log", i)
			if n := nd.log.count(slog.LevelWarn, ""); n > 3 {
				t.Errorf("node %d: have %d lines in the log: %q", i, n, nd.log.lines)
			}
		}
		// The clone must not announce that the node leaves.
		if err := clone.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		clone.Close()
		staysTrue(t, time.Minute, "the older one stays",
			func() bool { return w.nodes[1].summary() == summaryOf(3, nil) })
	})
}

func TestACloneTakesOverFromTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAgreedWorld(t, 3)
		clone := w.startAt(3, ip(33), func(c *Config) { c.Self.Boot = 1003 })
		time.Sleep(time.Minute)
		w.crash(3)
		w.nodes[3] = clone
		took := until(t, 30*time.Second, "the clone is let in", func() bool {
			return w.nodes[1].Members()[2].Boot == 1003 && w.nodes[2].Members()[2].Boot == 1003
		})
		t.Logf("took %v", took)
	})
}

// hasTwin reports whether another process with the node's ID was recently reported.
func (n *node) hasTwin() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hasRecentTwin(time.Now())
}
