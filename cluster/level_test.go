package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
)

// release makes a node run a build that knows the given level.
func (n *node) release(level agreement.Level, name string) {
	n.adjust = func(c *Config) {
		c.Build = agreement.Build{Level: level, Release: name, Zones: "2031a"}
		c.Timings.RaiseAfter = 20 * time.Second
	}
}

func (n *node) level() agreement.Level { return n.c.Load().State().Level }

const (
	oldLevel = agreement.Newest
	newLevel = agreement.Newest + 1
)

// TestTheLevelRisesWhenAllKnowIt: absent members count, too. Afterwards, no
// node that lacks the level can join.
func TestTheLevelRisesWhenAllKnowIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.several(3, 3)
		for i, n := range nodes {
			n.release([]agreement.Level{newLevel, newLevel, oldLevel}[i], "r"+n.name)
			n.run()
		}
		w.oneCluster(nodes...)
		w.inRing(nodes...)
		old, young := nodes[2], nodes[:2]
		old.crash()
		w.inRing(young...)
		time.Sleep(time.Minute) // longer than it takes to rise by itself
		if have := young[0].level(); have != oldLevel {
			t.Fatalf("it rose to %d while a member that is away knows less", have)
		}
		if _, err := young[1].c.Load().Raise(t.Context(), newLevel); !errors.Is(err, ErrRefused) ||
			!strings.Contains(err.Error(), fmt.Sprintf("n3 knows feature level %d", oldLevel)) {
			t.Errorf("have %v", err)
		}
		if l := young[0].c.Load().Levels(); l.Agreed != oldLevel || l.Highest != oldLevel ||
			len(l.Members) != 3 || l.Members[2].Release != "rn3" || l.Members[2].Zones != "2031a" {
			t.Errorf("have %+v", l)
		}
		old.release(newLevel, "r2")
		old.run()
		w.inRing(nodes...)
		expect.Equal(t, old.level(), oldLevel, "it rose to at once: nobody could be rolled back")
		w.until(40*time.Second, "higher level", func() bool { return old.level() == newLevel })
		if _, err := young[1].c.Load().Raise(t.Context(), oldLevel); !errors.Is(err, ErrRefused) {
			t.Errorf("it went back: %v", err)
		}
		if have, err := young[1].c.Load().Raise(t.Context(), 0); err != nil || have != newLevel {
			t.Errorf("have %d, %v", have, err)
		}
		w.comesTooLate(nodes, old)
	})
}

// comesTooLate: an old release is refused, both as a new node and as a member that is rolled back.
func (w *world) comesTooLate(nodes []*node, back *node) {
	late := w.add(0, nodes[0])
	late.release(oldLevel, "old")
	late.run()
	back.stop()
	back.release(oldLevel, "old")
	back.run()
	time.Sleep(30 * time.Second)
	if c := late.c.Load(); c.Authority() || c.Identity().Cluster != [16]byte{} {
		w.t.Error("an old release has joined")
	} else if why := fmt.Sprint(c.ReadyError()); !strings.Contains(why, fmt.Sprintf("the cluster is at feature level %d, and node %s", newLevel, late.name)) || !strings.Contains(why, `run release "r`) {
		w.t.Errorf("a node that is too old to join says %q", why)
	}
	if c := back.c.Load(); c.Authority() || !errors.Is(c.StuckError(), ErrStuck) ||
		!strings.Contains(c.ReadyError().Error(), fmt.Sprintf("feature level %d is needed", newLevel)) {
		w.t.Errorf("a node that was rolled back takes part: %v", c.ReadyError())
	}
	w.inRing(nodes[:2]...)
	late.stop()
	back.stop()
	back.release(newLevel, "new")
	back.run()
	w.inRing(nodes...)
	w.sameState(nodes...)
}

// TestRollBackBeforeTheLevel: a roll-back works until the level rises.
func TestRollBackBeforeTheLevel(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		nodes := w.several(3, 3)
		for _, n := range nodes {
			n.release(oldLevel, "old")
			n.run()
		}
		w.oneCluster(nodes...)
		for i, level := range []agreement.Level{newLevel, newLevel, oldLevel, oldLevel} {
			n := nodes[i%2]
			n.stop()
			n.release(level, "another")
			n.run()
			w.inRing(nodes...)
			nodes[2].mustWrite(10 + i)
		}
		w.sameState(nodes...)
	})
}

// TestThePrimaryRisesLast: every region must be able to read what is written there.
func TestThePrimaryRisesLast(t *testing.T) {
	regionBubble(t, 2, []string{"eu", "us"}, func(t *testing.T, w *world, f *farNet) {
		for _, n := range w.nodes {
			n.release(oldLevel, "old")
		}
		w.startAll()
		w.agree(15*time.Second, 2)
		for _, n := range w.of("eu") {
			n.stop()
			n.release(newLevel, "new")
			n.run()
			w.ready(n)
			w.inRing(w.of("eu")...)
		}
		time.Sleep(time.Minute)
		if _, err := w.of("eu")[0].c.Load().Raise(t.Context(), 0); !errors.Is(err, ErrRefused) ||
			!strings.Contains(err.Error(), `region "us"`) {
			t.Errorf("have %v at level %d", err, w.of("eu")[0].level())
		}
		for _, n := range w.of("us") {
			n.stop()
			n.release(newLevel, "new")
			n.run()
			w.ready(n)
			w.inRing(w.of("us")...)
		}
		if _, err := w.of("us")[0].c.Load().Raise(t.Context(), 0); err != nil {
			t.Error(err)
		}
		w.until(time.Minute, "the primary's level", func() bool { return w.of("eu")[1].level() == newLevel })
		w.of("us")[1].mustWrite(9)
	})
}
