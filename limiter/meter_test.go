package limiter

import (
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/usage"
)

// fakeMeter is a Meter that records its calls.
type fakeMeter struct {
	mu    sync.Mutex // guards the maps
	names map[rules.Hash]string
	cost  map[string]int64
	times map[string]int64
}

func newFakeMeter() *fakeMeter {
	return &fakeMeter{names: map[rules.Hash]string{}, cost: map[string]int64{}, times: map[string]int64{}}
}

// useMeter lets all nodes bill to one meter.
func (w *testCluster) useMeter() *fakeMeter {
	bill := newFakeMeter()
	for _, n := range w.nodes {
		n.UseMeter(bill)
	}
	return bill
}

func (b *fakeMeter) Add(wall int64, s rules.Hash, unit string, cost, checks int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	name, ok := b.names[s]
	if !ok {
		return false
	}
	b.cost[name+" "+unit] += cost
	b.times[name+" "+unit] += checks
	return true
}

func (b *fakeMeter) AddNamed(wall int64, s rules.Hash, rule string, key []string, unit string, cost, checks int64) {
	b.mu.Lock()
	b.names[s] = fmt.Sprint(rule, key)
	b.mu.Unlock()
	b.Add(wall, s, unit, cost, checks)
}

// billed returns what was billed under a name: a rule with its key, and a unit.
func (b *fakeMeter) billed(name string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cost[name]
}

// The limiter bills an admitted check once for each unit of each rule with
// `usage: monthly`. It does not bill refusals, peeks, shadow rules, checks
// decided by a list, or other rules.
func TestMeterCountsAdmittedChecks(t *testing.T) {
	l := open(t, `
lists: {allow: [{ip: 203.0.113.1}], deny: [{ip: 203.0.113.2}]}
rules:
  - name: a
    key: [user]
    usage: monthly
    cost: {by: endpoint, values: {/big: 5}, default: 1}
    limits: [{limit: 10, per: 1m, algorithm: fixed-window}, {limit: 100, per: 1h, algorithm: fixed-window}, {limit: 1000, per: 1h, unit: tokens}]
  - {name: b, key: [user, endpoint], usage: monthly, limits: [{limit: 1000, per: 1h}]}
  - {name: n, key: [user], limits: [{limit: 1000, per: 1h}, {limit: 1000, per: 1h, unit: tokens}]}
  - {name: s, key: [user], shadow: true, usage: monthly, limits: [{limit: 1, per: 1h}]}
  - {name: all, key: [], match: {user: v}, usage: monthly, limits: [{limit: 1000, per: 1h}]}`)
	have := newFakeMeter()
	l.UseMeter(have)
	for _, q := range []Query{
		{Attributes: attrs("user", "u", "endpoint", "/big"), Costs: []UnitCost{{Unit: "tokens", Cost: 70}}},
		{Attributes: attrs("user", "u", "endpoint", "/small")},
		{Attributes: attrs("user", "u", "endpoint", "/big"), Mode: counters.PeekMode},
		// refused
		{Attributes: attrs("user", "u", "endpoint", "/big"), Costs: []UnitCost{{Unit: "requests", Cost: 11}}},
		{Attributes: attrs("user", "v", "endpoint", "/x"),
			Costs: []UnitCost{{Unit: "requests", Cost: 0}, {Unit: "tokens", Cost: 9}}},
		{Attributes: attrs("user", "u", "endpoint", "/big", "ip", "203.0.113.1")},
		{Attributes: attrs("user", "u", "endpoint", "/big", "ip", "203.0.113.2")},
	} {
		check(t, l, epoch, q)
	}
	q := byKey("all")
	answers, errs := []*Answer{{}, {}}, make([]error, 2)
	l.CheckAll([]*Query{&q, &q}, answers, errs)
	wantCost := map[string]int64{
		"a[u] requests": 6, "a[u] tokens": 70, "b[u /big] requests": 1, "b[u /small] requests": 1,
		"a[v] requests": 0, "a[v] tokens": 9, "b[v /x] requests": 0, "all[] requests": 2,
	}
	wantTimes := map[string]int64{
		"a[u] requests": 2, "a[u] tokens": 2, "b[u /big] requests": 1, "b[u /small] requests": 1,
		"a[v] requests": 1, "a[v] tokens": 1, "b[v /x] requests": 1, "all[] requests": 3,
	}
	if !maps.Equal(have.cost, wantCost) {
		t.Errorf("have %v\nwant %v", have.cost, wantCost)
	}
	if !maps.Equal(have.times, wantTimes) {
		t.Errorf("have %v\nwant %v", have.times, wantTimes)
	}
}

// metered returns a limiter with a meter, and one rule with the given usage setting.
func metered(t testing.TB, usages string) *Limiter {
	l := open(t,
		"rules:\n  - {name: r, key: [ip], "+usages+"limits: [{limit: 1000000000, per: 1h, algorithm: fixed-window}]}")
	m, err := usage.Open(usage.Config{Dir: t.TempDir(), Self: ring.NodeID{1}, Boot: 1, Name: "n",
		Months: 1, Rows: 10_000,
		Now: func() int64 { return time.Now().UnixNano() }, Logger: slog.New(slog.DiscardHandler)})
	expect.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	l.UseMeter(m)
	return l
}

func TestMeterAllocatesNothing(t *testing.T) {
	for _, usages := range []string{"", "usage: monthly, "} {
		l := metered(t, usages)
		q := byKey("r", "198.51.100.7")
		var a Answer
		l.Check(&q, &a)
		if n := testing.AllocsPerRun(1000, func() { l.Check(&q, &a) }); n != 0 || !a.Allowed {
			t.Errorf("%q: have %v allocations a check, want 0", usages, n)
		}
	}
}

func BenchmarkMeter(b *testing.B) {
	for _, usages := range []string{"", "usage: monthly, "} {
		b.Run(fmt.Sprint("counted=", usages != ""), func(b *testing.B) {
			l := metered(b, usages)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				q := byKey("r", "198.51.100.7")
				var a Answer
				for i := 0; pb.Next(); i++ {
					l.Check(&q, &a)
				}
			})
		})
	}
}

// rulesMeter puts rules in force as soon as it bills.
type rulesMeter struct {
	*fakeMeter
	put func()
}

func (m rulesMeter) AddNamed(wall int64, s rules.Hash, rule string, key []string, unit string, cost, checks int64) {
	m.put()
	m.fakeMeter.AddNamed(wall, s, rule, key, unit, cost, checks)
}

// A batch matches some checks ahead. Those that are decided after the rules
// have changed are decided by the new rules.
func TestRulesChangeWithinABatch(t *testing.T) {
	const text = "rules:\n  - {name: r, key: [user], usage: monthly, limits: [{limit: 10, per: 1h, algorithm: fixed-window}]}"
	l := open(t, text)
	l.UseMeter(rulesMeter{newFakeMeter(), func() { l.SetRules(compile(t, 7, text)) }})
	first, second := byKey("r", "a"), byKey("r", "b")
	first.RequestID = "1" // is decided and billed at once
	answers, errs := []*Answer{{}, {}}, make([]error, 2)
	l.CheckAll([]*Query{&first, &second}, answers, errs)
	if errs[0] != nil || errs[1] != nil || !answers[1].Allowed || answers[1].RulesVersion != 7 {
		t.Errorf("decided by version %d (%v, %v), want 7", answers[1].RulesVersion, errs[0], errs[1])
	}
}
