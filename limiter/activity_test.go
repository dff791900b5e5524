package limiter

import (
	"math"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

func someActivity() NodeActivity {
	var c Counts
	c[DecisionAllowed][ByFallback], c[DecisionRefused][ByNone], c[DecisionShadowRefused][ByNone] = 1, 1<<53-1, 7
	return NodeActivity{Boot: 1<<63 + 5, Uptime: 90 * time.Second,
		Vitals: Vitals{Counters: 1, MaxCounters: 1 << 40, DiskFree: 1 << 62}, Checks: c,
		Rules: []RuleCounts{{Rule: "a", Checks: c}, {Rule: "é"}}}
}

func TestActivityComesBack(t *testing.T) {
	want := someActivity()
	have := readActivity(wire.Encode(nil, &want))
	if have == nil || !reflect.DeepEqual(*have, want) {
		t.Errorf("have %+v, want %+v", have, want)
	}
	have = readActivity(wire.Encode(nil, &NodeActivity{}))
	if have == nil || have.Rules != nil {
		t.Errorf("have %+v", have)
	}
	whole := wire.Encode(nil, &want)
	for n := range whole {
		if have := readActivity(whole[:n]); have != nil && len(have.Rules) == len(want.Rules) {
			t.Errorf("%d of %d bytes: have %+v", n, len(whole), have)
		}
	}
	for range maxActiveRules {
		want.Rules = append(want.Rules, RuleCounts{Rule: "more"})
	}
	if have := readActivity(wire.Encode(nil, &want)); have != nil {
		t.Errorf("more rules than maxActiveRules: have %d", len(have.Rules))
	}
}

func byAttribute(name, value string) Query {
	return Query{Attributes: []rules.Attribute{{Name: name, Value: value}}}
}

// readActivity returns nil if b is not a NodeActivity.
func readActivity(b []byte) *NodeActivity {
	a, err := read[NodeActivity](b)
	if err != nil {
		return nil
	}
	return &a
}

func FuzzActivity(f *testing.F) {
	some := someActivity()
	f.Add(wire.Encode(nil, &some))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a := readActivity(b); a != nil && len(a.Rules) > maxActiveRules {
			t.Errorf("%d rules", len(a.Rules))
		}
	})
}

// A check counts once overall, and once for each rule that applied to it. A peek does not count.
func TestActivityCountsChecksAndRules(t *testing.T) {
	l := open(t, `
lists: {deny: [{k: bad}]}
rules:
  - {name: tight, key: [k], limits: [{limit: 1, per: 1h}]}
  - {name: wide, key: [k], limits: [{limit: 100, per: 1h}]}
  - {name: idle, key: [other], limits: [{limit: 100, per: 1h}]}`)
	var a Answer
	ask := func(q Query) {
		t.Helper()
		expect.NoError(t, l.CheckAt(epoch, &q, &a))
	}
	for range 3 {
		ask(byAttribute("k", "x"))
	}
	ask(byAttribute("k", "bad"))
	ask(byAttribute("nothing", "x"))
	peek := byAttribute("k", "x")
	peek.Mode = counters.PeekMode
	ask(peek)
	have := l.Activity()
	if len(have) != 1 || have[0].Node != (ring.NodeID{}) {
		t.Fatalf("have %+v", have)
	}
	var want, tight, wide Counts
	want[DecisionAllowed][ByOwner], want[DecisionRefused][ByOwner] = 1, 2
	want[DecisionRefused][ByList], want[DecisionAllowed][ByNone] = 1, 1
	tight[DecisionAllowed][ByOwner], tight[DecisionRefused][ByOwner] = 1, 2
	wide[DecisionAllowed][ByOwner] = 3
	expect.Equal(t, have[0].Checks, want, "checks")
	if asked := []RuleCounts{{"tight", tight}, {"wide", wide}}; !reflect.DeepEqual(have[0].Rules, asked) {
		t.Errorf("rules: have %v, want %v", have[0].Rules, asked)
	}
	// The metrics without a rule cover only checks that no rule decided.
	stats := l.Stats()
	var none Counts
	none[DecisionRefused][ByList], none[DecisionAllowed][ByNone] = 1, 1
	if last := stats[len(stats)-1]; last.Rule != "" || Counts(last.Checks) != none {
		t.Errorf("have %+v, want %v", last, none)
	}
}

