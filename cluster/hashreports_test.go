package cluster

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

func TestHashReports(t *testing.T) {
	var tl hashReports
	a, b, c := agreement.Hash{1}, agreement.Hash{2}, agreement.Hash{3}
	for i, step := range []struct {
		node           byte
		index          uint64
		hash           agreement.Hash
		differs, split bool
	}{
		{1, 16, a, false, false},
		{2, 16, b, false, false}, // two of five are no majority
		{3, 16, a, false, false},
		{4, 16, a, false, false},
		{2, 16, b, true, false},
		{5, 16, c, true, false},
		{1, 32, a, false, false},
		{2, 32, a, false, false}, // a hash at one index says nothing about another
		{3, 32, b, false, false},
		{4, 32, b, false, false},
		{5, 32, b, false, false},
		{1, 32, a, true, false},
		{1, 48, a, false, false},
		{2, 48, b, false, false},
		{1, 64, a, false, false},
		{1, 80, a, false, false}, // 16 is dropped, and had a majority
		{1, 96, a, false, false},
		{1, 112, a, false, true}, // 48 is dropped, and had none
		{1, 128, a, false, false},
	} {
		differs, split := tl.add(ring.NodeID{step.node}, agreement.HashAt{Index: step.index, Hash: step.hash}, 5)
		if differs != step.differs || split != step.split {
			t.Errorf("step %d: have %v, %v", i, differs, split)
		}
	}
	for i := range uint64(100) {
		tl.add(ring.NodeID{1}, agreement.HashAt{Index: 16 * (i + 3), Hash: a}, 5)
	}
	expect.Equal(t, len(tl.byIndex), keptHashes, "indices are kept")
}

// astray makes a node's state differ from the one that its applied entries result in.
func (n *node) astray() {
	m := n.c.Load().machine
	n.w.until(5*time.Second, "another state", func() bool {
		s := m.state.Load()
		other := *s
		other.Hash[0]++
		return m.state.CompareAndSwap(s, &other)
	})
	wake.Signal(n.c.Load().stateApplied)
}

// TestWhoDiffersFromAMajorityStops: a node that differs stops. A leader hands over the lead first.
func TestWhoDiffersFromAMajorityStops(t *testing.T) {
	for _, leads := range []bool{false, true} {
		bubble(t, func(t *testing.T, w *world) {
			nodes := w.founded(3)
			odd, leader := nodes[0], w.aLeader()
			if leads {
				odd = leader
			} else if odd == leader {
				odd = nodes[1]
			}
			m, r := odd.c.Load().machine, odd.c.Load().raft.Load()
			led := make(chan bool, 1)
			go func() {
				<-m.stopped
				led <- r.State() == raft.Leader
			}()
			odd.astray()
			if <-led {
				t.Error("it stopped while it led")
			}
			w.until(10*time.Second, "stop", func() bool { return errors.Is(odd.c.Load().StuckError(), errDiverged) })
			var others []*node
			for _, n := range nodes {
				if n != odd {
					others = append(others, n)
				}
			}
			w.inRing(others...)
			w.until(10*time.Second, "another leader", func() bool { l := w.leader(); return l != nil && l != odd })
			others[0].mustWrite(8)
			w.sameState(others...)
			for _, n := range others {
				if c := n.c.Load(); c.StuckError() != nil || !c.Authority() || c.tracker.Split() {
					t.Errorf("%s: %v", n.name, c.StuckError())
				}
			}
			odd.crash()
			w.until(time.Minute, "its removal",
				func() bool { return others[0].c.Load().Remove(t.Context(), odd.id.String(), false, "ann") == nil })
			odd.disk = newDisk()
			odd.expect, odd.join = 0, []string{others[0].ip}
			odd.id = ring.NodeID{9}
			odd.run()
			w.until(time.Minute, "a new beginning",
				func() bool { return odd.c.Load().ReadyError() == nil && odd.c.Load().Authority() })
		})
	}
}

// TestWithoutAMajorityItIsAnAlarm: it is unknown which side is right, and
// stopping both would stop everything.
func TestWithoutAMajorityItIsAnAlarm(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.several(2, 2)
		for _, n := range nodes {
			n.run()
		}
		w.oneCluster(nodes...)
		w.inRing(nodes...)
		nodes[0].astray()
		w.until(20*time.Second, "alarm", func() bool { return w.aLeader().c.Load().tracker.Split() })
		for _, n := range nodes {
			if c := n.c.Load(); c.StuckError() != nil || !c.Authority() {
				t.Errorf("%s: %v", n.name, c.StuckError())
			}
		}
		nodes[1].mustWrite(9)
	})
}
