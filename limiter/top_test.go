package limiter

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/rules/document"
)

func TestTop(t *testing.T) {
	l := open(t, "rules:\n  - {name: r, key: [ip], limits: [{limit: 2, per: 1h}]}")
	for i, refusals := range []int{5, 0, 9, 1} {
		for range 2 + refusals {
			check(t, l, epoch, Query{Attributes: attrs("ip", fmt.Sprintf("192.0.2.%d", i))})
		}
	}
	list := l.mostRefused(2)
	if len(list) != 2 || list[0].Key[0] != "192.0.2.2" || list[0].Count != 9 ||
		list[1].Key[0] != "192.0.2.0" || list[1].Count != 5 {
		t.Errorf("have %+v", list)
	}
	if all := l.mostRefused(100); len(all) != 3 {
		t.Errorf("have %d subjects, want the 3 refused", len(all))
	}
	if list[0].Checks != 11 || list[1].Checks != 7 {
		t.Errorf("have %d and %d checks, want those before the first refusal too", list[0].Checks, list[1].Checks)
	}
	_, _ = l.Reset(&Query{Rule: "r", Key: []string{"192.0.2.2"}})
	check(t, l, epoch, byKey("r", "192.0.2.2"))
	list = l.mostRefused(1)
	if list[0].Checks != 12 || list[0].Count != 9 {
		t.Errorf("have %+v", list[0])
	}
}

// Checks includes only what the counter that refused held: at most a node's
// share, and nothing with on_partition: deny.
func TestTopOfShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: local, key: [k], consistency: local, limits: [{limit: 12, per: 1440h, algorithm: fixed-window}]}
  - {name: deny, key: [k], on_partition: deny, limits: [{limit: 10, per: 1440h, algorithm: fixed-window}]}`)
		n, key := w.nodes[2], w.keyOf("deny", w.nodes[0], w.nodes[1])
		w.setCut(n, w.nodes[0], true)
		w.setCut(n, w.nodes[1], true)
		var a *Answer
		for range 14 {
			n.check(byKey("local", "x"))
			a = n.check(byKey("deny", key))
		}
		if have := string(a.AppendReason(nil)); have != `Limit "deny" of rule "deny" (10 requests per 1440h) can't be counted: its owner can't be reached, and on_partition is deny; retry in 1 s.` {
			t.Error(have)
		}
		for _, s := range n.mostRefused(2) {
			if want := map[string]int64{"local": 10, "deny": 14}[s.Rule]; s.Checks != 14 || s.Count != want {
				t.Errorf("have %+v, want %d of 14 refused", s, want)
			}
		}
	})
}

// On a Zipf stream, Top finds the subjects refused most, in order.
func TestTopOnZipf(t *testing.T) {
	t.Parallel()
	l := open(t, "rules:\n  - {name: r, key: [k], limits: [{limit: 1, per: 1h}]}")
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.2, 1, 200_000)
	want := make(map[string]int64)
	seen := make(map[string]bool)
	var a Answer
	for range 500_000 {
		k := fmt.Sprint(zipf.Uint64())
		q := byKey("r", k)
		expect.NoError(t, l.CheckAt(epoch, &q, &a))
		if a.Allowed == seen[k] {
			t.Fatalf("subject %s: allowed %v", k, a.Allowed)
		}
		seen[k] = true
		if !a.Allowed {
			want[k]++
		}
	}
	for i, subj := range l.mostRefused(20) {
		if subj.Key[0] != fmt.Sprint(i) || subj.Count != want[subj.Key[0]] {
			t.Errorf("rank %d: have %s with %d refused, want %d with %d", i, subj.Key[0], subj.Count,
				i, want[fmt.Sprint(i)])
		}
	}
}

// mostRefused returns the n subjects refused most.
func (l *Limiter) mostRefused(n int) []top.Subject {
	all, _ := l.Top(top.Options{N: n})
	return all
}

// names lists subjects as rule/key.
func names(list []top.Subject) (out []string) {
	for _, s := range list {
		out = append(out, s.Rule+"/"+s.Key[0])
	}
	return out
}

// TestLimiter_TopKinds: shadow refusals have subjects, too, and there are lists
// of those that use most, are delayed, or are near to a limit, over all nodes.
func TestLimiter_TopKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: r, key: [k], limits: [{limit: 5, per: 1h, algorithm: fixed-window}]}
  - {name: ghost, key: [g], shadow: true, limits: [{limit: 1, per: 1h}]}
  - {name: slow, key: [s], on_limit: delay, max_delay: 1h, limits: [{limit: 1, per: 1m}]}
  - {name: big, key: [b], limits: [{limit: 1000, per: 1h}]}`)
		for i := range 4 {
			w.nodes[i%3].check(byKey("r", "nearly"))
		}
		w.nodes[0].check(byKey("r", "hardly"))
		for i := range 8 {
			w.nodes[i%3].check(byKey("r", "over"))
			w.nodes[i%3].check(byKey("ghost", "g"))
		}
		for range 4 {
			w.nodes[1].check(byKey("slow", "s"))
		}
		for range 20 {
			w.nodes[2].check(byKey("big", "b"))
		}
		for _, test := range []struct {
			o    top.Options
			want string
			n    int64
		}{
			{top.Options{By: top.Refused, N: 9}, "[r/over]", 3},
			{top.Options{By: top.Shadow, N: 9}, "[ghost/g]", 7},
			{top.Options{By: top.Shadow, Recent: true, N: 9}, "[ghost/g]", 7},
			{top.Options{By: top.Used, N: 3}, "[big/b ghost/g r/over]", 20},
			{top.Options{By: top.Used, Rule: "r", N: 9}, "[r/over r/nearly r/hardly]", 5},
			{top.Options{By: top.Delayed, N: 9}, "[slow/s]", 3},
			{top.Options{By: top.Refused, Rule: "ghost", N: 9}, "[]", 0},
		} {
			got, nodes := w.nodes[0].Top(test.o)
			if fmt.Sprint(names(got)) != test.want || len(nodes) != 3 || len(got) > 0 && got[0].Count != test.n {
				t.Errorf("%+v: got %+v of %d nodes, want %s, the first with %d", test.o, got,
					len(nodes), test.want, test.n)
			}
		}
		got, _ := w.nodes[1].Top(top.Options{By: top.Near, Rule: "r", N: 9})
		if fmt.Sprint(names(got)) != "[r/over r/nearly r/hardly]" || got[1].Used != 4 || got[1].Limit != 5 {
			t.Errorf("nearest: got %+v", got)
		}
		// After the window, nothing is used any longer.
		time.Sleep(3 * time.Hour)
		got, _ = w.nodes[1].Top(top.Options{By: top.Near, Rule: "r", N: 9})
		if len(got) != 0 {
			t.Errorf("after the window: got %+v, want none", got)
		}
	})
}