// A check that the owner allowed under one rule is stored in one place for all
// metrics. It appears in each of them once, even after its rule is removed.
func TestOwnerAllowedChecksAreInAllMetrics(t *testing.T) {
	l := open(t,
		"rules:\n  - {name: r, key: [k], limits: [{limit: 10, per: 1h}]}\n  - {name: s, key: [other], limits: [{limit: 10, per: 1h}]}")
	var a Answer
	q := byAttribute("k", "x")
	for range 12 {
		l.CheckAt(epoch, &q, &a)
	}
	var want Counts
	want[DecisionAllowed][ByOwner], want[DecisionRefused][ByOwner] = 10, 2
	stats := l.Stats()[0]
	if Counts(stats.Checks) != want {
		t.Errorf("have %v, want %v", stats.Checks, want)
	}
	expect.Equal(t, stats.Headroom, [11]int64{3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, "headroom")
	for _, doc := range []string{
		"rules:\n  - {name: s, key: [other], limits: [{limit: 10, per: 1h}]}\n  - {name: r, key: [k], limits: [{limit: 10, per: 1h}]}",
		"rules:\n  - {name: s, key: [other], limits: [{limit: 10, per: 1h}]}",
		"rules:\n  - {name: r, key: [k], limits: [{limit: 10, per: 1h}]}",
	} {
		expect.Equal(t, l.activityHere().Checks, want, "l.activityHere().Checks")
		l.SetRules(compile(t, 2, "version: 1\n"+doc))
	}
	if have := l.activityHere(); have.Checks != want || have.Rules != nil {
		t.Errorf("have %v, want %v and no rules", have, want)
	}
}

func TestHeadroom(t *testing.T) {
	headroom := func(remaining, capacity int64) int64 {
		limit := &rules.Limit{Limit: algorithms.Limit{Kind: algorithms.FixedWindow, Amount: capacity}}
		return (&LimitAnswer{Limit: limit, Decision: algorithms.Decision{Remaining: remaining}}).headroom()
	}
	for capacity := int64(1); capacity < 60; capacity++ {
		for remaining := range capacity {
			expect.Equal(t, headroom(remaining, capacity),
				int64(math.Ceil(float64(10*remaining)/float64(capacity))), "%d of %d", remaining,
				capacity)
		}
	}
	for _, tt := range []struct{ remaining, capacity, want int64 }{
		{1<<53 - 2, 1<<53 - 1, 10}, {7, 7, 10}, {9, 7, 10}, {1 << 62, 7, 10}, {0, 0, 0}, {5, 0, 0},
	} {
		expect.Equal(t, headroom(tt.remaining, tt.capacity), tt.want, "%d of %d", tt.remaining, tt.capacity)
	}
}

func TestActivityOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, "rules:\n  - {name: r, key: [k], limits: [{limit: 1, per: 1440h}]}")
		for i := range 30 {
			w.nodes[i%3].check(byKey("r", "x"))
		}
		total := func(list []NodeActivity) (n int64) {
			for _, one := range list {
				for _, by := range one.Checks {
					for _, c := range by {
						n += c
					}
				}
			}
			return n
		}
		for i, n := range w.nodes {
			if have := n.Activity(); len(have) != 3 || have[0].Node != n.id || total(have) != 30 ||
				have[0].Boot == have[1].Boot {
				t.Errorf("node %d: have %+v", i, have)
			}
		}
		w.nodes[0].activityRound.answers = nil
		w.setCut(w.nodes[0], w.nodes[1], true)
		if have := w.nodes[0].Activity(); len(have) != 2 || total(have) != 20 {
			t.Errorf("without one node: have %+v", have)
		}
		// Within 200 ms all callers get the same result.
		before := w.nodes[0].Activity()
		w.nodes[0].check(byKey("r", "x"))
		if have := w.nodes[0].Activity(); total(have) != total(before) {
			t.Errorf("asked again: have %+v", have)
		}
	})
}
