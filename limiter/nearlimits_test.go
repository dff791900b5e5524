package limiter

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
)

// names lists subjects as rule/key.
func names(list []TopSubject) (out []string) {
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
			o    TopOptions
			want string
			n    int64
		}{
			{TopOptions{By: TopRefused, N: 9}, "[r/over]", 3},
			{TopOptions{By: TopShadow, N: 9}, "[ghost/g]", 7},
			{TopOptions{By: TopShadow, Recent: true, N: 9}, "[ghost/g]", 7},
			{TopOptions{By: TopUsed, N: 3}, "[big/b ghost/g r/over]", 20},
			{TopOptions{By: TopUsed, Rule: "r", N: 9}, "[r/over r/nearly r/hardly]", 5},
			{TopOptions{By: TopDelayed, N: 9}, "[slow/s]", 3},
			{TopOptions{By: TopRefused, Rule: "ghost", N: 9}, "[]", 0},
		} {
			got, nodes := w.nodes[0].Top(test.o)
			if fmt.Sprint(names(got)) != test.want || len(nodes) != 3 || len(got) > 0 && got[0].Count != test.n {
				t.Errorf("%+v: got %+v of %d nodes, want %s, the first with %d", test.o, got,
					len(nodes), test.want, test.n)
			}
		}
		got, _ := w.nodes[1].Top(TopOptions{By: TopNear, Rule: "r", N: 9})
		if fmt.Sprint(names(got)) != "[r/over r/nearly r/hardly]" || got[1].Used != 4 || got[1].Limit != 5 {
			t.Errorf("nearest: got %+v", got)
		}
		// After the window, nothing is used any longer.
		time.Sleep(3 * time.Hour)
		got, _ = w.nodes[1].Top(TopOptions{By: TopNear, Rule: "r", N: 9})
		if len(got) != 0 {
			t.Errorf("after the window: got %+v, want none", got)
		}
	})
}

// TestNear_KeepsTheNearest: many subjects that hardly use anything do not push
// out one that is near to its limit.
func TestNear_KeepsTheNearest(t *testing.T) {
	n := newNearLimits()
	rule := &rules.Rule{Name: "r"}
	note := func(subject uint64, used, limit int64, until time.Duration) {
		la := &LimitAnswer{Limit: &rules.Limit{}}
		la.Limit.Amount, la.Used, la.ResetAfter = limit, used, until
		n.note(&rules.Hit{Rule: rule, Subject: rules.Hash{Hi: subject, Lo: subject * nearStripes}},
			la, 1, &Query{ByKey: true})
	}
	note(0, 4, 5, time.Hour)
	for i := range uint64(1000) {
		note(i+1, 1, 100, time.Hour)
	}
	list := rankByNear(n.list(2), 1)
	if len(list) != 1 || list[0].Used != 4 {
		t.Errorf("got %+v, want the one that used 4 of 5", list)
	}
	note(5000, 0, 0, time.Hour) // a region without a share has used all
	list = rankByNear(n.list(2), 1)
	if list[0].Limit != 0 {
		t.Errorf("got %+v, want the limit of 0 first", list)
	}
	list = n.list(int64(2 * time.Hour))
	if len(list) != 0 {
		t.Errorf("later: got %+v, want none", list)
	}
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
