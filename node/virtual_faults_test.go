package node

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestG1_ExactInOneProcess(t *testing.T) {
	t.Parallel()
	runWithRuleAndInline(t, func(t *testing.T, inline bool) {
		p := newTestCluster(t, 5, exactRules(100))
		p.useInline(inline, 100, true)
		c := p.startLoad("year", 20, 10)
		p.eventually("more than the limits is requested", func() bool { return c.refused.Load() > 2000 })
		by := c.stopLoad()
		t.Logf("by %v", by)
		for i := range c.admitted {
			expect.Equal(t, c.admitted[i].Load(), 100, "key %d: admitted", i)
		}
		if c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 || by["standby"] > 0 {
			t.Errorf("%d failed, %d slow, by %v", c.failed.Load(), c.slow.Load(), by)
		}
	})
}

// restartAll stops each node in turn gracefully, and starts it again.
func (p *testCluster) restartAll() {
	p.t.Helper()
	for _, v := range p.nodes {
		time.Sleep(500 * time.Millisecond)
		v.endProcess(true)
		time.Sleep(300 * time.Millisecond)
		v.startProcess()
		p.awaitWhole()
	}
}

// Each node in turn stops gracefully and comes back, under load. If messages
// take long, many are in flight through a node when it stops.
func TestG6_RestartsInOneProcess(t *testing.T) {
	t.Parallel()
	for _, delay := range []time.Duration{100 * time.Microsecond, 20 * time.Millisecond} {
		t.Run(delay.String(), func(t *testing.T) { testRestarts(t, delay, alternatives(delay > time.Millisecond)) })
	}
}

func testRestarts(t *testing.T, delay time.Duration, inlineToo []bool) {
	runWith(t, inlineToo, func(t *testing.T, inline bool) {
		p := newTestCluster(t, 3, exactRules(1_000_000))
		p.useInline(inline, 1_000_000, true)
		p.net.Delay(delay)
		c := p.startLoad("year", 100, 6)
		p.restartAll()
		by := c.stopLoad()
		t.Logf("by %v", by)
		if c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 {
			t.Errorf("%d failed, %d slow, by %v", c.failed.Load(), c.slow.Load(), by)
		}
		for i := range c.admitted {
			expect.Equal(t, p.used("year", fmt.Sprintf("k%d", i)), c.admitted[i].Load(), "key %d, used", i)
		}
	})
}

// TestG6_StopBesideAFullDiskInOneProcess: the disk of the standby is full, so it
// can't apply the ring without the owner, and the owner can't hand its partitions
// over before it stops. What it has counted until then is not forgotten, whether
// it comes back or not.
func TestG6_StopBesideAFullDiskInOneProcess(t *testing.T) {
	t.Parallel()
	for _, comesBack := range []bool{true, false} {
		t.Run(fmt.Sprintf("it comes back: %v", comesBack), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newTestCluster(t, 5, exactRules(1_000_000))
				_, others := p.leader()
				owner, standby, asker := others[0], others[1], others[2]
				key := p.keyOwnedBy("year", owner, standby, 0)

				standby.memory.fill()
				time.Sleep(time.Second)
				asked := make(chan int64, 1)
				go func() {
					admitted, by, _ := asker.ask("year", key, 8000)
					t.Logf("by %v", by)
					asked <- admitted
				}()

				ctx, cancel := context.WithTimeout(t.Context(), leaveTimeout)
				defer cancel()
				if owner.node.leave(ctx, false, "") == nil {
					t.Fatal("the partitions were handed over")
				}
				time.Sleep(50 * time.Millisecond) // between two pushes
				owner.node.keeper.StopDeciding()
				owner.save()
				owner.endProcess(false)
				time.Sleep(2100 * time.Millisecond)
				if comesBack {
					owner.startProcess()
				}

				admitted := <-asked
				time.Sleep(lasting)
				standby.memory.mend()
				if comesBack {
					p.awaitWhole()
				}
				time.Sleep(4 * time.Second) // debts are reported
				used, err := p.tryUsed("year", key)
				expect.NoError(t, err)
				expect.Equal(t, used, admitted, "used")
			})
		})
	}
}

