package limiter

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
)

func sumOf(c *Counts) (n int64) {
	for d := range c {
		for _, one := range c[d] {
			n += one
		}
	}
	return n
}

// Each node keeps its decisions of each half minute in the last hour, and no more.
func TestHistoryIsAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, "rules:\n  - {name: r, key: [k], limits: [{limit: 1, per: 1440h}]}")
		pass := func(seconds int) {
			for range seconds {
				time.Sleep(time.Second)
				for _, n := range w.nodes {
					n.EndHistoryStep()
				}
			}
		}
		w.nodes[0].check(byKey("r", "x"))
		pass(1)
		if have := w.nodes[0].History(); len(have.Nodes) != 3 || len(have.Nodes[0].Steps) != 0 || have.Nodes[0].Node != w.nodes[0].id {
			t.Fatalf("before the first step is over: have %+v", have)
		}
		for range 5 {
			w.nodes[1].check(byKey("r", "x"))
		}
		pass(30)
		have := w.nodes[0].History()
		for i, want := range []int64{1, 5, 0} {
			for _, h := range have.Nodes {
				if h.Node == w.nodes[i].id && (len(h.Steps) != 1 || h.Steps[0].Number != have.Now-1 || sumOf(&h.Steps[0].Checks) != want) {
					t.Errorf("node %d: have %+v, want %d checks", i, h, want)
				}
			}
		}
		pass(2 * 3600)
		have = w.nodes[1].History()
		for _, h := range have.Nodes {
			if len(h.Steps) != HistorySteps || h.Steps[0].Number != have.Now-HistorySteps || h.Steps[HistorySteps-1].Number != have.Now-1 {
				t.Errorf("have %d steps, from %d, in step %d", len(h.Steps), h.Steps[0].Number, have.Now)
			}
			for i := range h.Steps {
				if n := sumOf(&h.Steps[i].Checks); n != 0 {
					t.Errorf("step %d: have %d checks of two hours ago", i, n)
				}
			}
		}
		time.Sleep(10 * time.Minute) // suspended: the decisions in it belong to no step
		w.nodes[0].check(byKey("r", "x"))
		pass(31)
		have = w.nodes[0].History()
		if steps := have.Nodes[0].Steps; len(steps) > HistorySteps-20 || sumOf(&steps[len(steps)-1].Checks) != 0 {
			t.Errorf("after a halt: have %d steps, the last %+v", len(steps), steps[len(steps)-1])
		}
		w.setCut(w.nodes[0], w.nodes[1], true)
		time.Sleep(time.Second)
		if have = w.nodes[0].History(); len(have.Nodes) != 2 {
			t.Errorf("a node can't be reached: have %d nodes", len(have.Nodes))
		}
	})
}

// TestTopRecent: Top reports the refusals of the last five minutes beside those since the process started.
func TestTopRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, "rules:\n  - {name: r, key: [k], limits: [{limit: 1, per: 1440h}]}")
		refuse := func(key string, times int) {
			for i := range times {
				w.nodes[i%3].check(byKey("r", key))
			}
		}
		expect := func(what string, want ...TopSubject) {
			t.Helper()
			have, nodes := w.nodes[0].Top(TopOptions{Recent: true, N: 5})
			ok := len(have) == len(want) && len(nodes) == 3 && nodes[0] == w.nodes[0].id
			for i := range want {
				ok = ok && have[i].Key[0] == want[i].Key[0] && have[i].Recent == want[i].Recent && have[i].Count == want[i].Count
			}
			if !ok {
				t.Errorf("%s: have %+v, want %+v", what, have, want)
			}
		}
		old := func(recent, refused int64) TopSubject {
			return TopSubject{Key: []string{"old"}, Recent: recent, Count: refused}
		}
		late := func(recent, refused int64) TopSubject {
			return TopSubject{Key: []string{"late"}, Recent: recent, Count: refused}
		}
		pass := func(d time.Duration) {
			for range d / time.Second {
				time.Sleep(time.Second)
				for _, n := range w.nodes {
					n.EndHistoryStep()
				}
			}
		}
		pass(time.Second)
		refuse("old", 31)
		expect("at once", old(30, 30))
		pass(4 * time.Minute)
		expect("after four minutes", old(30, 30))
		refuse("late", 10)
		expect("and of another one", old(30, 30), late(9, 9))
		pass(90 * time.Second)
		refuse("old", 2)
		expect("after five and a half", late(9, 9), old(2, 32))
		pass(6 * time.Minute)
		expect("later", old(0, 32), late(0, 9))
		if top := w.nodes[0].mostRefused(1); len(top) != 1 || top[0].Count != 32 || top[0].Recent != 0 {
			t.Errorf("have %+v", top)
		}
	})
}

// A subject that replaces another in the list starts with no recent refusals, whatever the other one had.
func TestTopRecentOfAnotherSubject(t *testing.T) {
	var s topStripe
	s.entries = append(s.entries, topEntry{stepsAtEntry: 0})
	s.counts[0] = 7
	for range topSteps + 3 {
		s.countsAtStep[s.steps%topSteps] = s.counts
		s.steps++
	}
	if have := s.recent(0); have != 0 {
		t.Errorf("have %d, want 0", have)
	}
	s.entries[0] = topEntry{stepsAtEntry: s.steps, countAtEntry: 7} // as insert does
	s.counts[0] += 2
	if have := s.recent(0); have != 2 {
		t.Errorf("have %d, want 2", have)
	}
}

func FuzzHistory(f *testing.F) {
	some := NodeHistory{Steps: []StepCounts{{Number: 60_000_000}}}
	f.Add(wire.Encode(nil, &some))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := read[NodeHistory](b); err == nil && len(h.Steps) > HistorySteps {
			t.Errorf("%d steps", len(h.Steps))
		}
	})
}
