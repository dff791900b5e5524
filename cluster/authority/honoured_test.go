package authority

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
)

// TestHonoured: RequireApplied returns true only if every node that may have
// authority has applied the entry. Nodes that get authority later have applied
// it, too.
func TestHonoured(t *testing.T) {
	d := newDesk(t, 3)
	d.run(10*time.Second, 1, 2, 3)
	old := d.request(2)
	d.apply(agreement.Empty{})
	index := d.state.Index
	if d.reignState.tryRaiseFloor(d.now, index) {
		t.Error("true, although no node has reported that it has applied the entry")
	}
	for _, n := range []byte{1, 3} {
		if r := d.ask(d.request(n)); !r.Granted {
			t.Fatalf("node %d: have %+v", n, r)
		}
	}
	if d.reignState.tryRaiseFloor(d.now, index) {
		t.Error("true, although node 2 has authority and has not applied the entry")
	}
	if r := d.ask(old); !r.Granted {
		t.Errorf("before the entry is required: have %+v, want authority for the node that is behind", r)
	}
	asked := d.now
	for !d.reignState.tryRaiseFloor(d.now, index) {
		d.now += tickInterval
		if d.now-asked > time.Minute {
			t.Fatal("expired authority still counts")
		}
		d.ask(d.request(1))
		d.ask(d.request(3))
	}
	if d.now-asked < EndingWait {
		t.Errorf("after %v node 2 might still have had authority", d.now-asked)
	}
	if r := d.ask(old); r.Granted || r.Reason != reasonRules || r.Index != index {
		t.Errorf("have %+v, want a refusal of who is behind", r)
	}
	if r := d.ask(d.request(2)); !r.Granted {
		t.Errorf("have %+v, want authority for the node that has caught up", r)
	}
	if !d.reignState.tryRaiseFloor(d.now, index) {
		t.Error("an honoured entry is no longer honoured")
	}
}

// TestHonouredByANewLeader: the grants of an earlier leader must expire first,
// and the new leader keeps the earlier floor.
func TestHonouredByANewLeader(t *testing.T) {
	d := newDesk(t, 3)
	d.run(10*time.Second, 1, 2, 3)
	old := d.request(2)
	d.apply(agreement.Empty{})
	index := d.state.Index
	d.lead(3)
	d.reignState.floor = index // as Granter.startReignState does
	begun := d.now
	if r := d.ask(old); r.Granted || r.Reason != reasonRules {
		t.Errorf("have %+v, want a refusal of who is behind", r)
	}
	for !d.reignState.tryRaiseFloor(d.now, index) {
		d.now += tickInterval
		if d.now-begun > time.Minute {
			t.Fatal("never honoured")
		}
		for _, n := range []byte{1, 2, 3} {
			d.ask(d.request(n))
		}
	}
	if d.now-begun < EndingWait {
		t.Errorf("after %v a node might still have had authority of the earlier leader", d.now-begun)
	}
}

// TestALeaderBeginsWithTheNewestRules: an earlier leader may have reported that all nodes use them.
func TestALeaderBeginsWithTheNewestRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence()
		behind := s.request(1)
		s.set(func() { s.ruled = behind.Applied + 1 })
		g := s.granter(t, 1)
		g.StartLeading()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r := g.Answer(ctx, behind); r.Granted || r.Reason != reasonRules {
			t.Errorf("have %+v, want a refusal of who has not applied the newest rules", r)
		}
		if r := g.Answer(ctx, s.request(1)); !r.Granted {
			t.Errorf("have %+v, want authority for the node that has", r)
		}
	})
}

func TestGranterReportsWhatIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSequence()
		g := s.granter(t, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, ok := g.RequireApplied(ctx, 1); ok {
			t.Error("a follower reports an entry as honoured")
		}
		g.StartLeading()
		for begun := time.Now(); ; time.Sleep(tickInterval) {
			if _, ok := g.RequireApplied(ctx, 1); ok {
				break
			}
			if time.Since(begun) > 2*EndingWait {
				t.Fatal("nothing is honoured although no node has authority")
			}
		}
		s.mu.Lock()
		s.leader = 2
		s.mu.Unlock()
		short, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		if _, ok := g.RequireApplied(short, 1); ok {
			t.Error("a deposed leader reports an entry as honoured")
		}
	})
}

// TestClocks: the region's clocks are those of its nodes that may have
// authority, whichever of them leads.
func TestClocks(t *testing.T) {
	d := newDesk(t, 3)
	ask := func(n byte, c Clocks) {
		q := d.request(n)
		q.Clocks = c
		d.ask(q)
	}
	check := func(what string, want Clocks) {
		t.Helper()
		expect.Equal(t, d.reignState.clocks(d.now), want, "%s", what)
	}

	ask(1, Clocks{500, 500})
	check("nodes may have authority from an earlier leader", Clocks{})

	d.run(10*time.Second, 1, 2, 3)
	check("no node has reported its clocks", Clocks{})

	ask(1, Clocks{1000, 1000})
	ask(2, Clocks{900, 900})
	check("node 3 has reported none", Clocks{})

	ask(3, Clocks{1000, 5000})
	check("node 2 is behind, and a partition at node 3 is ahead", Clocks{900, 5000})

	ask(3, Clocks{1100, 1100})
	check("what was ahead once stays", Clocks{900, 5000})

	for range int((EndingWait + time.Second) / (100 * time.Millisecond)) {
		d.now += 100 * time.Millisecond
		ask(1, Clocks{2000, 2000})
		ask(3, Clocks{2100, 2100})
	}
	check("node 2 has no authority any more", Clocks{2000, 5000})

	if r := d.ask(Request{Node: id(1), Boot: d.request(1).Boot, Clocks: Clocks{2, 1}}); r.Reason != reasonTooLarge {
		t.Errorf("clocks in the wrong order: have %+v", r)
	}
}
