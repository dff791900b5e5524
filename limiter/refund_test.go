package limiter

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

// While all nodes are connected, whatever was taken and not used comes back:
// even if its partition is just being handed over, its owner has no authority
// for a moment, or nobody knows for a moment who the owner is.
func TestRefundsWait(t *testing.T) {
	const rules = `rules:
  - {name: a, key: [a], limits: [{limit: 100000, per: 1440h, algorithm: fixed-window}]}
  - {name: b, key: [b], limits: [{limit: 100000, per: 1440h, algorithm: fixed-window}]}
  - {name: none, consistency: exact, key: [c], limits: [{limit: 1, per: 1440h, algorithm: fixed-window}]}`
	// A refund takes cost back to the subject key of rule b, whose owner is nodes[1].
	type refunding struct {
		name string
		take func(w *testCluster, key string) // may be nil
		give func(w *testCluster, key string)
		used int64 // afterwards
	}
	var id string
	lease := refunding{"the rest of a lease", func(w *testCluster, key string) { w.nodes[0].lease("b", key) },
		func(w *testCluster, key string) { w.nodes[0].UseLeases(false) }, 20}
	reservation := refunding{"a reservation", func(w *testCluster, key string) {
		q := Query{Attributes: attrs("a", w.keyOf("a", w.nodes[2], nil), "b", key), Costs: []UnitCost{{"requests", 7}}}
		id = w.nodes[0].reserve(q, time.Minute)
	}, func(w *testCluster, key string) {
		if _, err := w.nodes[0].Settle(id, nil); err != nil {
			w.t.Error(err)
		}
	}, 0}
	check := refunding{"a refused check", nil, func(w *testCluster, key string) {
		q := Query{Attributes: attrs("b", key, "c", w.keyOf("none", w.nodes[2], nil)),
			Costs: []UnitCost{{"requests", 7}}}
		if a := w.nodes[1].check(q); a.Allowed {
			w.t.Error("admitted")
		}
	}, 0}

	// onGive and onAsk run f once: when the owner is about to give the cost back,
	// and when a node is asked.
	onGive := func(w *testCluster, f func()) {
		var first atomic.Bool
		once := func() {
			if first.CompareAndSwap(false, true) {
				f()
			}
		}
		w.nodes[1].asked.Store(&once)
	}
	onAsk := func(w *testCluster, f func()) {
		var first atomic.Bool
		w.mu.Lock()
		defer w.mu.Unlock()
		w.detail = func(_, _ ring.NodeID, m peer.Method, _ []byte) {
			if m == MethodAsk && first.CompareAndSwap(false, true) {
				f()
			}
		}
	}
	freeze := func(w *testCluster, p int) {
		w.change(func() { w.place[p].frozen = true })
		w.nodes[1].table.Shut(p)
	}
	handOver := func(w *testCluster, p int) { w.handOver(p, w.nodes[2]) }
	thaw := func(w *testCluster, p int) {
		w.nodes[1].table.Open(p, w.place[p].lineage)
		w.change(func() { w.place[p].frozen = false })
	}
	for _, tt := range []struct {
		name       string
		of         []refunding
		begin, end func(w *testCluster, p int)
	}{
		{"is handed over", []refunding{lease, reservation}, freeze, handOver},
		{"is not handed over after all", []refunding{lease, reservation}, freeze, thaw},
		{"is handed over in that moment", []refunding{lease, reservation},
			func(w *testCluster, p int) { onGive(w, func() { freeze(w, p) }) }, handOver},
		{"is shut only in that moment", []refunding{lease, reservation},
			func(w *testCluster, p int) { onGive(w, func() { freeze(w, p) }) }, thaw},
		{"is handed over meanwhile", []refunding{check},
			func(w *testCluster, p int) { onAsk(w, func() { freeze(w, p) }) }, handOver},
		{"is shut meanwhile", []refunding{check},
			func(w *testCluster, p int) { onAsk(w, func() { freeze(w, p) }) }, thaw},
		{"has an owner without authority", []refunding{lease},
			func(w *testCluster, p int) { w.nodes[1].authority.Store(false) },
			func(w *testCluster, p int) { w.nodes[1].authority.Store(true) }},
		{"has an owner that can't be reached", []refunding{lease},
			func(w *testCluster, p int) { w.setCut(w.nodes[0], w.nodes[1], true) },
			func(w *testCluster, p int) { w.setCut(w.nodes[0], w.nodes[1], false) }},
		{"has an owner that does not know it yet", []refunding{lease, reservation},
			func(w *testCluster, p int) { w.nodes[1].wrong.Store(p, w.nodes[2].id) },
			func(w *testCluster, p int) { w.nodes[1].wrong.Delete(p) }},
	} {
		for _, of := range tt.of {
			t.Run(of.name+" of a partition that "+tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					nextWindow(1440 * time.Hour)
					w := newTestCluster(t, 3, rules)
					w.nodes[2].check(byKey("none", w.keyOf("none", w.nodes[2], nil)))
					key := w.keyOf("b", w.nodes[1], nil)
					p := w.partition("b", key)
					if of.take != nil {
						of.take(w, key)
					}
					tt.begin(w, p)
					of.give(w, key)
					time.Sleep(300 * time.Millisecond)
					tt.end(w, p)
					time.Sleep(refundTimeout)
					if used := w.node(w.place[p].owner).used("b", key); used != of.used {
						t.Errorf("have %d used, want %d", used, of.used)
					}
				})
			})
		}
	}
}

