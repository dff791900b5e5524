package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// leader returns the leader and the other nodes.
func (p *testCluster) leader() (leader *testNode, others []*testNode) {
	p.t.Helper()
	p.eventually("there is a leader", func() bool {
		leader, others = nil, nil
		for _, v := range p.nodes {
			if c := v.node.cluster; v.alive.Load() && c.Leader() == v.id {
				leader = v
			} else {
				others = append(others, v)
			}
		}
		return leader != nil
	})
	return leader, others
}

func (v *testNode) connected() bool {
	return v.alive.Load() && v.node.cluster.Authority()
}

// TestD1_BrokenLinkAndACrashInOneProcess: the leader and X can't reach each
// other, and Y dies. X learns of Y's eviction through other nodes and keeps its
// authority. The ring still changes: Y comes back.
func TestD1_BrokenLinkAndACrashInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 5, exactRules(1_000_000))
		leader, others := p.leader()
		x, y := others[0], others[1]
		p.net.Cut(leader.ip, x.ip)
		time.Sleep(5 * time.Second)
		y.endProcess(false)
		time.Sleep(15 * time.Second)
		for range 300 {
			if !x.connected() {
				t.Fatal("x has no authority")
			}
			time.Sleep(100 * time.Millisecond)
		}
		y.startProcess()
		p.awaitWhole()
	})
}

// relayBetween cuts the link between two nodes, and returns the node by way of
// which a reaches b then.
func (p *testCluster) relayBetween(a, b *testNode) (relay *testNode) {
	p.t.Helper()
	p.net.Cut(a.ip, b.ip)
	p.eventually("there is a path", func() bool {
		via, ok := a.node.peers.Via(b.id)
		for _, v := range p.nodes {
			if ok && v.id == via {
				relay = v
			}
		}
		return ok
	})
	return relay
}

// expectNoMore asks about a subject whose limit is used up, for more than a
// second. Its owner must decide each check.
func (v *testNode) expectNoMore(key string) {
	v.cluster.t.Helper()
	admitted, by, slowest := v.ask("year", key, 1000)
	v.cluster.t.Logf("by %v, the slowest took %v", by, slowest)
	if admitted > 0 || by[limiter.ByFallback] > 0 || by[limiter.ByStandby] > 0 {
		v.cluster.t.Errorf("%d more than the limit were admitted, by %v", admitted, by)
	}
}

// TestD1_TheRelayGoesInOneProcess: two nodes reach each other only by way of a
// third one, which is killed, paused or cut off. A fourth one reaches both, so neither
// decides for the other, although they need a moment to find the way around.
func TestD1_TheRelayGoesInOneProcess(t *testing.T) {
	t.Parallel()
	for fault, goes := range map[string]func(relay *testNode){
		"killed":  func(relay *testNode) { relay.endProcess(false) },
		"paused":  func(relay *testNode) { relay.cluster.net.Freeze(relay.ip) },
		"cut off": func(relay *testNode) { relay.cluster.net.Isolate(relay.ip) },
	} {
		for _, standby := range []string{"the relay", "the asker"} {
			t.Run(fault+", the standby is "+standby, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const limit = 100
					p := newTestCluster(t, 5, exactRules(limit))
					_, others := p.leader()
					owner, asker := others[0], others[1]
					relay := p.relayBetween(asker, owner)

					key := p.keyOwnedBy("year", owner, relay, 0)
					if standby == "the asker" {
						key = p.keyOwnedBy("year", owner, asker, 0)
					}
					_, _, _ = asker.ask("year", key, limit)

					goes(relay)
					asker.expectNoMore(key)
				})
			})
		}
	}
}

// TestG1_BrokenConnectionsInOneProcess: all connections of a node break at once,
// as by a firewall that starts anew, also while the owner is reached through a
// relay. Nobody is lost, so nobody decides in another's place.
func TestG1_BrokenConnectionsInOneProcess(t *testing.T) {
	t.Parallel()
	for _, whose := range []string{"the owner", "the asker"} {
		for _, standby := range []string{"another node", "the asker"} {
			for _, relayed := range []bool{false, true} {
				name := fmt.Sprintf("those of %s, the standby is %s, relayed %v", whose, standby, relayed)
				t.Run(name, func(t *testing.T) { testBrokenConnections(t, whose, standby, relayed) })
			}
		}
	}
}

