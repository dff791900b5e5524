package limiter

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = algorithms.At(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))

func after(d time.Duration) algorithms.Instant {
	return algorithms.Instant{Steady: epoch.Steady + int64(d), Wall: epoch.Wall + int64(d)}
}

func compile(t testing.TB, version int64, text string) *rules.Set {
	t.Helper()
	doc, err := document.Parse([]byte(text))
	expect.NoError(t, err)
	set, err := rules.Compile(doc, version)
	expect.NoError(t, err)
	return set
}

func open(t testing.TB, text string) *Limiter {
	t.Helper()
	table := counters.New(100_000)
	t.Cleanup(table.Close)
	clock := NewClock()
	t.Cleanup(func() { clock.Close() })
	l := New(table, clock)
	l.SetRules(compile(t, 1, "version: 1\n"+text))
	return l
}

func attrs(pairs ...string) []rules.Attribute {
	var out []rules.Attribute
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, rules.Attribute{Name: pairs[i], Value: pairs[i+1]})
	}
	return out
}

func check(t testing.TB, l *Limiter, now algorithms.Instant, q Query) *Answer {
	t.Helper()
	a := &Answer{}
	expect.NoError(t, l.CheckAt(now, &q, a))
	return a
}

func byKey(rule string, key ...string) Query { return Query{Rule: rule, Key: key, ByKey: true} }

func TestAllOrNothing(t *testing.T) {
	l := open(t, `
rules:
  - {name: a, key: [ip], limits: [{limit: 5, per: 1m, algorithm: fixed-window}]}
  - {name: b, key: [user], limits: [{limit: 3, per: 1m, algorithm: fixed-window}]}`)
	q := Query{Attributes: attrs("ip", "192.0.2.1", "user", "u")}
	for i := range 3 {
		if a := check(t, l, epoch, q); !a.Allowed || a.Limits[a.TightestIndex].Rule.Name != "b" {
			t.Fatalf("check %d: have %+v", i+1, a)
		}
	}
	a := check(t, l, epoch, q)
	if a.Allowed || a.Limits[a.TightestIndex].Rule.Name != "b" || a.Limits[0].Remaining != 2 {
		t.Errorf("the fourth: have %+v", a.Limits)
	}
	u, err := l.table.Usage(epoch, counterKey(&a.scratch.match.Hits[0], a.Limits[0].Limit), &a.Limits[0].Limit.Limit)
	if u != 3 || err.Remaining != 2 {
		t.Errorf("have %d used of a", u)
	}
}

func TestSeveralWindows(t *testing.T) {
	l := open(t, `
rules:
  - name: r
    key: [k]
    limits: [{limit: 10, per: 1s, algorithm: fixed-window}, {limit: 100, per: 1m, algorithm: fixed-window}]`)
	q := byKey("r", "x")
	for s := range 10 {
		now := after(time.Duration(s) * time.Second)
		for range 10 {
			if !check(t, l, now, q).Allowed {
				t.Fatalf("refused in second %d", s)
			}
		}
		if a := check(t, l, now, q); a.Allowed {
			t.Fatalf("admitted an eleventh in second %d", s)
		} else if s < 9 && (a.TightestIndex != 0 || a.Limits[0].RetryAfter != time.Second) {
			t.Fatalf("second %d: have %+v", s, a.Limits)
		}
	}
	// In the tenth second both limits refuse; the longer wait counts.
	if a := check(t, l, after(9*time.Second), q); a.TightestIndex != 1 || a.Limits[1].RetryAfter != 51*time.Second {
		t.Errorf("both refuse: have %+v", a.Limits)
	}
	a := check(t, l, after(10*time.Second), q)
	if a.Allowed || a.TightestIndex != 1 || a.Limits[1].RetryAfter != 50*time.Second {
		t.Errorf("the 101st: have %+v", a.Limits)
	}
}