// A bucket gets back what another process granted, but for what may have
// drained since: here 14 s of it, at most 3 tokens.
func TestABucketTakesBackWhatItsLastOwnerGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 10000, per: 14h, algorithm: token-bucket}]}")
		holder, owner, next := w.nodes[0], w.nodes[1], w.nodes[2]
		time.Sleep(time.Minute) // until the nodes know that rates are as they were
		key := w.keyOf("r", owner, nil)
		q := byKey("r", key)
		q.Costs = []UnitCost{{"requests", 100}}
		holder.check(q)
		for range 20 { // one of them is granted in advance
			q.Costs[0].Cost = 1
			holder.check(q)
			time.Sleep(5 * time.Millisecond)
		}
		granted := owner.used("r", key) - 120
		w.handOver(w.partition("r", key), next)
		holder.UseLeases(false)
		if left := next.used("r", key) - 120; granted < 10 || left > 4 {
			t.Errorf("%d were granted in advance; %d have not come back", granted, left)
		}
	})
}

// debitOf returns what a check of one limit took at n, and its partition.
func debitOf(n *testNode, a *Answer) (taken takenCosts, p int) {
	op := a.scratch.ops[0]
	p = op.Key.Partition()
	when := markOf(&op, a.Now)
	return takenCosts{subject: op.Key.Subject, boot: n.boot, life: counters.Life{Lineage: 1 + uint64(p)},
		ops: []counters.Op{op}, marks: []algorithms.TakeMark{when}}, p
}

// What was taken before a reset does not come back after it, though it had to wait.
func TestRefundsWaitDuringAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 1,
			`rules: [{name: r, key: [a], limits: [{limit: 100, per: 1h, algorithm: fixed-window}]}]`)
		n := w.nodes[0]
		q := byKey("r", w.keyOf("r", n, nil))
		q.Costs = []UnitCost{{"requests", 50}}
		a := n.check(q)
		taken, p := debitOf(n, a)
		w.change(func() { w.place[p].frozen = true })
		n.sendRefunds([]refund{{takenCosts: taken}})
		synctest.Wait()
		w.change(func() { w.place[p].frozen = false })
		if _, err := n.Reset(&q); err != nil {
			t.Fatal(err)
		}
		q.Costs[0].Cost = 100
		if a := n.check(q); !a.Allowed {
			t.Fatal("refused after the reset")
		}
		time.Sleep(refundTimeout)
		expect.Equal(t, n.used("r", q.Key[0]), 100, "used")
	})
}

