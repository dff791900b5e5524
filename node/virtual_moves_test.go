package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
)

// joinNode starts one more node, which joins the cluster.
func (p *testCluster) joinNode() *testNode {
	p.t.Helper()
	n := len(p.nodes)
	v := p.addNode(p.settings(n, n))
	v.startProcess()
	return v
}

// followers returns the nodes that don't lead.
func (p *testCluster) followers() (list []*testNode) {
	p.t.Helper()
	leader := ""
	p.eventually("there is a leader", func() bool {
		leader = p.nodes[0].node.cluster.View().Leader
		return leader != ""
	})
	for _, v := range p.nodes {
		if v.alive.Load() && v.settings.Name != leader {
			list = append(list, v)
		}
	}
	return list
}

// partition returns a subject's partition.
func (p *testCluster) partition(rule, key string) int {
	p.t.Helper()
	return ring.PartitionOf(p.subjectHash(rule, key))
}

// keyMoving returns a subject of the rule that moves from one node to another,
// where its standby will be standby. Its partition is one of the first to move:
// those go together, before the rest.
func (p *testCluster) keyMoving(rule string, from, to, standby *testNode) (key string, partition int) {
	p.t.Helper()
	s := p.nodes[0].node.cluster.State()
	before := 0
	most := ring.Partitions
	for q := range ring.Partitions {
		if s.From.Owner(q) == from.id && s.To.Owner(q) == to.id {
			before++
			if before == 128 {
				most = q
			}
		}
	}
	for i := range 100_000 {
		key := fmt.Sprintf("m%d", i)
		q := p.partition(rule, key)
		if q <= most && s.From.Owner(q) == from.id && s.To.Owner(q) == to.id && s.To.Standby(q) == standby.id {
			return key, q
		}
	}
	p.t.Fatal("no such subject")
	return "", 0
}

// owner waits until a node other than those in not decides the partition with
// authority, and returns it.
func (p *testCluster) owner(partition int, not ...*testNode) (owner *testNode) {
	p.t.Helper()
	p.eventually("the partition has an owner", func() bool {
		for _, v := range p.nodes {
			skip := !v.alive.Load()
			for _, other := range not {
				skip = skip || v == other
			}
			if !skip && v.node.table.IsOpen(partition) && v.node.cluster.Authority() {
				owner = v
				return true
			}
		}
		return false
	})
	return owner
}

// usedAt returns what a node, which owns the subject, has counted.
func (v *testNode) usedAt(rule, key string) int64 {
	v.cluster.t.Helper()
	if v.cluster.inline != nil {
		used, err := v.peekInline(key)
		expect.NoError(v.cluster.t, err)
		return used
	}
	u, err := v.node.limiter.Usage(&limiter.Query{Rule: rule, Key: []string{key}})
	expect.NoError(v.cluster.t, err)
	return u.Limits[0].Used
}

// moveBegun makes a newcomer join. It returns when an old node has handed over
// the first partitions to it but not the rest, because the link between the two
// is slow. By then, standby has a copy of the subject's partition.
func moveBegun(t *testing.T) (p *testCluster, from, to, standby *testNode, key string, partition int) {
	p = newTestCluster(t, 3, exactRules(1_000_000))
	followers := p.followers()
	from, standby = followers[0], followers[1]
	p.net.DelayBetween(from.ip, p.address(3), 20*time.Millisecond)
	to = p.joinNode()
	state := from.node.cluster.State
	p.eventually("the ring moves", func() bool {
		s := p.nodes[0].node.cluster.State()
		return !s.Settled && s.To.Rank(to.id) >= 0 && state().Revision == s.Revision
	})
	key, partition = p.keyMoving("year", from, to, standby)
	p.eventually("the partition is handed over", func() bool {
		return from.node.keeper.Route(partition).Owner == to.id
	})
	if state().Settled {
		t.Fatal("the move is over")
	}
	return p, from, to, standby, key, partition
}

// One end of a move dies in the middle of it: the newcomer, which has the
// partition by then, or the node that still has to hand it over. The other side
// acts from its copy until the dead node is evicted, so no node decides alone.
func TestAnEndOfAMoveThatDiesInOneProcess(t *testing.T) {
	t.Parallel()
	for _, newcomer := range []bool{true, false} {
		t.Run(fmt.Sprintf("the newcomer %v", newcomer), func(t *testing.T) {
			runWith(t, alternatives(newcomer), func(t *testing.T, inline bool) { endOfAMoveDies(t, newcomer, inline) })
		})
	}
}