func TestUnitsAndCosts(t *testing.T) {
	l := open(t, `
rules:
  - name: llm
    key: [k]
    limits: [{limit: 10, per: 1m}, {limit: 1000, per: 1m, unit: tokens}]
  - name: search
    match: {endpoint: "/search*"}
    key: [user]
    cost: {by: endpoint, values: {/search: 10}, default: 5}
    limits: [{limit: 100, per: 1m}]`)
	tests := []struct {
		name string
		q    Query
		want []int64 // remaining
	}{
		{"requests default to 1, tokens to 0", byKey("llm", "a"), []int64{9, 1000}},
		{"tokens named",
			Query{Rule: "llm", Key: []string{"b"}, ByKey: true, Costs: []UnitCost{{"tokens", 400}}},
			[]int64{9, 600}},
		{"both named",
			Query{Rule: "llm", Key: []string{"c"}, ByKey: true,
				Costs: []UnitCost{{"requests", 0}, {"tokens", 1}, {"x", 9}}},
			[]int64{10, 999}},
		{"cost table", Query{Attributes: attrs("user", "u1", "endpoint", "/search")}, []int64{90}},
		{"cost table's default", Query{Attributes: attrs("user", "u2", "endpoint", "/search/x")}, []int64{95}},
		{"a named cost beats the table",
			Query{Attributes: attrs("user", "u3", "endpoint", "/search"), Costs: []UnitCost{{"requests", 2}}},
			[]int64{98}},
		{"by key: the table's default", byKey("search", "u4"), []int64{95}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := check(t, l, epoch, tt.q)
			var have []int64
			for _, la := range a.Limits {
				have = append(have, la.Remaining)
			}
			if !a.Allowed || !slices.Equal(have, tt.want) {
				t.Errorf("have %v, want %v", have, tt.want)
			}
		})
	}
}

// A cost table sets the cost in its own unit only. A cost that the check gives
// itself replaces the table's.
func TestCostTableOfAnotherUnit(t *testing.T) {
	l := open(t, `
rules:
  - name: llm
    key: [user]
    cost: {by: model, unit: credits, values: {big: 10}, default: 2}
    limits:
      - {limit: 100, per: 1h, algorithm: fixed-window}
      - {limit: 100, per: 1h, algorithm: fixed-window, unit: credits}
      - {limit: 100, per: 1h, algorithm: fixed-window, unit: tokens}
`)
	for _, tt := range []struct {
		model string
		costs []UnitCost
		want  [3]int64 // left of each limit
	}{
		{"big", nil, [3]int64{99, 90, 100}},
		{"small", nil, [3]int64{98, 88, 100}},
		{"big", []UnitCost{{"credits", 30}}, [3]int64{97, 58, 100}},
		{"big", []UnitCost{{"tokens", 7}}, [3]int64{96, 48, 93}},
	} {
		a := check(t, l, epoch, Query{Attributes: attrs("user", "ann", "model", tt.model), Costs: tt.costs})
		got := [3]int64{}
		for i := range got {
			got[i] = a.Limits[i].Remaining
		}
		expect.Equal(t, got, tt.want, "%s %v, left", tt.model, tt.costs)
	}
}