// A bucket takes back of a check's cost what can't have drained, and nothing if
// its rate may have changed.
func TestABucketTakesBackWhatIsLeft(t *testing.T) {
	for name, tt := range map[string]struct {
		between func(n *testNode)
		want    int64 // used afterwards
	}{
		"the same rate":  {func(*testNode) {}, 0},
		"another rate":   {func(n *testNode) { n.SetRules(n.Rules()) }, 50},
		"half an hour":   {func(*testNode) { time.Sleep(30 * time.Minute) }, 0},
		"used meanwhile": {func(n *testNode) { n.used("r", "x") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 1,
					"rules: [{name: r, key: [a], limits: [{limit: 100, per: 100h, algorithm: token-bucket}]}]")
				n := w.nodes[0]
				time.Sleep(time.Minute)
				q := byKey("r", w.keyOf("r", n, nil))
				q.Costs = []UnitCost{{"requests", 50}}
				a := n.check(q)
				taken, _ := debitOf(n, a)
				taken.steady = a.Now.Steady
				time.Sleep(time.Second)
				tt.between(n)
				n.sendRefunds([]refund{{takenCosts: taken}})
				expect.Equal(t, n.used("r", q.Key[0]), tt.want, "used")
			})
		})
	}
}

// Refunds that can't be given back are dropped after a while, and at once if
// there is no room. Those of reservations are counted.
func TestRefundsWaitNotForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 1, "rules: [{name: r, key: [a], limits: [{limit: 100, per: 1440h}]}]")
		n := w.nodes[0]
		q := byKey("r", w.keyOf("r", n, nil))
		op := n.check(q).scratch.ops[0]
		p := op.Key.Partition()
		list := make([]refund, maxWaitingRefunds+1)
		for i := range list {
			list[i] = refund{takenCosts: takenCosts{subject: op.Key.Subject,
				life: counters.Life{Lineage: 1 + uint64(p)}, ops: []counters.Op{op},
				marks: []algorithms.TakeMark{0}}, reservedAt: 1}
		}
		w.change(func() { w.place[p].frozen = true })
		n.sendRefunds(list)
		synctest.Wait()
		expect.Equal(t, n.reservations.dropped.Load(), 1, "dropped at once")
		time.Sleep(refundTimeout - 20*time.Millisecond)
		if have := n.reservations.dropped.Load(); have != 1 {
			t.Errorf("have %d dropped before their time, want none", have-1)
		}
		time.Sleep(50 * time.Millisecond)
		if have := n.reservations.dropped.Load(); have != int64(len(list)) {
			t.Errorf("have %d dropped, want %d", have, len(list))
		}
	})
}

// A holder that did not run for a while returns nothing: the owner could not tell how old it is.
func TestAHolderThatWasPausedReturnsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 10000, per: 1h, algorithm: fixed-window}]}")
		holder, owner := w.nodes[0], w.nodes[1]
		key := w.keyOf("r", owner, nil)
		holder.lease("r", key)
		w.handOver(w.partition("r", key), w.nodes[2])
		used := w.nodes[2].used("r", key)
		held := holder.cluster.leases.held
		held.SetEnabled(holder.cluster.Boottime(), false)
		late := holder.cluster.Boottime() + localcache.MaxTTL + returnTimeout
		holder.cluster.leases.returnEnded(late, held.DrainEnded(late, nil))
		if have := w.nodes[2].used("r", key); used <= 20 || have != used || holder.figure("lease_lost_total") == 0 {
			t.Errorf("have %d used, want %d as before; %d lost", have, used, holder.figure("lease_lost_total"))
		}
	})
}

// A refund is not tried once more after its time, as when the process did not
// run meanwhile. What waits when the limiter is closed, and a grant that the
// ledger no longer knows, count as lost.
func TestRefundsThatAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 1,
			`rules: [{name: r, key: [a], limits: [{limit: 100, per: 1h, algorithm: fixed-window}]}]`)
		n := w.nodes[0]
		q := byKey("r", w.keyOf("r", n, nil))
		a := n.check(q)
		taken, p := debitOf(n, a)
		time.Sleep(time.Second)
		n.cluster.refunds.keep(&refund{takenCosts: taken}, -1)
		time.Sleep(time.Second)
		if n.used("r", q.Key[0]) != 1 {
			t.Error("given back after its time")
		}
		n.sendRefunds([]refund{{takenCosts: taken, grant: 7}})
		w.change(func() { w.place[p].frozen = true })
		n.sendRefunds([]refund{{takenCosts: taken, grant: 8}})
		if have := n.figure("lease_lost_total"); have != 1 {
			t.Errorf("have %d lost, want the one that the ledger does not know", have)
		}
		expect.NoError(t, n.Close())
		if have := n.figure("lease_lost_total"); have != 2 {
			t.Errorf("have %d lost, want the one that waited, too", have)
		}
	})
}