func endOfAMoveDies(t *testing.T, newcomer, inline bool) {
	const few, before = 30, 20
	p := newTestCluster(t, 4, exactRules(few))
	p.useInline(inline, few, true)
	followers := p.followers()
	from, standby := followers[0], followers[1]
	for _, v := range p.nodes {
		p.net.DelayBetween(v.ip, p.address(4), 100*time.Millisecond) // keep the move slow
	}
	to := p.joinNode()
	p.eventually("the ring moves", func() bool {
		return !slices.ContainsFunc(p.nodes, func(v *testNode) bool { return v.state().To.Rank(to.node.id) < 0 })
	})
	key, partition := p.keyMoving("year", from, to, standby)
	dies, owner := from, from
	if newcomer {
		dies, owner = to, to
		p.eventually("the partition is handed over", func() bool {
			return from.node.keeper.Route(partition).Owner == to.node.id
		})
	}
	admitted, by, _ := owner.ask("year", key, before)
	if admitted != before || by[limiter.ByOwner] != before {
		t.Fatalf("%d admitted, by %v", admitted, by)
	}
	other := to
	if newcomer {
		other = from
	}
	p.eventually("the other side has a copy", func() (has bool) {
		_ = other.node.table.Copy(partition, func(records []counters.Record) error {
			has = has || slices.ContainsFunc(records, func(r counters.Record) bool { return r.State.Count == before })
			return nil
		})
		return has
	})
	if has := owner.node.keeper.Route(partition).Owner; has != owner.node.id || from.state().Settled {
		t.Fatal("the move is over")
	}
	dies.endProcess(false)
	time.Sleep(500 * time.Millisecond)
	alive := slices.DeleteFunc(slices.Clone(p.nodes), func(v *testNode) bool { return v == dies })
	ended := func() bool { return !standby.state().InRing(dies.node.id) }
	for range 50 {
		for _, v := range alive {
			n, by, _ := v.ask("year", key, 1)
			admitted += n
			if by[limiter.ByFallback] > 0 && !ended() {
				t.Errorf("%s decides alone", v.name())
			}
		}
	}
	p.eventually("the dead node is evicted", ended)
	p.owner(partition, dies)
	time.Sleep(time.Second) // until debts are reported
	for _, v := range alive {
		n, _, _ := v.ask("year", key, few)
		admitted += n
	}
	// The other side admits some checks in between and reports them later: see G5.
	// A request in flight may count twice.
	most := few + int64(few+len(p.nodes)-1)/int64(len(p.nodes))
	if used := p.owner(partition, dies).usedAt("year", key); admitted > most || admitted < few-4 || used < admitted {
		t.Errorf("%d of %d admitted, %d used", admitted, few, used)
	}
}

// A node has handed partitions over to a newcomer when the link between the two
// breaks for good. The newcomer decides for a while and dies. The old owner's
// copy ends at the cut; the newcomer's standby has everything and continues.
func TestD2_TheNewestCopyGoesOnInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, from, to, _, key, partition := moveBegun(t)
		p.net.Cut(from.ip, to.ip)
		time.Sleep(time.Second)
		admitted, by, _ := to.ask("year", key, 2000)
		if by[limiter.ByOwner] != 2000 {
			t.Fatalf("decided by %v", by)
		}
		time.Sleep(300 * time.Millisecond) // until it is pushed
		to.endProcess(false)
		owner := p.owner(partition, to)
		if used := owner.usedAt("year", key); used != admitted {
			t.Errorf("%s has %d used, and %d were admitted", owner.settings.Name, used, admitted)
		}
	})
}

// As above, but the old owner has no path at all to the newcomer while the
// newcomer decides; the cut is too short for an eviction. The old owner has to
// ask for the newest copy.
func TestD2_TheNewestCopyIsAskedForInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, from, to, _, key, partition := moveBegun(t)
		p.net.Isolate(from.ip)
		time.Sleep(300 * time.Millisecond)
		admitted, by, _ := to.ask("year", key, 100)
		if by[limiter.ByOwner] != 100 {
			t.Fatalf("decided by %v", by)
		}
		time.Sleep(200 * time.Millisecond) // until it is pushed
		to.endProcess(false)
		time.Sleep(100 * time.Millisecond)
		p.net.Rejoin(from.ip)
		if from.state().Settled {
			t.Fatal("the move is over")
		}
		owner := p.owner(partition, to)
		if used := owner.usedAt("year", key); used != admitted {
			t.Errorf("%s has %d used, and %d were admitted", owner.settings.Name, used, admitted)
		}
	})
}

