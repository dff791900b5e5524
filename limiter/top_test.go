package limiter

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestTop(t *testing.T) {
	l := open(t, "rules:\n  - {name: r, key: [ip], limits: [{limit: 2, per: 1h}]}")
	for i, refusals := range []int{5, 0, 9, 1} {
		for range 2 + refusals {
			check(t, l, epoch, Query{Attributes: attrs("ip", fmt.Sprintf("192.0.2.%d", i))})
		}
	}
	top := l.mostRefused(2)
	if len(top) != 2 || top[0].Key[0] != "192.0.2.2" || top[0].Count != 9 ||
		top[1].Key[0] != "192.0.2.0" || top[1].Count != 5 {
		t.Errorf("have %+v", top)
	}
	if all := l.mostRefused(100); len(all) != 3 {
		t.Errorf("have %d subjects, want the 3 refused", len(all))
	}
	if top[0].Checks != 11 || top[1].Checks != 7 {
		t.Errorf("have %d and %d checks, want those before the first refusal too", top[0].Checks, top[1].Checks)
	}
	_, _ = l.Reset(&Query{Rule: "r", Key: []string{"192.0.2.2"}})
	check(t, l, epoch, byKey("r", "192.0.2.2"))
	top = l.mostRefused(1)
	if top[0].Checks != 12 || top[0].Count != 9 {
		t.Errorf("have %+v", top[0])
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

// On a Zipf stream, top finds the subjects refused most, in order, in bounded memory.
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
	for i, top := range l.mostRefused(20) {
		if top.Key[0] != fmt.Sprint(i) || top.Count != want[top.Key[0]] {
			t.Errorf("rank %d: have %s with %d refused, want %d with %d", i, top.Key[0], top.Count,
				i, want[fmt.Sprint(i)])
		}
	}
	for i := range l.tops[TopRefused].stripe {
		if n := len(l.tops[TopRefused].stripe[i].entries); n > topCapacity ||
			n != len(l.tops[TopRefused].stripe[i].index) {
			t.Errorf("stripe %d holds %d entries and an index of %d", i, n, len(l.tops[TopRefused].stripe[i].index))
		}
	}
}

// mostRefused returns the n subjects refused most.
func (l *Limiter) mostRefused(n int) []TopSubject {
	all, _ := l.Top(TopOptions{N: n})
	return all
}