func testBrokenConnections(t *testing.T, whose, standby string, relayed bool) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 100
		p := newTestCluster(t, 5, exactRules(limit))
		p.net.Delay(500 * time.Microsecond) // a dial takes longer than a question
		owner, asker := p.nodes[0], p.nodes[1]
		if relayed {
			_ = p.relayBetween(asker, owner)
			time.Sleep(3 * time.Second) // their old connection is silent, and not yet closed
		}

		key := p.keyOwnedBy("year", owner, p.nodes[2], 0)
		if standby == "the asker" {
			key = p.keyOwnedBy("year", owner, asker, 0)
		}
		_, _, _ = asker.ask("year", key, limit)

		struck := owner
		if whose == "the asker" {
			struck = asker
		}
		for _, v := range slices.Backward(p.nodes) { // the old connection to the owner comes last
			if v != struck {
				p.net.Break(struck.ip, v.ip)
				synctest.Wait()
			}
		}
		asker.expectNoMore(key)
	})
}

// TestG1_AnOwnerIsBackBeforeTheOtherAnswersInOneProcess: a check asks two owners.
// The connection to one breaks, and is back before the other, which is far away,
// has answered. The first is asked again, rather than taken for lost.
func TestG1_AnOwnerIsBackBeforeTheOtherAnswersInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, `version: 1
rules:
  - {name: near, key: [a], consistency: exact, limits: [{limit: 100, per: 8760h, algorithm: fixed-window}]}
  - {name: far, key: [b], consistency: exact, limits: [{limit: 100, per: 8760h, algorithm: fixed-window}]}
`)
		near, far, asker := p.nodes[0], p.nodes[1], p.nodes[2]
		q := limiter.Query{Attributes: []rules.Attribute{
			{Name: "a", Value: p.keyOwnedBy("near", near, asker, 0)},
			{Name: "b", Value: p.keyOwnedBy("far", far, nil, 0)},
		}}
		p.net.Delay(500 * time.Microsecond)
		p.net.DelayBetween(asker.ip, far.ip, 10*time.Millisecond)

		for range 20 {
			asked := make(chan limiter.Answer, 1)
			go func() {
				var a limiter.Answer
				q := q
				err := asker.node.limiter.Check(&q, &a)
				if err != nil {
					t.Error(err)
				}
				asked <- a
			}()
			time.Sleep(700 * time.Microsecond) // the question is with the owner
			p.net.Break(asker.ip, near.ip)
			a := <-asked
			if a.DecidedBy != limiter.ByForward {
				t.Errorf("decided by %v", a.DecidedBy)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

// TestD4_BrokenLinkAndARuleInOneProcess: a lower limit is in force at X within
// five seconds, although X can't reach the leader.
func TestD4_BrokenLinkAndARuleInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, exactRules(1_000_000))
		leader, others := p.leader()
		x := others[0]
		p.net.Cut(leader.ip, x.ip)
		time.Sleep(2 * time.Second)
		version, err := others[1].write(exactRules(5))
		expect.NoError(t, err)
		time.Sleep(5 * time.Second)
		for _, v := range p.nodes {
			if have := v.node.limiter.Rules().Version; have < version {
				t.Errorf("%s uses version %d, want %d", v.settings.Name, have, version)
			}
		}
		admitted := 0
		var a limiter.Answer
		for range 20 {
			if ok, _ := x.check("year", "k", &a); ok {
				admitted++
			}
		}
		if admitted != 5 || a.DecidedBy == limiter.ByFallback {
			t.Errorf("%d admitted, decided by %s", admitted, a.DecidedBy)
		}
	})
}

// TestBrokenLinkForLongInOneProcess: no check is decided without its owner.
// Checks relayed by a third node take at most three times as long as those
// forwarded directly.
func TestBrokenLinkForLongInOneProcess(t *testing.T) {
	t.Parallel()
	for pair := range casesToRun(3) {
		synctest.Test(t, func(t *testing.T) {
			p := newTestCluster(t, 3, exactRules(1_000_000))
			a, b, third := p.nodes[pair], p.nodes[(pair+1)%3], p.nodes[(pair+2)%3]
			c := p.startLoad("year", 60, 2)
			time.Sleep(2 * time.Second)
			p.net.Cut(a.ip, b.ip)
			time.Sleep(2 * time.Second)
			direct, around := p.slowest(a, b, third)
			if direct == 0 || around == 0 || around > 3*direct {
				t.Errorf("through a third node %v, directly %v", around, direct)
			}
			time.Sleep(20 * time.Second)
			by := c.stopLoad()
			t.Logf("%s–%s: by %v, %v directly, %v through a third node", a.ip, b.ip, by, direct, around)
			if c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 || by["standby"] > 0 {
				t.Errorf("%d failed, %d slow, by %v", c.failed.Load(), c.slow.Load(), by)
			}
			for i := range c.admitted {
				if used, want := p.used("year", fmt.Sprintf("k%d", i)), c.admitted[i].Load(); used < want {
					t.Errorf("key %d: have %d used, %d admitted", i, used, want)
				}
			}
			p.net.HealAll()
			time.Sleep(2 * time.Second)
		})
	}
}