// As above, but the old owner doesn't know whether the newcomer has taken the
// partition: the answer was lost.
func TestD2_InDoubtInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, exactRules(1_000_000))
		followers := p.followers()
		from, standby := followers[0], followers[1]
		p.net.DelayBetween(from.ip, p.address(3), 20*time.Millisecond)
		to := p.joinNode()
		p.eventually("the ring moves", func() bool {
			s := p.nodes[0].node.cluster.State()
			return !s.Settled && s.To.Rank(to.id) >= 0
		})
		key, partition := p.keyMoving("year", from, to, standby)
		p.eventually("the newcomer has the partition", func() bool { return to.node.table.IsOpen(partition) })
		p.net.Cut(from.ip, to.ip) // while the answer is in flight
		if r := from.node.keeper.Route(partition); r.Owner != from.id {
			t.Fatalf("have %+v", r)
		}
		time.Sleep(time.Second)
		admitted, by, _ := to.ask("year", key, 2000)
		if by[limiter.ByOwner] != 2000 {
			t.Fatalf("decided by %v", by)
		}
		time.Sleep(300 * time.Millisecond)
		to.endProcess(false)
		owner := p.owner(partition, to)
		if used := owner.usedAt("year", key); used != admitted {
			t.Errorf("%s has %d used, and %d were admitted", owner.settings.Name, used, admitted)
		}
	})
}

// An owner and its standby are cut off from each other for ten seconds, and the
// owner dies. Everything it admitted is kept, except for the last moment.
func TestD3_AStandbyThatCantBeReachedInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, exactRules(1_000_000))
		followers := p.followers()
		owner, standby := followers[0], followers[1]
		key := p.keyOwnedBy("year", owner, standby, 0)
		partition := p.partition("year", key)
		p.net.Cut(owner.ip, standby.ip)
		time.Sleep(10 * time.Second)
		admitted, by, _ := owner.ask("year", key, 2000)
		if by[limiter.ByOwner] != 2000 {
			t.Fatalf("decided by %v", by)
		}
		time.Sleep(time.Second)
		owner.endProcess(false)
		if used := p.owner(partition, owner).usedAt("year", key); used != admitted {
			t.Errorf("have %d used, and %d were admitted", used, admitted)
		}
	})
}

// An owner that lost its memory asks its standby for the copy and doesn't get
// it, because the link breaks. The standby reports what it admitted meanwhile
// when the link is back.
func TestD7_APullThatFailsTakesNoDebtsInOneProcess(t *testing.T) {
	t.Parallel()
	// ms after it asks for the copies' ages, and then for the copies; a message takes 30
	moments := []time.Duration{100, 0, 40, 80, 110}
	for _, after := range moments[:casesToRun(len(moments))] {
		t.Run(fmt.Sprintf("cut after %d ms", after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { pullThatFails(t, after*time.Millisecond) })
		})
	}
}

func pullThatFails(t *testing.T, after time.Duration) {
	p := newTestCluster(t, 3, exactRules(1_000_000))
	followers := p.followers()
	owner, standby := followers[0], followers[1]
	key := p.keyOwnedBy("year", owner, standby, 0)
	time.Sleep(time.Second)
	owner.endProcess(false)
	time.Sleep(300 * time.Millisecond)
	admitted, by, _ := standby.ask("year", key, 500)
	if by[limiter.ByStandby] != 500 {
		t.Fatalf("decided by %v", by)
	}
	p.net.DelayBetween(owner.ip, standby.ip, 30*time.Millisecond)
	owner.startProcess()
	p.eventually("the owner is recovering its counters", owner.node.keeper.IsRecovering)
	time.Sleep(after)
	p.net.Isolate(standby.ip) // leave no other path
	p.eventually("the owner continues without the copy", func() bool { return !owner.node.keeper.IsRecovering() })
	p.net.Rejoin(standby.ip)
	p.awaitWhole()
	time.Sleep(5 * time.Second)
	if used := p.used("year", key); used != admitted {
		t.Errorf("have %d used, and %d were admitted", used, admitted)
	}
}

// While a standby reports to its owner what it admitted, their link breaks
// repeatedly, each time before the answer arrives. Every hit is counted once.
func TestD8_DebtsAreDebitedOnceInOneProcess(t *testing.T) {
	t.Parallel()
	for seed := range uint64(casesToRun(3)) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 8))
			p := newTestCluster(t, 3, exactRules(1_000_000))
			followers := p.followers()
			owner, standby := followers[0], followers[1]
			key := p.keyOwnedBy("year", owner, standby, 0)
			third := p.nodes[0]
			for _, v := range p.nodes {
				if v != owner && v != standby {
					third = v
				}
			}
			// The standby acts because neither it nor the node that asks it can reach the owner.
			p.net.Cut(owner.ip, standby.ip)
			p.net.Cut(owner.ip, third.ip)
			time.Sleep(400 * time.Millisecond)
			admitted, by, _ := standby.ask("year", key, 300)
			if by[limiter.ByStandby] != 300 {
				t.Fatalf("decided by %v", by)
			}
			p.net.Heal(owner.ip, third.ip)
			p.net.DelayBetween(owner.ip, standby.ip, 60*time.Millisecond)
			for range 12 {
				p.net.Heal(owner.ip, standby.ip)
				p.eventually("they see each other", func() bool {
					return standby.node.peers.Reachable(owner.id)
				})
				time.Sleep(time.Duration(70+rnd.IntN(170)) * time.Millisecond)
				p.net.Cut(owner.ip, standby.ip)
				time.Sleep(600 * time.Millisecond)
			}
			p.net.HealAll()
			p.awaitWhole()
			time.Sleep(5 * time.Second)
			if used := p.used("year", key); used != admitted {
				t.Errorf("seed %d: have %d used, and %d were admitted", seed, used, admitted)
			}
		})
	}
}

