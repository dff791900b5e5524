package limiter

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

const envoyRules = `
envoy:
  - domain: llm
    descriptors:
      - {key: team, rate_limit: {unit: day, requests_per_unit: 10000}}
      - {key: exact, rate_limit: {unit: day, requests_per_unit: 10000, consistency: exact}}
      - {key: few, rate_limit: {unit: day, requests_per_unit: 3}}
`

// descriptor returns a query for a descriptor with one entry in the domain llm.
func descriptor(l *Limiter, key, value string, mode counters.Mode, cost int64) *Query {
	set := l.Rules()
	entries := []rules.EnvoyEntry{{Key: key, Value: value}}
	return &Query{
		MatchedBy: set, PeeksAreLooks: true,
		Subjects: []Subject{{Node: set.EnvoyDomain("llm").Match(entries), Entries: entries,
			Mode: mode, Costs: []UnitCost{{Unit: document.Requests, Cost: cost}}}},
	}
}

// usedOf returns what a descriptor has used, according to its owner.
func usedOf(t *testing.T, l *Limiter, key, value string) int64 {
	t.Helper()
	u, err := l.Usage(descriptor(l, key, value, counters.CheckMode, 1))
	expect.NoError(t, err)
	return u.Limits[0].Used
}

// Streams spend a budget: each looks before it begins and is charged when it
// ends. Once the budget is used up, each node refuses the first look. The
// budget is overdrawn by at most the cost of the streams that were open then.
func TestEnvoyBudget(t *testing.T) {
	for _, key := range []string{"team", "exact"} {
		for _, nodes := range []int{1, 3} {
			for round := range 5 {
				t.Run(key+"/"+strconv.Itoa(nodes), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { spendBudget(t, key, nodes, strconv.Itoa(round)) })
				})
			}
		}
	}
}

func spendBudget(t *testing.T, key string, nodes int, value string) {
	const budget, streams = 10_000, 40
	w := newTestCluster(t, nodes, envoyRules)
	w.pause = func() time.Duration { return time.Duration(rand.Int64N(int64(2 * time.Millisecond))) }
	var mu sync.Mutex // guards the rest
	charged, underWay, open, late := int64(0), int64(0), map[int]int64{}, 0
	usedUp := false
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() {
			n := w.nodes[i%nodes]
			for {
				time.Sleep(time.Duration(rand.Int64N(int64(30 * time.Millisecond))))
				mu.Lock()
				over := usedUp
				cost := 50 + rand.Int64N(300)
				mu.Unlock()
				var a Answer
				if err := n.Check(descriptor(n.Limiter, key, value, counters.PeekMode, 1), &a); err != nil {
					t.Error(err)
					return
				}
				if !a.Allowed {
					mu.Lock()
					over = usedUp
					mu.Unlock()
					if over {
						return
					}
					time.Sleep(time.Second) // leases hold the rest, and will end
					continue
				}
				mu.Lock()
				if over {
					late++
				}
				open[i] = cost
				mu.Unlock()
				time.Sleep(time.Duration(rand.Int64N(int64(100 * time.Millisecond))))
				if err := n.Check(descriptor(n.Limiter, key, value, counters.CountMode, cost), &a); err != nil {
					t.Error(err)
				}
				mu.Lock()
				charged += cost
				delete(open, i)
				if charged >= budget && !usedUp {
					usedUp = true
					for _, c := range open {
						underWay += c
					}
					underWay += charged - budget
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if late > 0 {
		t.Errorf("%d looks that began after the budget was used up were allowed", late)
	}
	time.Sleep(10 * time.Second) // leases end
	if have := usedOf(t, w.nodes[0].Limiter, key, value); have != charged || charged < budget ||
		charged-budget > underWay {
		t.Errorf("used %d, charged %d; overdrawn by %d, with %d in open streams", have, charged,
			charged-budget, underWay)
	}
}

// Looks take nothing. Leases and remembered refusals answer them.
func TestEnvoyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, envoyRules)
		taken := int64(0)
		for i, n := range w.nodes {
			value := "looks"
			var a Answer
			by := map[DecidedBy]int{}
			for turn := range 2000 {
				if turn%20 == 0 {
					expect.NoError(t, n.Check(descriptor(n.Limiter, "team", value, counters.CheckMode, 1), &a))
					taken++
				}
				if err := n.Check(descriptor(n.Limiter, "team", value, counters.PeekMode, 1),
					&a); err != nil || !a.Allowed {
					t.Fatalf("node %d: %v, allowed %v", i, err, a.Allowed)
				}
				by[a.DecidedBy]++
				time.Sleep(time.Millisecond)
			}
			if by[ByOwner] == 0 && by[ByLease] < 1800 {
				t.Errorf("node %d: have %v", i, by)
			}
		}
		time.Sleep(10 * time.Second)
		if have := usedOf(t, w.nodes[0].Limiter, "team", "looks"); have != taken {
			t.Errorf("%d used, %d taken", have, taken)
		}
		for i, n := range w.nodes {
			var a Answer
			for range 3 {
				_ = n.Check(descriptor(n.Limiter, "few", "", counters.CheckMode, 1), &a)
			}
			by := map[DecidedBy]int{}
			for range 10 {
				if err := n.Check(descriptor(n.Limiter, "few", "", counters.PeekMode, 1), &a); err != nil || a.Allowed {
					t.Fatalf("node %d: %v, allowed %v", i, err, a.Allowed)
				}
				by[a.DecidedBy]++
			}
			if by[ByOwner] == 0 && by[ByLease] < 9 {
				t.Errorf("node %d: have %v", i, by)
			}
		}
	})
}