func TestDecidedWithoutCounters(t *testing.T) {
	l := open(t, `
default: deny
lists:
  deny: [{ip: 192.0.2.0/24}]
  allow: [{ip: 192.0.2.7}, {ip: 203.0.113.0/28}]
rules:
  - {name: s, key: [user], shadow: true, limits: [{limit: 1, per: 1m}]}`)
	tests := []struct {
		name    string
		q       Query
		allowed bool
		by      DecidedBy
	}{
		{"deny wins", Query{Attributes: attrs("ip", "192.0.2.7")}, false, ByList},
		{"allowed", Query{Attributes: attrs("ip", "203.0.113.3")}, true, ByList},
		{"no rule", Query{Attributes: attrs("x", "y")}, false, ByNone},
		{"only shadow", Query{Attributes: attrs("user", "u")}, true, ByOwner},
		{"only shadow, over the limit", Query{Attributes: attrs("user", "u")}, true, ByOwner},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := check(t, l, epoch, tt.q)
			if a.Allowed != tt.allowed || a.DecidedBy != tt.by || a.TightestIndex != -1 {
				t.Errorf("have %v by %s, tightest %d", a.Allowed, a.DecidedBy, a.TightestIndex)
			}
		})
	}
	st := l.Stats()
	if st[0].Checks[DecisionAllowed][ByOwner] != 1 || st[0].Checks[DecisionShadowRefused][ByOwner] != 1 {
		t.Errorf("shadow: have %+v", st[0])
	}
	if none := st[len(st)-1]; none.Rule != "" || none.Checks[DecisionRefused][ByList] != 1 ||
		none.Checks[DecisionAllowed][ByList] != 1 || none.Checks[DecisionRefused][ByNone] != 1 {
		t.Errorf("none: have %+v", none)
	}
}

func TestTightest(t *testing.T) {
	l := open(t, `
rules:
  - {name: a, key: [k], limits: [{limit: 10, per: 1m, algorithm: fixed-window}]}
  - {name: b, key: [k], limits: [{limit: 10, per: 1h, algorithm: fixed-window}]}
  - {name: c, key: [k], limits: [{limit: 100, per: 1m, algorithm: fixed-window}]}`)
	q := Query{Attributes: attrs("k", "x"), Costs: []UnitCost{{"requests", 6}}}
	expect.Equal(t, check(t, l, epoch, q).TightestIndex, 0, "a tie goes to the first")
	if a := check(t, l, epoch, q); a.Allowed || a.TightestIndex != 1 {
		t.Errorf("the longest wait: have %d", a.TightestIndex)
	}
	q.Costs[0].Cost = 11
	if a := check(t, l, epoch, q); a.Limits[a.TightestIndex].RetryAfter != algorithms.Never {
		t.Errorf("never is the longest: have %+v", a.Limits[a.TightestIndex])
	}
}

func TestQueryErrors(t *testing.T) {
	l := open(t, "rules:\n  - {name: r, key: [a, b], limits: [{limit: 10, per: 1m}]}")
	var a Answer
	if err := l.Check(&Query{Rule: "nope", ByKey: true}, &a); !errors.Is(err, ErrUnknownRule) {
		t.Errorf("have %v", err)
	}
	q := byKey("r", "only one")
	expect.ErrorIs(t, l.Check(&q, &a), ErrKey, "l.Check(&q, &a)")
	if _, err := l.Usage(&Query{Rule: "r", Key: []string{"x"}}); !errors.Is(err, ErrKey) {
		t.Errorf("have %v", err)
	}
}

func TestUsageAdjustReset(t *testing.T) {
	l := open(t, `
rules:
  - name: r
    key: [ip]
    limits: [{limit: 10, per: 1h, algorithm: token-bucket}, {limit: 5, per: 24h, algorithm: sliding-window-log}]
  - {name: tokens, key: [k], limits: [{limit: 10, per: 1h, unit: tokens}]}`)
	key := []string{"2001:db8::1"}
	q := byKey("r", key...)
	var a Answer
	for range 2 {
		if err := l.Check(&q, &a); err != nil || !a.Allowed {
			t.Fatal(err)
		}
	}
	u, err := l.Adjust(adjustment("r", []string{"2001:db8::2"}, 9, ""))
	if err != nil || u.Limits[0].Used != 11 || u.Limits[1].Used != 11 ||
		u.Limits[0].Remaining != 0 || u.Key[0] != "2001:db8::" {
		t.Errorf("a penalty: have %+v, %v", u, err)
	}
	if l.Check(&q, &a); a.Allowed {
		t.Error("admitted in debt")
	}
	u, _ = l.Adjust(adjustment("r", key, -8, ""))
	if u.Limits[0].Used != 3 || u.Limits[1].Used != 3 {
		t.Errorf("a reward: have %+v", u)
	}
	if _, err := l.Reset(&Query{Rule: "r", Key: key}); err != nil {
		t.Fatal(err)
	}
	u, _ = l.Usage(&Query{Rule: "r", Key: key})
	if u.Limits[0].Used != 0 || u.Limits[1].Remaining != 5 {
		t.Errorf("after a reset: have %+v", u)
	}
	if _, err := l.Adjust(adjustment("tokens", []string{"x"}, 1, "")); !errors.Is(err, ErrNoLimitInUnit) {
		t.Errorf("have %v", err)
	}
}

