package cluster

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// seeds is how many times to run each randomised test.
var seeds = flag.Int("seeds", fewSeeds, "runs of each test with chance in it; make models has more")

const fewSeeds = 20

// many runs a test in as many bubbles, each with its own random source.
func many(t *testing.T, runs int, test func(t *testing.T, chance *rand.Rand)) {
	if testing.Short() {
		runs = min(runs, 5)
	}
	for seed := range runs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, rand.New(rand.NewPCG(uint64(seed), 1))) })
		})
	}
}

// oneCluster waits until all nodes are ready, and fails unless they form one cluster.
func (w *world) oneCluster(nodes ...*node) agreement.ClusterID {
	w.t.Helper()
	w.ready(nodes...)
	id := nodes[0].c.Load().State().Cluster
	for _, n := range nodes {
		if have := n.c.Load().State().Cluster; have != id {
			w.t.Fatalf("%s belongs to %s, %s to %s", nodes[0].name, id, n.name, have)
		}
	}
	return id
}

// watchLeaders fails the test if two nodes lead in one term. The returned function stops it.
func (w *world) watchLeaders() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	byTerm := map[uint64]*node{}
	go func() {
		defer close(ended)
		t := time.NewTicker(10 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-done:
				return
			}
			for _, n := range w.nodes {
				c := n.c.Load()
				if c == nil {
					continue
				}
				term := c.raft.Load().CurrentTerm()
				if !c.leads() || c.raft.Load().CurrentTerm() != term {
					continue
				}
				if other := byTerm[term]; other != nil && other != n {
					w.t.Errorf("%s and %s both lead in term %d", n.name, other.name, term)
				}
				byTerm[term] = n
			}
		}
	}()
	return func() { close(done); <-ended }
}

func TestSimultaneousStart(t *testing.T) {
	many(t, *seeds, func(t *testing.T, chance *rand.Rand) {
		w := newWorld(t)
		defer w.end()
		count := 3 + 2*chance.IntN(3)
		nodes := w.several(count, count)
		for _, i := range chance.Perm(count) {
			time.Sleep(time.Duration(chance.IntN(3)) * time.Millisecond)
			nodes[i].run()
		}
		defer w.watchLeaders()()
		w.oneCluster(nodes...)
		w.inRing(nodes...)
	})
}

func TestStartInAnyOrderAndSlowly(t *testing.T) {
	many(t, *seeds/5, func(t *testing.T, chance *rand.Rand) {
		w := newWorld(t)
		defer w.end()
		nodes := w.several(3, 3)
		for _, i := range chance.Perm(3) {
			nodes[i].run()
			time.Sleep(time.Duration(chance.IntN(20_000)) * time.Millisecond)
		}
		w.oneCluster(nodes...)
		w.inRing(nodes...)
	})
}

func TestFiveNodesExpectThree(t *testing.T) {
	many(t, *seeds/5, func(t *testing.T, chance *rand.Rand) {
		w := newWorld(t)
		defer w.end()
		nodes := w.several(5, 3)
		for _, i := range chance.Perm(5) {
			time.Sleep(time.Duration(chance.IntN(2000)) * time.Millisecond)
			nodes[i].run()
		}
		w.oneCluster(nodes...)
		w.inRing(nodes...)
	})
}

func TestStartWhileTheNetworkIsCut(t *testing.T) {
	many(t, *seeds/5, func(t *testing.T, chance *rand.Rand) {
		w := newWorld(t)
		defer w.end()
		nodes := w.several(5, 3)
		// Two sides, each of which could found a cluster if gossip alone decided.
		for _, a := range nodes[:2] {
			for _, b := range nodes[3:] {
				w.net.Cut(a.ip, b.ip)
			}
		}
		for _, i := range chance.Perm(5) {
			nodes[i].run()
		}
		time.Sleep(time.Duration(chance.IntN(10_000)) * time.Millisecond)
		w.net.HealAll()
		w.oneCluster(nodes...)
		w.inRing(nodes...)
	})
}