// slowest returns the longest times of checks at a: direct for subjects that
// the third node owns, around for b's.
func (p *testCluster) slowest(a, b, third *testNode) (direct, around time.Duration) {
	owner := func(key string) ring.NodeID {
		u, err := a.node.limiter.Locate(&limiter.Query{Rule: "year", Key: []string{key}})
		expect.NoError(p.t, err)
		return a.node.keeper.Route(ring.PartitionOf(u.Hash.Hi)).Owner
	}
	var answer limiter.Answer
	for i := range 200 {
		key := fmt.Sprintf("other%d", i)
		began := time.Now()
		if _, err := a.check("year", key, &answer); err != nil {
			p.t.Fatal(err)
		}
		took := time.Since(began)
		switch owner(key) {
		case b.id:
			around = max(around, took)
		case third.id:
			direct = max(direct, took)
		}
	}
	return direct, around
}

// epoch returns the epoch, which counts the rings so far.
func (p *testCluster) epoch() int64 { return p.nodes[0].state().Epoch }

// TestD1_HungDiskAndACrashInOneProcess: the disk of X hangs, and Y dies. X
// can't apply Y's eviction and gets no more authority, so it is evicted itself.
// The ring changes without X: Y comes back. X reports that it is behind, and
// returns once it has caught up.
func TestD1_HungDiskAndACrashInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 5, exactRules(1_000_000))
		leader, others := p.leader()
		x, y := others[0], others[1]
		x.memory.hang()
		time.Sleep(time.Second)
		y.endProcess(false)
		p.within(15*time.Second, "x is ended", func() bool {
			return !leader.state().InRing(x.id) && !leader.state().InRing(y.id)
		})
		if why := x.node.probeError(); why == nil || !strings.HasPrefix(why.Error(), "behind") {
			t.Errorf("x reports ready: %v", why)
		}
		for _, m := range leader.admin().View().Members {
			if m.Behind != (m.Name == x.name()) {
				t.Errorf("%s is reported as behind: %t", m.Name, m.Behind)
			}
		}
		y.startProcess()
		p.within(30*time.Second, "y is back",
			func() bool { return leader.state().InRing(y.id) && leader.state().Settled })
		x.memory.mend()
		p.within(time.Minute, "x is back", func() bool { return leader.state().InRing(x.id) })
		p.awaitWhole()
		if why := x.node.probeError(); why != nil {
			t.Errorf("x reports that it is not ready: %v", why)
		}
	})
}

// TestD1_FullDiskAndAQuickRestartInOneProcess: the disk of X is full, and Y
// crashes and is back at once, so that no node is ended. X does not apply the
// registration of Y's new process, so it takes no copies. It is replaced, and
// its partitions have a copy again, within ten seconds.
func TestD1_FullDiskAndAQuickRestartInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 5, exactRules(1_000_000))
		leader, others := p.leader()
		owner, x, y := others[0], others[1], others[2]
		partition := p.partition("year", p.keyOwnedBy("year", owner, x, 0))
		x.memory.fill()

		y.endProcess(false)
		ended := time.Now()
		time.Sleep(200 * time.Millisecond)
		y.startProcess()
		p.within(5*time.Second, "y's new process has authority", y.connected)
		if leader.state().Generation(y.id) != 0 {
			t.Fatal("y was ended, so x would be ended, too")
		}

		p.within(time.Until(ended.Add(lasting)), "x is replaced", func() bool {
			return !leader.state().InRing(x.id) && owner.node.keeper.CanConfirm(partition)
		})
		t.Logf("replaced after %v", time.Since(ended))
	})
}