// One version of the rules decides a whole check. A new version changes the
// amounts and keeps the usage.
func TestReloadUnderLoad(t *testing.T) {
	const text = "version: 1\nrules:\n  - {name: a, key: [k], limits: [{limit: %d, per: 1h}]}\n  - {name: b, key: [k], limits: [{limit: %d, per: 1h}]}"
	l := open(t, "")
	l.SetRules(compile(t, 1, fmt.Sprintf(text, 1_000_001, 1_000_001)))
	var stop atomic.Bool
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var a Answer
			for !stop.Load() {
				q := Query{Attributes: attrs("k", "x")}
				if err := l.Check(&q, &a); err != nil || !a.Allowed {
					t.Errorf("have %+v, %v", a, err)
					return
				}
				taken.Add(1)
				for _, la := range a.Limits {
					if la.Limit.Amount != 1_000_000+a.RulesVersion {
						t.Errorf("version %d answers with limit %d", a.RulesVersion, la.Limit.Amount)
						return
					}
				}
			}
		})
	}
	for v := int64(2); v < 300; v++ {
		l.SetRules(compile(t, v, fmt.Sprintf(text, 1_000_000+v, 1_000_000+v)))
	}
	stop.Store(true)
	wg.Wait()
	u, err := l.Usage(&Query{Rule: "a", Key: []string{"x"}})
	if err != nil || u.Limits[0].Used != taken.Load() {
		t.Errorf("have %+v used, want %d", u, taken.Load())
	}
}

func TestCheckDoesNotAllocate(t *testing.T) {
	l := open(t, `
rules:
  - {name: a, key: [ip], limits: [{limit: 100000, per: 1m}, {limit: 1000000, per: 1h, algorithm: token-bucket}]}
  - {name: b, match: {endpoint: "/x*"}, key: [ip, endpoint], limits: [{limit: 100000, per: day, algorithm: fixed-window}]}`)
	q := Query{Attributes: attrs("ip", "2001:db8::1", "endpoint", "/x/y", "user", "u")}
	var a Answer
	l.Check(&q, &a)
	if n := testing.AllocsPerRun(1000, func() { l.Check(&q, &a) }); n != 0 {
		t.Errorf("have %v allocations a check, want 0", n)
	}
	byKey := byKey("a", "192.0.2.1")
	l.Check(&byKey, &a)
	if n := testing.AllocsPerRun(1000, func() { l.Check(&byKey, &a) }); n != 0 {
		t.Errorf("by key: have %v allocations a check, want 0", n)
	}
}

func BenchmarkCheck(b *testing.B) {
	l := open(b, "rules:\n  - {name: a, key: [ip], limits: [{limit: 1000000000, per: 1m, algorithm: token-bucket}]}")
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
	}
	var a Answer
	q := Query{Attributes: attrs("ip", "")}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		q.Attributes[0].Value = keys[i%len(keys)]
		l.Check(&q, &a)
	}
}

// adjustment is what Adjust takes to add n to a subject's usage in requests.
func adjustment(rule string, key []string, n int64, request string) *Query {
	return &Query{Rule: rule, Key: key, Costs: []UnitCost{{Unit: document.Requests, Cost: n}}, RequestID: request}
}