// TestLimiter_NearestLimit: a subject is as near as the limit of which it has the
// least left, also when another limit refuses its check.
func TestLimiter_NearestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTestCluster(t, 1, `rules:
  - name: model
    key: [k]
    limits:
      - {limit: 20, per: 1h, algorithm: fixed-window}
      - {limit: 10, per: 1h, algorithm: fixed-window, unit: tokens}`).nodes[0]
		q := byKey("model", "k")
		q.Costs = []UnitCost{{document.Requests, 19}, {"tokens", 5}}
		if !n.check(q).Allowed {
			t.Fatal("the first check is refused")
		}
		q.Costs = []UnitCost{{document.Requests, 1}, {"tokens", 8}}
		if n.check(q).Allowed {
			t.Fatal("a check of 8 tokens, of which 5 are left, is allowed")
		}

		got, _ := n.Top(top.Options{By: top.Near, N: 9})
		if len(got) != 1 || got[0].Used != 19 || got[0].Limit != 20 {
			t.Errorf("got %+v, want one subject that used 19 of 20", got)
		}
	})
}

// TestLimiter_SampleWeight: few checks are all counted, and many stand for as many as there are.
func TestLimiter_SampleWeight(t *testing.T) {
	l := &Limiter{}
	l.fullSamplesLeft.Store(exactSamples)
	var s scratch
	sum, taken := int64(0), 0
	for range 100_000 {
		w := l.sampleWeight(&s)
		sum += w
		if w > 0 {
			taken++
		}
	}
	if sum < 99_900 || sum > 100_100 || taken > 100_000/sampleEvery+exactSamples+1 {
		t.Errorf("got %d of 100000 by %d samples", sum, taken)
	}
	l.fullSamplesLeft.Store(exactSamples)
	expect.Equal(t, l.sampleWeight(&s), 1, "in the next second")
}

// TestTopWhereCostsDiffer: from what is used, nobody can tell how many checks
// there were. There are never more than the rule had.
func TestTopWhereCostsDiffer(t *testing.T) {
	l := open(t, "rules:\n  - {name: r, key: [ip], limits: [{limit: 1000, per: 1h}]}")
	for _, cost := range []int64{990, 50} {
		q := byKey("r", "192.0.2.1")
		q.Costs = []UnitCost{{"requests", cost}}
		check(t, l, epoch, q)
	}
	list := l.mostRefused(1)
	if len(list) != 1 || list[0].Count != 1 || list[0].Checks != 2 {
		t.Errorf("have %+v, want 1 of 2 checks refused", list)
	}
}
