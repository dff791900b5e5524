package gossip

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestTableIsBounded(t *testing.T) {
	tab := newTable(3)
	for i := 1; i <= 3; i++ {
		tab.put(Member{ID: id(i)})
	}
	if !tab.isFull() {
		t.Error("three living members: not full")
	}
	tab.markGone(id(2))
	tab.markGone(id(1))
	tab.markGone(id(9))
	if tab.isFull() {
		t.Error("two have failed: full")
	}
	tab.put(Member{ID: id(4)}) // 2 failed first, so it is evicted
	tab.put(Member{ID: id(1)})
	tab.markGone(id(1))
	tab.put(Member{ID: id(3), State: Left})
	tab.markGone(id(3))
	tab.put(Member{ID: id(5)})
	want := []Member{{ID: id(3), State: Left}, {ID: id(4)}, {ID: id(5)}, {ID: id(7)}}
	have := tab.members(Member{ID: id(7)})
	if len(have) != len(want) {
		t.Fatalf("have %+v", have)
	}
	for i := range want {
		if have[i] != want[i] {
			t.Errorf("have %+v, want %+v", have[i], want[i])
		}
	}
	expect.Equal(t, tab.alive, 2, "alive")
	if tab.forget(id(4)) || tab.forget(id(9)) || !tab.forget(id(3)) {
		t.Error("forget dropped a live member, or kept a failed one")
	}
}

func TestPartedMembers(t *testing.T) {
	tab := newTable(9)
	for i := 1; i <= 3; i++ {
		tab.put(Member{ID: id(i)})
	}
	tab.markGone(id(3))
	for _, e := range tab.entries {
		tab.exclude(e)
	}
	if n := len(tab.members(Member{})); n != 1 {
		t.Errorf("have %d members, want only this node", n)
	}
	tab.put(Member{ID: id(1)}) // it is back
	if _, failed := tab.markGone(id(2)); failed {
		t.Error("a hidden member is reported as failed")
	}
	if n := len(tab.entries); n != 1 || tab.alive != 1 || tab.entries[id(1)].hidden {
		t.Errorf("have %d entries, %d alive", n, tab.alive)
	}
}

func TestDepartures(t *testing.T) {
	tab := newTable(1000)
	const n = maxDepartures + 10
	for i := 1; i <= n; i++ {
		tab.put(Member{ID: id(i), Boot: 7})
		if i%2 == 0 {
			tab.markGone(id(i)) // the message that it is gone arrived first
		}
		if _, news := tab.recordDeparture(departure{id(i), 6}); news {
			t.Error("the departure of an earlier process counts for this one")
		}
		if m, news := tab.recordDeparture(departure{id(i), 7}); !news || m.State != Left {
			t.Errorf("have %v, %v", m, news)
		}
		if _, news := tab.recordDeparture(departure{id(i), 7}); news {
			t.Error("a repeated departure is reported as new")
		}
	}
	expect.Equal(t, tab.alive, 0, "alive")
	all := tab.departures()
	if len(all) != maxDepartures || all[0] != (departure{id(n), 7}) {
		t.Errorf("have %d, first %v", len(all), all[0])
	}
	again, _, err := parseState(appendState(all, nil))
	if err != nil || !slices.Equal(all, again) {
		t.Errorf("have %v, %v, want %v", again, err, all)
	}
}

// A node that has seen a member only as gone learns later that it had left.
func TestLeavingIsHeardOfLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAgreedWorld(t, 4)
		for i := 2; i <= 4; i++ {
			w.net.Cut(ip(1), ip(i))
		}
		time.Sleep(time.Second)
		expect.NoError(t, w.nodes[4].Leave(t.Context()))
		w.crash(4)
		w.agree(15*time.Second, "1 alive, 2 failed, 3 failed, 4 failed", 1)
		w.net.HealAll()
		took := w.agree(time.Minute, summaryOf(4, map[int]State{4: Left}))
		t.Logf("took %v", took)
	})
}
