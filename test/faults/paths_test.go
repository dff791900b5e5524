//go:build faults

package faults

import (
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/pairs"
)

// TestLinkCut: two nodes can't reach each other for a minute, and a third
// relays. No node decides alone, relayed checks are almost as fast as forwarded
// ones, and a rule written meanwhile is in force everywhere.
func TestLinkCut(t *testing.T) {
	newFleet(t, 3).run(func(f *fleet, l *load) {
		i := f.random.IntN(3)
		a, b := f.nodes[i], f.nodes[(i+1+f.random.IntN(2))%3]
		owners := f.owners(l)
		f.part(a, b, false)
		began := boottime()
		f.pass(long(20 * time.Second))
		s := &scene{fleet: f}
		s.writes(time.Now().Add(5*time.Second), 1)
		if !testing.Short() {
			f.pass(40 * time.Second)
			f.compareWays(l, owners, a, b, began+int64(2*time.Second))
		}
		l.noneBy("fallback")
	})
}

// owners returns the nodes that decide the subjects under limits.
func (f *fleet) owners(l *load) map[[2]int]int {
	f.t.Helper()
	all := map[[2]int]int{}
	for r := range l.rules {
		for key := range l.rules[r].keys {
			if l.rules[r].inline(key) {
				continue
			}
			name, _, err := f.any().ownerOf(l.rules[r].name, l.keys[key])
			expect.NoError(f.t, err)
			all[[2]int{r, key}] = f.byName(name)
		}
	}
	return all
}

// compareWays compares the times of checks since a time: those from a to b
// through the third node, and all others that were forwarded. It subtracts the
// time that the tests waited for a processor.
func (f *fleet) compareWays(l *load, owners map[[2]int]int, a, b *node, since int64) {
	f.t.Helper()
	var around, direct []time.Duration
	l.mu.Lock()
	for _, h := range slices.Concat(l.hits, l.refused) {
		if h.by != "forward" || h.sent < since {
			continue
		}
		took := time.Duration(h.got - h.sent - l.lost(h.sent, h.got))
		by, known := owners[[2]int{h.rule, h.key}]
		if !known {
			continue
		}
		switch at, owner := f.nodes[h.node], f.nodes[by]; {
		case at == owner:
		case (at == a || at == b) && (owner == a || owner == b):
			around = append(around, took)
		default:
			direct = append(direct, took)
		}
	}
	l.mu.Unlock()
	if len(around) < 1000 || len(direct) < 1000 {
		f.t.Fatalf("only %d checks went by way of the third node, %d directly", len(around), len(direct))
	}
	slices.Sort(around)
	slices.Sort(direct)
	at := func(list []time.Duration, percent int) time.Duration { return list[len(list)*percent/100] }
	f.t.Logf("by way of a third node: %d, median %v, p99 %v; forwarded: %d, median %v, p99 %v",
		len(around), at(around, 50), at(around, 99),
		len(direct), at(direct, 50), at(direct, 99))
	if at(around, 99) > 3*at(direct, 99) {
		f.t.Errorf("p99 by way of a third node is %v, and %v directly", at(around, 99), at(direct, 99))
	}
}

// followers returns two nodes that don't lead.
func (f *fleet) followers() (one, other *node) {
	leader := f.leader()
	var list []*node
	for _, i := range f.random.Perm(len(f.nodes)) {
		if n := f.nodes[i]; n != leader && !n.spare {
			list = append(list, n)
		}
	}
	return list[0], list[1]
}

// TestD1_BrokenLinkAndACrash: the leader and X can't reach each other, and Y
// dies. X keeps its authority, and Y returns while the link is still broken.
func TestD1_BrokenLinkAndACrash(t *testing.T) {
	onlyLong(t)
	newFleet(t, 5).run(func(f *fleet, l *load) {
		x, y := f.followers()
		f.part(f.leader(), x, false)
		f.pass(5 * time.Second)
		f.kill(y)
		for end := time.Now().Add(15 * time.Second); time.Now().Before(end); f.pass(100 * time.Millisecond) {
			if c, err := x.cluster(); err != nil || c.View != "connected" {
				t.Fatalf("%s: %+v, %v", x.name, c, err)
			}
		}
		y.up()
		f.whole(recovered)
	})
}

// TestD2_TheNewestCopyGoesOn: the link between the ends of a move breaks, and
// the newcomer, which has decided for a while, dies.
func TestD2_TheNewestCopyGoesOn(t *testing.T) {
	onlyLong(t)
	f := emptyFleet(t, 3)
	f.spare()
	t.Cleanup(f.close)
	f.open()
	f.run(func(f *fleet, l *load) {
		s := &scene{fleet: f, pair: pairs.Pair{Fault: "link-both:from-to"}}
		s.owner, s.standby = f.ownerAndStandby(l)
		s.breaks()
		f.pass(f.between(time.Second, 3*time.Second))
		f.kill(s.to)
		f.pass(8 * time.Second)
	})
}

// TestD3_AStandbyThatCantBeReached: an owner and its standby can't reach each
// other for ten seconds, and the owner dies.
func TestD3_AStandbyThatCantBeReached(t *testing.T) {
	onlyLong(t)
	newFleet(t, 3).run(func(f *fleet, l *load) {
		owner, standby := f.ownerAndStandby(l)
		f.part(owner, standby, false)
		f.pass(10 * time.Second)
		f.kill(owner)
		f.pass(8 * time.Second)
	})
}

// TestD4_BrokenLinkAndARule: X can't reach the leader, but uses newly written
// rules and has authority.
func TestD4_BrokenLinkAndARule(t *testing.T) {
	onlyLong(t)
	newFleet(t, 3).run(func(f *fleet, l *load) {
		x, _ := f.followers()
		f.part(f.leader(), x, false)
		f.pass(2 * time.Second)
		s := &scene{fleet: f}
		for number := range 3 {
			s.writes(time.Now().Add(recovered), number+1)
			if c, err := x.cluster(); err != nil || c.View != "connected" {
				t.Errorf("%s: %+v, %v", x.name, c, err)
			}
			f.pass(3 * time.Second)
		}
		l.noneBy("fallback")
	})
}

// TestD5_ReachedOnlyByWayOfOthers: X's peer port is filtered from most nodes,
// but not from the leader. X hands over its partitions, leaves the ring, and
// stays out until the nodes can reach it.
func TestD5_ReachedOnlyByWayOfOthers(t *testing.T) {
	onlyLong(t)
	f := newFleet(t, 5)
	f.agree = time.Minute
	f.run(func(f *fleet, l *load) {
		x, _ := f.followers()
		leader, at := f.leader(), boottime()
		for _, n := range f.nodes {
			if n != x && n != leader {
				x.shy[n.ip], x.stale = true, true
				n.shy[x.ip], n.stale = true, true
			}
		}
		f.net.apply()
		t.Logf("%s: the peer port of %s is filtered from all but %s", clockTime(), x.name, leader.name)
		f.fault(apart, x, at)
		s := &scene{fleet: f}
		s.inRing(x, false, recovered)
		before, err := leader.cluster()
		expect.NoError(t, err)
		f.pass(40 * time.Second)
		s.inRing(x, false, time.Second)
		after, err := leader.cluster()
		if err != nil || after.Epoch > before.Epoch+1 {
			t.Errorf("there were %d rings meanwhile (%v)", after.Epoch-before.Epoch, err)
		}
		l.noneBy("fallback")
	})
}
