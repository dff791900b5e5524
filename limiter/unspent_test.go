package limiter

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

const leasedRules = `rules:
  - {name: window, key: [k], limits: [{limit: 2000, per: 2160h, algorithm: fixed-window}]}
  - {name: sliding, key: [k], limits: [{limit: 2000, per: 2160h}]}
  - {name: bucket, key: [k], limits: [{limit: 2000, per: 2160h, algorithm: token-bucket}]}
  - name: several
    key: [k]
    limits: [{limit: 1000, per: 2160h, algorithm: fixed-window}, {limit: 4000, per: 2160h, algorithm: fixed-window, unit: tokens}]
`

// usage returns what the cluster says of a subject, asked at n.
func (n *testNode) usage(rule, key string) *Usage {
	n.w.t.Helper()
	u, err := n.Usage(&Query{Rule: rule, Key: []string{key}})
	expect.NoError(n.w.t, err)
	return u
}

// heldOf returns what the holders have not spent of their leases in the first limit of a rule.
func (w *testCluster) heldOf(rule, key string, holders ...*testNode) int64 {
	u, err := w.nodes[0].Locate(&Query{Rule: rule, Key: []string{key}})
	expect.NoError(w.t, err)
	owner, total := w.node(w.place[w.partition(rule, key)].owner), int64(0)
	for _, n := range holders {
		for _, g := range n.cluster.leases.held.Unspent(u.Hash.Hi, owner.id, owner.boot).Held {
			total += g.Left[0]
		}
	}
	return total
}

// One check through a node that takes a lease with it uses one unit, at each node that is asked.
func TestUsageOfOneCheckIsItsCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, leasedRules)
		key := w.keyOf("window", w.nodes[0], nil)
		for range 3 { // the first tells the owner of the demand
			if a := w.nodes[1].check(byKey("window", key)); !a.Allowed {
				t.Fatal("refused")
			}
		}
		synctest.Wait()

		held := w.heldOf("window", key, w.nodes...)
		if held == 0 {
			t.Fatal("nothing is leased: this test is about nothing")
		}
		for _, n := range w.nodes {
			u := n.usage("window", key).Limits[0]
			if u.Used != 3 || u.Leased != held || u.Share != 2000 || u.Remaining != 1997-held || u.Estimated {
				t.Errorf("have %d used, %d leased, %d remaining of %d; want 3 used, %d leased",
					u.Used, u.Leased, u.Remaining, u.Share, held)
			}
		}
	})
}

// In random states of a cluster at rest, what is used is what was admitted, and
// used, leased and remaining add up to the share.
func TestUsageAddsUpToTheShare(t *testing.T) {
	const states = 1000
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, leasedRules)
		random := rand.New(rand.NewPCG(1, 2))
		names := []string{"window", "sliding", "several"}
		key, admitted, leasedStates := "", [2]int64{}, 0
		for i := range states {
			rule := names[i/20%len(names)]
			if i%20 == 0 {
				key, admitted = fmt.Sprintf("key-%d", i), [2]int64{}
			}
			for range random.IntN(12) {
				cost, tokens := random.Int64N(40), random.Int64N(100)
				q := byKey(rule, key)
				q.Costs = []UnitCost{{document.Requests, cost}, {"tokens", tokens}}
				if w.nodes[random.IntN(3)].check(q).Allowed {
					admitted[0], admitted[1] = admitted[0]+cost, admitted[1]+tokens
				}
				time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
			}
			time.Sleep(unspentAge)
			synctest.Wait()

			u := w.nodes[random.IntN(3)].usage(rule, key)
			for j := range u.Limits {
				lu := &u.Limits[j]
				if lu.Used != admitted[j] || lu.Used+lu.Leased+lu.Remaining != lu.Share ||
					lu.Share != lu.Limit.Amount || lu.Estimated {
					t.Fatalf("state %d of %s: have %d used, %d leased, %d remaining of %d; admitted %d", i, rule, lu.Used, lu.Leased, lu.Remaining, lu.Share, admitted[j])
				}
				if lu.Leased > 0 {
					leasedStates++
				}
			}
		}
		if leasedStates < states/10 {
			t.Errorf("only %d states had leases", leasedStates)
		}
	})
}