// TestACrashAtEachStepOfTheFounding: a node crashes at each of its writes in
// turn. Its next process and the other nodes still found one cluster.
func TestACrashAtEachStepOfTheFounding(t *testing.T) {
	for who := range 2 {
		died := int64(0)
		// how many writes there are differs a little from run to run
		for at := int64(1); at <= 24 && at <= died+3; at++ {
			t.Run(fmt.Sprintf("n%d dies at write %d", who+1, at), func(t *testing.T) {
				onVirtualTime(t, func(t *testing.T, w *world) {
					nodes := w.several(3, 3)
					victim := nodes[who]
					victim.dieAt = at
					for _, n := range nodes {
						n.run()
					}
					time.Sleep(4 * time.Second)
					if !victim.store.died() {
						return
					}
					died = at
					victim.stop()
					victim.dieAt = 0
					time.Sleep(time.Second)
					victim.run()
					w.oneCluster(nodes...)
					w.inRing(nodes...)
				})
			})
		}
		if died < 8 {
			t.Errorf("n%d made %d writes in its founding; the test looks at too few", who+1, died)
		}
	}
}

// TestALoneNodeDiesAtEachWrite does the same with a node that founds a cluster by itself.
func TestALoneNodeDiesAtEachWrite(t *testing.T) {
	for at, died := int64(1), true; died; at++ {
		t.Run(fmt.Sprintf("write %d", at), func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				n := w.add(1)
				n.dieAt = at
				n.run()
				time.Sleep(4 * time.Second)
				died = n.store.died()
				if !died {
					return
				}
				n.stop()
				n.dieAt = 0
				n.run()
				w.ready(n)
			})
		})
		if at > 100 {
			t.Fatal("it never ends")
		}
	}
}

func TestALoneNodeNeedsNobody(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		n := w.add(1).run()
		begun := time.Now()
		w.ready(n)
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("it took %s", took)
		}
		expect.Equal(t, n.mustWrite(8), 2, "version")
		if err := n.c.Load().LeaveRing(t.Context()); err != nil {
			t.Errorf("to leave alone: %v", err)
		}
	})
}

// TestAnExistingStateIsNeverFoundedOver: a whole cluster comes back unchanged.
func TestAnExistingStateIsNeverFoundedOver(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.several(3, 3)
		for _, n := range nodes {
			n.run()
		}
		id := w.oneCluster(nodes...)
		version := nodes[1].mustWrite(9)
		for _, n := range nodes {
			n.crash()
		}
		for _, n := range shuffled(nodes) {
			n.run()
		}
		if have := w.oneCluster(nodes...); have != id {
			t.Errorf("it was cluster %s and is now %s", id, have)
		}
		for _, n := range nodes {
			if err := n.c.Load().CatchUp(t.Context()); err != nil || rulesVersion(n.c.Load().State()) != version {
				t.Errorf("%s has version %d, %v; want %d", n.name, rulesVersion(n.c.Load().State()), err, version)
			}
		}
	})
}

// A node is no longer a member only if that is said of itself: what is said of
// the node that was at its address before is not.
func TestAnotherNodesDeparture(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		n := w.founded(1)[0]
		c := n.c.Load()
		said := invitation{Cluster: [16]byte(c.State().Cluster), Departed: "was removed"}
		for _, one := range []struct {
			node ring.NodeID
			want error
		}{{ring.NodeID{9}, nil}, {n.id, ErrDeparted}} {
			said.Node = one.node
			_, err := c.founder.serveInvitation(t.Context(), said)
			expect.NoError(t, err)
			if got := c.DegradedError(); !errors.Is(got, one.want) {
				t.Errorf("node %s, said of node %s: got %v, want %v", n.id, one.node, got, one.want)
			}
		}
	})
}