// Quota that is given back is available on all nodes a moment later, although
// they remember refusals. Leases stay. Many refunds cause few messages.
func TestEnvoyRefunds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, envoyRules)
		var told atomic.Int64
		w.detail = func(_, _ ring.NodeID, m peer.Method, _ []byte) {
			if m == MethodForget {
				told.Add(1)
			}
		}
		give := func(key string, cost int64) *Usage {
			u, err := w.nodes[0].GiveBack(descriptor(w.nodes[0].Limiter, key, "g", counters.CheckMode, cost))
			expect.NoError(t, err)
			return u
		}
		refusedAt := func(key string) (n int) {
			for _, node := range w.nodes {
				var a Answer
				expect.NoError(t, node.Check(descriptor(node.Limiter, key, "g", counters.PeekMode, 1), &a))
				if !a.Allowed {
					n++
				}
			}
			return n
		}
		for range 5 {
			var a Answer
			_ = w.nodes[1].Check(descriptor(w.nodes[1].Limiter, "few", "g", counters.CheckMode, 1), &a)
		}
		if have := refusedAt("few"); have != 3 {
			t.Fatalf("%d nodes refuse, want 3", have)
		}
		if u := give("few", 2); u.Limits[0].Remaining != 2 {
			t.Errorf("have %+v", u.Limits[0])
		}
		time.Sleep(2 * forgetNoticePause)
		expect.Equal(t, refusedAt("few"), 0, "nodes still refuse")
		if u := give("few", 7); u.Limits[0].Remaining != 3 || u.Limits[0].Used != 0 {
			t.Errorf("have %+v", u.Limits[0])
		}
		time.Sleep(time.Second)
		told.Store(0)
		for range 100 {
			give("few", 1)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if n := told.Load(); n > 2*8 { // two other nodes, each 20 ms
			t.Errorf("100 refunds in 0.1 s caused %d messages", n)
		}
	})
}

// The caller must match a request again if the rules were replaced.
func TestMatchedByOldRules(t *testing.T) {
	l := New(counters.New(100), NewClock())
	t.Cleanup(func() { l.clock.Close() })
	l.SetRules(compile(t, 1, "version: 1\n"+envoyRules))
	q := descriptor(l, "few", "", counters.CheckMode, 1)
	l.SetRules(compile(t, 2, "version: 1\n"+envoyRules))
	var a Answer
	expect.ErrorIs(t, l.Check(q, &a), ErrRulesChanged, "l.Check(q, &a)")
	if err := l.Check(descriptor(l, "few", "", counters.CheckMode, 1), &a); err != nil || !a.Allowed {
		t.Errorf("have %v, %v", err, a.Allowed)
	}
}

// A node whose callers only look, while another node counts, also refuses from
// the first look after the budget is used up.
func TestEnvoyLooksOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, envoyRules)
		late := 0
		for round := range 20 {
			value, charged := "o"+strconv.Itoa(round), int64(0)
			for charged < 10_000 {
				var a Answer
				for _, n := range w.nodes[1:] {
					expect.NoError(t, n.Check(descriptor(n.Limiter, "team", value, counters.PeekMode, 1), &a))
				}
				expect.NoError(t,
					w.nodes[0].Check(descriptor(w.nodes[0].Limiter, "team", value, counters.CountMode, 400), &a))
				charged += 400
				time.Sleep(5 * time.Millisecond)
			}
			for _, n := range w.nodes[1:] {
				for range 10 {
					var a Answer
					expect.NoError(t, n.Check(descriptor(n.Limiter, "team", value, counters.PeekMode, 1), &a))
					if a.Allowed {
						late++
					}
				}
			}
		}
		if late > 0 {
			t.Errorf("%d of 400 looks were allowed after the budget was used up", late)
		}
	})
}