// Under load, what is used is what had been admitted at some time within the last 100 ms.
func TestUsageUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, leasedRules)
		key := w.keyOf("window", w.nodes[0], nil)
		var begun, admitted atomic.Int64
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				for range 400 {
					begun.Add(1)
					if w.nodes[i].check(byKey("window", key)).Allowed {
						admitted.Add(1)
					}
					time.Sleep(time.Duration(3+i) * time.Millisecond)
				}
			})
		}

		before := map[int]int64{}
		for i := range 100 {
			time.Sleep(10 * time.Millisecond)
			before[i] = admitted.Load()
			u := w.nodes[i%3].usage("window", key).Limits[0]
			most := begun.Load()
			if u.Used+u.Leased+u.Remaining != u.Share {
				t.Errorf("have %d used, %d leased, %d remaining of %d", u.Used, u.Leased, u.Remaining, u.Share)
			}
			if old := before[max(0, i-11)]; u.Used < old || u.Used > most {
				t.Errorf("have %d used; %d were admitted 100 ms ago, and %d are now", u.Used, old, most)
			}
		}
		wg.Wait()
	})
}

// Within 100 ms a holder is asked once about a subject. What a holder has that
// does not answer counts as used, for an estimate.
func TestUsageWhenAHolderIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, leasedRules)
		key := w.keyOf("window", w.nodes[0], nil)
		for range 3 {
			for _, n := range w.nodes[1:] {
				n.check(byKey("window", key))
			}
		}
		synctest.Wait()
		both, one := w.heldOf("window", key, w.nodes...), w.heldOf("window", key, w.nodes[2])
		if one == 0 || both == one {
			t.Fatalf("have %d of %d leased at one node: this test is about nothing", one, both)
		}

		var asked atomic.Int64
		w.listen(func(m peer.Method) {
			if m == MethodUnspent {
				asked.Add(1)
			}
		})
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				if u := w.nodes[i%3].usage("window", key).Limits[0]; u.Used != 6 || u.Leased != both {
					t.Errorf("have %d used, %d leased; want 6, %d", u.Used, u.Leased, both)
				}
			})
		}
		wg.Wait()
		expect.Equal(t, asked.Load(), 2, "30 callers at once made questions to holders")

		w.setCut(w.nodes[0], w.nodes[1], true)
		time.Sleep(unspentAge)
		u := w.nodes[2].usage("window", key).Limits[0]
		if u.Used != 6+both-one || u.Leased != one || !u.Estimated || u.Used+u.Leased+u.Remaining != u.Share {
			t.Errorf("have %+v; want %d leased, and an estimate", u, one)
		}
	})
}

// What a node holds unspent is its own: its answers count it as remaining, also
// to a check that the lease does not cover and to a peek.
func TestAnswersCountWhatTheNodeHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, leasedRules)
		key := w.keyOf("window", w.nodes[0], nil)
		n, used := w.nodes[1], int64(0)
		for range 3 {
			n.check(byKey("window", key))
			used++
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if w.heldOf("window", key, n) == 0 {
			t.Fatal("nothing is leased: this test is about nothing")
		}

		peek := byKey("window", key)
		peek.Mode = counters.PeekMode
		if la := n.check(peek).Limits[0]; la.Remaining != 2000-used-1 || la.Used != used+1 { // as if taken
			t.Errorf("a peek: have %d remaining, %d used; want %d, %d", la.Remaining, la.Used, 2000-used-1, used+1)
		}
		large := byKey("window", key)
		large.Costs = []UnitCost{{document.Requests, 500}}
		used += 500
		if a := n.check(large); a.DecidedBy != ByForward || a.Limits[0].Remaining != 2000-used ||
			a.Limits[0].Used != used {
			t.Errorf("above the lease, by %v: have %d remaining, %d used; want %d, %d", a.DecidedBy,
				a.Limits[0].Remaining, a.Limits[0].Used, 2000-used, used)
		}
		time.Sleep(time.Millisecond) // the grant that came with the answer is older than the next one
		large.Costs[0].Cost = 2000
		if a := n.check(large); a.Allowed || a.Limits[0].Remaining != 2000-used || a.Limits[0].Used != used {
			t.Errorf("refused: have %d remaining, %d used; want %d, %d", a.Limits[0].Remaining,
				a.Limits[0].Used, 2000-used, used)
		}
	})
}