// Nodes leave for good under load, one after the other, until one is left:
// followers, or always the leader. No check is decided without its owner, and
// all are counted. Of six nodes, the sixth becomes a voter only when another
// one has left.
func TestG6_NodesLeaveInOneProcess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		nodes int
		leads bool
	}{{2, false}, {6, true}} {
		synctest.Test(t, func(t *testing.T) {
			p := newTestCluster(t, tt.nodes, hybridRules(1_000_000))
			c := p.startLoad("year", 30, 4)
			for len(p.nodes) > 1 {
				list := p.followers()
				if tt.leads {
					list = slices.DeleteFunc(slices.Clone(p.nodes),
						func(v *testNode) bool { return slices.Contains(list, v) })
				}
				v := list[0]
				ctx, cancel := context.WithTimeout(t.Context(), 2*leaveTimeout) // leaders in turn make the sixth wait
				if err := v.node.leave(ctx, true, ""); err != nil {
					t.Errorf("of %d: %v", len(p.nodes), err)
				}
				cancel()
				v.drain()
				v.endProcess(false)
				p.nodes = slices.DeleteFunc(slices.Clone(p.nodes), func(other *testNode) bool { return other == v })
				time.Sleep(3 * time.Second)
			}
			if by := c.stopLoad(); c.failed.Load() > 0 || c.slow.Load() > 0 || by["fallback"] > 0 || by["standby"] > 0 {
				t.Errorf("%d failed, %d slow, by %v", c.failed.Load(), c.slow.Load(), by)
			}
			time.Sleep(6 * time.Second) // until leases are returned
			for i := range c.admitted {
				if used, admitted := p.used("year", fmt.Sprintf("k%d", i)), c.admitted[i].Load(); used != admitted {
					t.Errorf("key %d: have %d used, and %d admitted", i, used, admitted)
				}
			}
		})
	}
}

// A node that leaves for good right after a cut reports first what it has
// admitted alone.
func TestG6_NodeLeavesAfterACutInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, exactRules(1_000_000))
		p.awaitWhole()
		v := p.followers()[0]
		p.net.Isolate(v.ip)
		p.eventually("it has lost its authority", func() bool { return !v.connected() })
		const keys = 50
		admitted := map[string]int64{}
		for i := range keys {
			key := fmt.Sprintf("k%d", i)
			if ok, err := v.check("year", key, &limiter.Answer{}); err == nil && ok {
				admitted[key]++
			}
		}
		p.net.Rejoin(v.ip)
		p.eventually("it has authority again", v.connected)

		ctx, cancel := context.WithTimeout(t.Context(), 2*leaveTimeout)
		defer cancel()
		expect.NoError(t, v.node.leave(ctx, true, ""))
		v.drain()
		v.endProcess(false)
		p.nodes = slices.DeleteFunc(slices.Clone(p.nodes), func(other *testNode) bool { return other == v })
		time.Sleep(5 * time.Second)
		for key, want := range admitted {
			expect.Equal(t, p.used("year", key), want, "%s: used", key)
		}
		if len(admitted) < keys/2 {
			t.Errorf("got %d keys admitted alone, want most of %d", len(admitted), keys)
		}
	})
}

// A command to leave that fails can be repeated, or the node goes on.
func TestLeaveThatFailsInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newTestCluster(t, 3, exactRules(1_000_000))
		p.awaitWhole()
		v := p.followers()[0]
		leave := func(within time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			_, err := v.admin().Leave(ctx, false, "ann")
			return err
		}

		// It reaches nobody, so nothing moves.
		p.net.Isolate(v.ip)
		if err := leave(3 * time.Second); err == nil {
			t.Fatal("a node that is cut off has left")
		}
		p.net.Rejoin(v.ip)
		p.awaitWhole()
		expect.NoError(t, v.node.membershipError())

		// It has left the ring, and not the cluster.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		expect.NoError(t, v.node.cluster.LeaveRing(ctx))
		v.node.cluster.Stay()
		if err := v.node.membershipError(); err != errGivenUp {
			t.Errorf("got %v, want %v", err, errGivenUp)
		}
		expect.NoError(t, leave(time.Minute))
		if err := v.node.membershipError(); err != errLeft {
			t.Errorf("got %v, want %v", err, errLeft)
		}
	})
}