// An owner is killed under load, and comes back later.
func TestG5_KillInOneProcess(t *testing.T) {
	t.Parallel()
	for victim := range casesToRun(3) {
		runWithRuleAndInline(t, func(t *testing.T, inline bool) {
			const limit = 800
			p := newTestCluster(t, 3, exactRules(limit))
			p.useInline(inline, limit, true)
			c := p.startLoad("year", 10, 6)
			p.eventually("some is used", func() bool { return c.total() > 3*limit })
			before := c.total()
			time.Sleep(100 * time.Millisecond)
			tail := c.total() - before
			killed := time.Now()
			p.nodes[victim].endProcess(false)
			p.eventually("the whole limit is available", func() bool {
				time.Sleep(20 * time.Millisecond)
				for i := range c.admitted {
					if used, err := p.tryUsed("year", fmt.Sprintf("k%d", i)); err != nil || used < limit {
						return false
					}
				}
				return true
			})
			whole := time.Since(killed)
			p.nodes[victim].startProcess()
			p.awaitWhole()
			by := c.stopLoad()
			t.Logf("victim %d: whole after %v, by %v", victim, whole, by)
			if n := c.total(); n > 10*limit+tail+tail/2 {
				t.Errorf("have %d admitted, want at most %d and about %d", n, 10*limit, tail)
			}
			if c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 || whole > 5*time.Second {
				t.Errorf("%d failed, %d slow, whole after %v, by %v", c.failed.Load(), c.slow.Load(), whole, by)
			}
		})
	}
}

// A broken link between two nodes that both reach the third costs a hop and nothing else.
func TestG1_BrokenLinkInOneProcess(t *testing.T) {
	t.Parallel()
	for pair := range casesToRun(3) {
		synctest.Test(t, func(t *testing.T) {
			const limit = 250
			p := newTestCluster(t, 3, exactRules(limit))
			a, b := p.nodes[pair], p.nodes[(pair+1)%3]
			p.net.Cut(a.ip, b.ip)
			c := p.startLoad("year", 20, 6)
			p.eventually("more than the limits is requested", func() bool { return c.refused.Load() > 2500 })
			by := c.stopLoad()
			t.Logf("%s–%s: by %v", a.ip, b.ip, by)
			for i := range c.admitted {
				expect.Equal(t, c.admitted[i].Load(), limit, "key %d, admitted", i)
			}
			if c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 || by["standby"] > 0 {
				t.Errorf("%d failed, %d slow, by %v", c.failed.Load(), c.slow.Load(), by)
			}
			p.net.HealAll()
			time.Sleep(2 * time.Second)
		})
	}
}

// All algorithms, a thousand subjects at once, from all of five nodes: they
// admit what the algorithm admits in one place for the same checks in sequence.
func TestG1_AlgorithmsInOneProcess(t *testing.T) {
	t.Parallel()
	kinds := []string{"fixed-window", "sliding-window", "sliding-window-log", "token-bucket", "leaky-bucket"}
	const limit, subjects = 7, 200
	text := "version: 1\nrules:\n"
	for _, kind := range kinds {
		text += fmt.Sprintf("  - {name: %s, key: [k], consistency: exact, limits: [{limit: %d, per: 8760h, algorithm: %s}]}\n", kind, limit, kind)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 5, text)
		crowds := map[string]*loadGenerator{}
		for _, kind := range kinds {
			crowds[kind] = p.startLoad(kind, subjects, 5)
		}
		for _, kind := range kinds {
			c := crowds[kind]
			p.eventually("all is used and refused", func() bool { return c.refused.Load() > 10*subjects })
		}
		for _, kind := range kinds {
			by := crowds[kind].stopLoad()
			for i := range subjects {
				expect.Equal(t, crowds[kind].admitted[i].Load(), limit, "%s, subject %d, admitted", kind, i)
			}
			if by["fallback"] > 0 || by["standby"] > 0 || crowds[kind].failed.Load() > 0 {
				t.Errorf("%s: by %v", kind, by)
			}
		}
	})
}

// A returning node is not ready before it has recovered its partitions from its
// standbys, even if one of those can't be reached.
func TestReadyWithItsPartitions(t *testing.T) {
	t.Parallel()
	for _, broken := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newTestCluster(t, 3, exactRules(1000))
			c := p.startLoad("year", 20, 3)
			p.eventually("some is used", func() bool { return c.total() > 3000 })
			v := p.nodes[2]
			v.endProcess(false)
			if broken {
				p.net.Cut(v.ip, p.nodes[1].ip)
			}
			v.startProcess()
			seen, began := 0, time.Now()
			p.eventually("the node is ready", func() bool {
				recovering, ready := v.node.keeper.IsRecovering(), v.ready.Load()
				if recovering {
					seen++
				}
				if recovering && ready {
					t.Fatalf("ready after %v, before its partitions", time.Since(began))
				}
				return ready
			})
			t.Logf("broken %v: ready after %v, in %d of them without partitions of its own", broken,
				time.Since(began), seen)
			if broken && (seen == 0 || time.Since(began) < time.Second) {
				t.Errorf("ready after %v, seen recovering %d times", time.Since(began), seen)
			}
			c.stopLoad()
			p.net.HealAll()
			time.Sleep(2 * time.Second)
		})
	}
}