// TestD1_LeaderWithAHungDiskIsReplacedInOneProcess: the leader's disk hangs just
// after a probe, so that it leads as long as possible. Then it learns of no
// other leader, because its term can't be saved, and asks nobody. Still, every
// partition has an owner ten seconds after the last fault.
func TestD1_LeaderWithAHungDiskIsReplacedInOneProcess(t *testing.T) {
	t.Parallel()
	for _, killed := range []time.Duration{0, 300 * time.Millisecond, 700 * time.Millisecond, 2900 * time.Millisecond} {
		t.Run(fmt.Sprintf("a follower dies after %v", killed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newTestCluster(t, 5, exactRules(1_000_000))
				leader, others := p.leader()
				before := leader.memory.probes.Load()
				p.within(10*time.Second, "the disk is probed", func() bool { return leader.memory.probes.Load() > before })
				time.Sleep(10 * time.Millisecond)
				leader.memory.hang()

				time.Sleep(killed)
				if killed > 0 {
					others[0].endProcess(false)
				}
				fault := time.Now()
				p.within(lasting, "the leader is ended", func() bool { return !others[1].state().InRing(leader.id) })
				p.within(time.Until(fault.Add(lasting)), "every partition has an owner",
					func() bool { return firstUnowned(p.running()) < 0 })
				t.Logf("every partition has an owner after %v", time.Since(fault))
			})
		})
	}
}

// TestD5_FilteredFromMostInOneProcess: most nodes reach X only through the
// leader. X leaves the ring as planned, forgets nothing, and is not repeatedly
// readmitted. It returns when all nodes reach it.
func TestD5_FilteredFromMostInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 5, exactRules(1_000_000))
		leader, others := p.leader()
		x := others[0]
		key := p.keyOwnedBy("year", x, others[1], 0)
		if admitted, _, _ := leader.ask("year", key, 50); admitted != 50 {
			t.Fatalf("have %d admitted, want 50", admitted)
		}
		for _, v := range others[1:] {
			p.net.Cut(v.ip, x.ip)
		}
		p.within(25*time.Second, "x has left the ring", func() bool {
			return !leader.state().InRing(x.id) && leader.state().Settled
		})
		if leader.state().Generation(x.id) != 0 {
			t.Error("x was evicted instead of leaving as planned")
		}
		expect.Equal(t, p.used("year", key), 50, "used")
		before := p.epoch()
		time.Sleep(time.Minute)
		if after := p.epoch(); after > before+1 { // a new ring without the gap
			t.Errorf("%d rings in a minute", after-before)
		}
		if leader.state().InRing(x.id) || !x.connected() {
			t.Error("x is in the ring, or has no authority")
		}
		p.net.HealAll()
		p.within(time.Minute, "x is back", func() bool { return leader.state().InRing(x.id) })
		p.awaitWhole()
		expect.Equal(t, p.used("year", key), 50, "used")
	})
}

// TestRemoveByForceInOneProcess: an operator removes a node that is alive. Its
// standbys continue with everything it had. It is not readmitted, even if it is
// started again.
func TestRemoveByForceInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 4, exactRules(1_000_000))
		leader, others := p.leader()
		x := others[0]
		key := p.keyOwnedBy("year", x, others[1], 0)
		if admitted, _, _ := leader.ask("year", key, 50); admitted != 50 {
			t.Fatalf("have %d admitted, want 50", admitted)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := others[1].admin().Remove(ctx, x.name(), false, "ann"); !errors.Is(err, cluster.ErrRefused) {
			t.Fatalf("have %v, want a refusal because the node is alive", err)
		}
		expect.NoError(t, others[1].admin().Remove(ctx, x.name(), true, "ann"))
		expect.Equal(t, p.used("year", key), 50, "used")
		time.Sleep(30 * time.Second)
		for _, m := range leader.admin().View().Members {
			if m.Name == x.name() && (m.InRing || m.Voter) {
				t.Errorf("the removed node is a member again: %+v", m)
			}
		}
		if why := x.node.probeError(); why == nil || !strings.HasPrefix(why.Error(), "removed") {
			t.Errorf("the removed node reports ready: %v", why)
		}
		leader.endProcess(true) // the next leader must know of it, too
		time.Sleep(20 * time.Second)
		if others[1].state().InRing(x.id) {
			t.Error("the next leader has readmitted the removed node")
		}
		leader.startProcess()
		x.endProcess(false)
		x.startProcess()
		time.Sleep(30 * time.Second)
		if why := x.node.probeError(); why == nil ||
			!strings.Contains(why.Error(), "was removed by ann on ") ||
			!strings.Contains(why.Error(), "start it with --rejoin") {
			t.Errorf("the removed node, started again: got %v", why)
		}
		if others[1].state().InRing(x.id) {
			t.Error("the removed node was readmitted when it was started again")
		}
	})
}
