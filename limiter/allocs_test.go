package limiter

import (
	"fmt"
	"testing"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// hotRules cover everything that a check may meet: lists, several units, shadow
// rules, blocks, delays, each algorithm.
const hotRules = `
lists:
  deny: [{ip: 192.0.2.0/24}]
  allow: [{ip: 203.0.113.7}]
rules:
  - {name: many, key: [user], limits: [{limit: 100000, per: 1m}, {limit: 100000, per: 1h, algorithm: token-bucket}, {limit: 100000, per: day, algorithm: fixed-window}, {limit: 100000, per: 1h, unit: tokens, algorithm: leaky-bucket}]}
  - {name: logged, key: [log], limits: [{limit: 100, per: 1h, algorithm: sliding-window-log}]}
  - {name: little, key: [ip], limits: [{limit: 3, per: 1h, algorithm: fixed-window}]}
  - {name: blocked, key: [bad], block: 1h, limits: [{limit: 3, per: 1h, algorithm: fixed-window}]}
  - {name: delayed, key: [slow], on_limit: delay, max_delay: 1h, limits: [{limit: 10000, per: 1m, algorithm: token-bucket}]}
  - {name: watched, key: [user], shadow: true, limits: [{limit: 3, per: 1h, algorithm: fixed-window}]}
`

// hotQueries returns checks against hotRules, and whether each is allowed in the long run.
func hotQueries() map[string]struct {
	q       Query
	allowed bool
} {
	return map[string]struct {
		q       Query
		allowed bool
	}{
		"denied by the list":  {Query{Attributes: attrs("ip", "192.0.2.9")}, false},
		"allowed by the list": {Query{Attributes: attrs("ip", "203.0.113.7")}, true},
		"without a rule":      {Query{Attributes: attrs("other", "x")}, true},
		"many limits, and a shadow that refuses": {Query{
			Attributes: attrs("user", "u"),
			Costs:      []UnitCost{{Unit: "tokens", Cost: 2}, {Unit: document.Requests, Cost: 1}},
		}, true},
		"a peek":           {Query{Attributes: attrs("user", "u"), Mode: counters.PeekMode}, true},
		"refused":          {Query{Attributes: attrs("ip", "2001:db8::1")}, false},
		"refused by key":   {byKey("little", "198.51.100.7"), false},
		"refused by a log": {Query{Attributes: attrs("log", "x")}, false},
		"blocked":          {Query{Attributes: attrs("bad", "x")}, false},
		"delayed":          {Query{Attributes: attrs("slow", "x")}, true},
		"with its limits": {Query{Subjects: []Subject{{InlineSubject: rules.InlineSubject{Namespace: "n", Key: []string{"a", "b"}, Limits: []document.InlineLimit{
			{Limit: 1_000_000, Per: "1m", Algorithm: "token-bucket"}, {Limit: 1_000_000, PerMS: 90_000},
		}}}}}, true},
		"counted over its limit": {Query{Subjects: []Subject{{Mode: counters.CountMode,
			InlineSubject: rules.InlineSubject{Key: []string{"a"}, Limits: []document.InlineLimit{
				{Limit: 10, Per: "1h", Algorithm: "fixed-window"},
			}}}}}, false},
		"refused by one of": {Query{Attributes: attrs("user", "u", "ip", "198.51.100.8")}, false},
	}
}

func TestEveryCheckAllocatesNothing(t *testing.T) {
	l := open(t, hotRules)
	for name, tt := range hotQueries() {
		var a Answer
		run := func() {
			if err := l.Check(&tt.q, &a); err != nil {
				t.Error(err)
			}
		}
		for range 200 { // until each query that should be refused is refused
			run()
		}
		if n := testing.AllocsPerRun(500, run); n != 0 || a.Allowed != tt.allowed {
			t.Errorf("%s: have %v allocations a check, want 0; allowed: %v", name, n, a.Allowed)
		}
	}
}

// The lists of subjects hold few of very many, so that nearly each check that
// is sampled replaces one.
func TestChecksOfManySubjectsAllocateNothing(t *testing.T) {
	const subjects = 20_000
	l := open(t, hotRules)
	q := Query{Attributes: attrs("user", "")}
	names := make([]string, subjects)
	for i := range names {
		names[i] = fmt.Sprint("user ", i)
	}

	var a Answer
	checkAll := func() {
		for _, name := range names {
			q.Attributes[0].Value = name
			if err := l.Check(&q, &a); err != nil {
				t.Error(err)
			}
		}
	}
	for range 5 { // until the shadow rule refuses, so that its list is full, too
		checkAll()
	}
	if n := testing.AllocsPerRun(2, checkAll); n > subjects/1000 {
		t.Errorf("%v allocations for checks of %d subjects, want none but the table's", n, subjects)
	}
}

// hotBatch returns n checks, some of which are refused, and answers with room for them.
func hotBatch(n int) (queries []*Query, answers []*Answer, errs []error) {
	all := hotQueries()
	for len(queries) < n {
		for _, tt := range all {
			queries, answers, errs = append(queries, &tt.q), append(answers, &Answer{}), append(errs, nil)
		}
	}
	return queries[:n], answers[:n], errs[:n]
}

func TestBatchAllocatesNothing(t *testing.T) {
	l := open(t, hotRules)
	queries, answers, errs := hotBatch(100)
	for range 50 {
		l.CheckAll(queries, answers, errs)
	}
	if n := testing.AllocsPerRun(100, func() { l.CheckAll(queries, answers, errs) }); n != 0 {
		t.Errorf("have %v allocations a batch of %d, want 0", n, len(queries))
	}
	w := newTestCluster(t, 2, "rules:\n  - {name: r, key: [k], limits: [{limit: 100000, per: 1440h}]}")
	q := byKey("r", w.keyOf("r", w.nodes[0], nil))
	for i := range queries {
		queries[i] = &q
	}
	if n := testing.AllocsPerRun(100,
		func() { w.nodes[0].CheckAll(queries, answers, errs) }); n != 0 || answers[0].DecidedBy != ByOwner {
		t.Errorf("at the owner: have %v allocations a batch of %d, want 0", n, len(queries))
	}
}

// The top list allocates nothing, neither for a subject in it nor for any other.
func TestMetricsAllocateNothing(t *testing.T) {
	l := open(t, hotRules)
	q := byKey("little", "198.51.100.7")
	var a Answer
	for range 10 {
		l.Check(&q, &a)
	}
	if n := testing.AllocsPerRun(500, func() { l.account(&q, &a) }); n != 0 || a.Allowed {
		t.Errorf("have %v allocations, want 0", n)
	}
	hit := &a.scratch.match.Hits[0]
	if n := testing.AllocsPerRun(500,
		func() { l.tops[top.Refused].Record(hit, true, 3, &q); l.tops[top.Refused].Record(hit, false, 0, &q) }); n != 0 {
		t.Errorf("have %v allocations for a refusal and an admission, want 0", n)
	}
	if n := testing.AllocsPerRun(500, func() {
		if refused, tenths := ruleVerdict(a.Limits); !refused || tenths != 0 {
			t.Errorf("have %v, %d", refused, tenths)
		}
	}); n != 0 {
		t.Errorf("have %v allocations for the headroom, want 0", n)
	}
}

func TestFallbackAllocatesNothing(t *testing.T) {
	w := newTestCluster(t, 3, `rules:
  - {name: share, key: [k], limits: [{limit: 300, per: 1440h}, {limit: 3000, per: 1440h, algorithm: token-bucket}]}
  - {name: full, key: [k], on_partition: full, limits: [{limit: 3000000, per: 1440h}]}
  - {name: deny, key: [k], on_partition: deny, limits: [{limit: 300, per: 1440h}]}
  - {name: local, key: [k], consistency: local, limits: [{limit: 3000000, per: 1440h}]}`)
	for _, n := range w.nodes[1:] {
		w.setCut(w.nodes[0], n, true)
	}
	for rule, by := range map[string]DecidedBy{"share": ByFallback, "full": ByFallback,
		"deny": ByFallback, "local": ByOwner} {
		q := byKey(rule, w.keyOf(rule, w.nodes[1], w.nodes[2]))
		var a Answer
		for range 200 { // until the share is used up
			w.nodes[0].Check(&q, &a)
		}
		if n := testing.AllocsPerRun(200, func() { w.nodes[0].Check(&q, &a) }); n != 0 ||
			a.DecidedBy != by || a.Allowed != (rule == "full" || rule == "local") {
			t.Errorf("%s: have %v allocations a check, want 0; by %s, allowed: %v", rule, n, a.DecidedBy, a.Allowed)
		}
	}
}

// reachableCounter counts the calls to Reachable.
type reachableCounter struct {
	Peers
	n int
}

func (l *reachableCounter) Reachable(to ring.NodeID) bool {
	l.n++
	return l.Peers.Reachable(to)
}

// A node that can't reach any other does not try all members of a large cluster on every check.
func TestFallbackLooksAtFewMembers(t *testing.T) {
	for _, nodes := range []int{40, 64} {
		w := newTestCluster(t, nodes, "rules:\n  - {name: r, key: [k], limits: [{limit: 100000, per: 1440h}]}")
		q := byKey("r", w.keyOf("r", w.nodes[1], w.nodes[2]))
		for _, n := range w.nodes[1:] {
			w.setCut(w.nodes[0], n, true)
		}
		seen := &reachableCounter{Peers: w.nodes[0].cluster.Peers}
		w.nodes[0].cluster.Peers = seen
		var a Answer
		w.nodes[0].Check(&q, &a)
		if a.DecidedBy != ByFallback || seen.n > 8 {
			t.Errorf("%d nodes: decided by %s after %d calls of Reachable", nodes, a.DecidedBy, seen.n)
		}
	}
}

// BenchmarkEveryCheck measures a check of each kind, decided by this node.
func BenchmarkEveryCheck(b *testing.B) {
	for name, bb := range hotQueries() {
		b.Run(name, func(b *testing.B) {
			l := open(b, hotRules)
			var a Answer
			b.ReportAllocs()
			for b.Loop() {
				l.Check(&bb.q, &a)
			}
		})
	}
}

// BenchmarkCheckAll measures a batch of 100.
func BenchmarkCheckAll(b *testing.B) {
	l := open(b, hotRules)
	queries, answers, errs := hotBatch(100)
	b.ReportAllocs()
	for b.Loop() {
		l.CheckAll(queries, answers, errs)
	}
}

// BenchmarkManySubjects measures checks of a million subjects, one by one and
// in batches of 100. Most of the time goes into waiting for memory.
func BenchmarkManySubjects(b *testing.B) {
	l := open(b, "rules:\n  - {name: a, key: [user], limits: [{limit: 1000000000, per: 24h, algorithm: token-bucket}]}")
	keys, next := make([]string, 1_000_000), uint64(1)
	queries, answers, errs := make([]*Query, 100), make([]*Answer, 100), make([]error, 100)
	for i := range keys {
		keys[i] = fmt.Sprintf("user-%07d", i)
	}
	for i := range queries {
		queries[i], answers[i] = &Query{Attributes: attrs("user", "")}, &Answer{}
	}
	draw := func(q *Query) {
		next = next*6364136223846793005 + 1442695040888963407
		q.Attributes[0].Value = keys[next>>33%uint64(len(keys))]
	}
	for _, key := range keys {
		queries[0].Attributes[0].Value = key
		l.Check(queries[0], answers[0])
	}
	b.Run("single", func(b *testing.B) {
		for b.Loop() {
			draw(queries[0])
			l.Check(queries[0], answers[0])
		}
	})
	b.Run("batch", func(b *testing.B) {
		for b.Loop() {
			for _, q := range queries {
				draw(q)
			}
			l.CheckAll(queries, answers, errs)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(100*b.N), "ns/check")
	})
}

// BenchmarkFallback measures a check on a node that can't reach any other.
func BenchmarkFallback(b *testing.B) {
	for _, nodes := range []int{3, 100} {
		b.Run(fmt.Sprint("nodes=", nodes), func(b *testing.B) {
			w := newTestCluster(b, nodes,
				"rules:\n  - {name: r, key: [k], limits: [{limit: 9007199254740991, per: 1440h}]}")
			q := byKey("r", w.keyOf("r", w.nodes[1], w.nodes[2]))
			for _, n := range w.nodes[1:] {
				w.setCut(w.nodes[0], n, true)
			}
			var a Answer
			b.ReportAllocs()
			for b.Loop() {
				w.nodes[0].Check(&q, &a)
			}
			expect.Equal(b, a.DecidedBy, ByFallback, "decided by")
		})
	}
}
