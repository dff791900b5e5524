package partitions

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
)

// decideAlone decides one check at n alone.
func decideAlone(t *testing.T, n *node, i int, want counters.Verdict) {
	t.Helper()
	ops := []counters.Op{{Key: keyOf(i), Limit: &limit, Cost: 1}}
	if v := n.keeper.Load().DecideAlone(now(), ops); v != want || (v == counters.Admitted) != ops[0].Decision.Allowed {
		t.Fatalf("%s alone: %v, %+v", n.ip, v, ops[0].Decision)
	}
}

// usedIs reports whether every key has want used at its owner.
func (f *fleet) usedIs(keys []int, want int64) bool {
	for _, i := range keys {
		if f.used(keyOf(i)) != want {
			return false
		}
	}
	return true
}

// A debt of a node without a copy reaches the owner one to two seconds after
// the owner is back, once.
func TestG4_FallbackIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		keys := f.keysOf(a, b, 50)
		f.net.Cut(a.ip, c.ip)
		time.Sleep(400 * time.Millisecond)
		for _, i := range keys {
			decideAlone(t, c, i, counters.Admitted)
			decideAlone(t, c, i, counters.Admitted)
			f.take(a, keyOf(i))
		}
		f.net.Heal(a.ip, c.ip)
		f.eventually("they see each other", func() bool { return c.peers.Reachable(a.id) })
		time.Sleep(900 * time.Millisecond)
		if !f.usedIs(keys, 1) {
			t.Error("reported at once")
		}
		time.Sleep(1300 * time.Millisecond)
		if !f.usedIs(keys, 3) {
			t.Errorf("not reported: have %d used", f.used(keyOf(keys[0])))
		}
		time.Sleep(5 * time.Second)
		if n := c.keeper.Load().Stats().Debts; n != 0 || !f.usedIs(keys, 3) {
			t.Errorf("have %d debts left, %d used", n, f.used(keyOf(keys[0])))
		}
	})
}

// An owner without authority continues from its own counters. If it was not
// ended, they stay in use and its debts are dropped; if it was, it reports its
// debts to the next owner.
func TestG4_FallbackOfACutOffOwner(t *testing.T) {
	for _, ended := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newThreeNodes(t)
			a, b := f.nodes[0], f.nodes[1]
			keys := f.keysOf(a, b, 50)
			for _, i := range keys {
				f.take(a, keyOf(i))
			}
			time.Sleep(300 * time.Millisecond)
			f.net.Isolate(a.ip)
			time.Sleep(400 * time.Millisecond)
			a.authority.Store(false)
			for _, i := range keys {
				decideAlone(t, a, i, counters.Admitted)
			}
			if ended {
				f.end(a)
			}
			time.Sleep(time.Second)
			f.net.Rejoin(a.ip)
			a.authority.Store(true)
			time.Sleep(3 * time.Second)
			if n := a.keeper.Load().Stats().Debts; n != 0 || !f.usedIs(keys, 2) {
				t.Errorf("ended %v: have %d debts left, %d used, want 2", ended, n, f.used(keyOf(keys[0])))
			}
		})
	}
}

// A node that has a copy, or counters from a checkpoint, continues from them:
// costs already in them and those that it admits alone stay within the limit
// together.
func TestG4_FallbackGoesOnFromWhatIsHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		i := f.keysOf(a, b, 1)[0]
		for range 990 {
			f.take(a, keyOf(i))
		}
		time.Sleep(300 * time.Millisecond)
		f.net.Isolate(b.ip)
		time.Sleep(400 * time.Millisecond)
		c.table.Load().Put(now(), counters.Record{ // from a checkpoint
			Key: keyOf(i), Kind: limit.Kind,
			State:     algorithms.State{Count: 990, At: takeRecordNow(&limit, now()).Window},
			ExpiresAt: time.Now().Add(time.Hour).Unix(),
		})
		for _, n := range []*node{b, c} {
			for range 10 {
				decideAlone(t, n, i, counters.Admitted)
			}
			decideAlone(t, n, i, counters.Refused)
			peek := []counters.Op{{Key: keyOf(i), Limit: &limit}}
			if v := n.keeper.Load().DecideAlone(now(), peek); v != counters.Admitted && n == b ||
				peek[0].Decision.Remaining != 0 {
				t.Errorf("%s: a peek has %v, %+v", n.ip, v, peek[0].Decision)
			}
		}
		f.net.Rejoin(b.ip)
		f.eventually("the debt is reported", func() bool { return f.used(keyOf(i)) == 1010 })
	})
}

// A forgiven debt is not debited. Forgiving more than was recorded makes no quota.
func TestForgiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		i := f.keysOf(a, b, 1)[0]
		bucket := algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 1, Burst: 10, Window: time.Hour}
		f.net.Cut(a.ip, c.ip)
		time.Sleep(400 * time.Millisecond)
		op := counters.Op{Key: keyOf(i), Limit: &bucket, Cost: 5}
		for range 3 {
			c.keeper.Load().DecideAlone(now(), []counters.Op{op})
		}
		c.keeper.Load().ForgiveDebt(now(), &op)
		f.net.Heal(a.ip, c.ip)
		time.Sleep(4 * time.Second)
		if used, _ := a.table.Load().Usage(now(), keyOf(i), &bucket); used != 10 {
			t.Errorf("have %d used, want 10", used)
		}
		expect.Equal(t, c.keeper.Load().Stats().Debts, 0, "debts left")
	})
}

// Beyond the bound, no more debts are recorded, and checks are still decided.
// Expired debts make room.
func TestDebtsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		f.net.Isolate(c.ip)
		time.Sleep(400 * time.Millisecond)
		short := limit
		short.Window = 5 * time.Second
		c.keeper.Load().mu.Lock()
		for i := range maxFallbackDebts {
			c.keeper.Load().debts.addDebt(&counters.Op{Key: keyOf(i), Limit: &short, Cost: 1},
				takeRecordNow(&short, now()), 1, true)
		}
		c.keeper.Load().mu.Unlock()
		i := f.keysOf(a, b, 1)[0] + maxFallbackDebts
		decideAlone(t, c, i, counters.Admitted)
		if st := c.keeper.Load().Stats(); st.Debts != maxFallbackDebts || st.DebtsDropped != 1 {
			t.Errorf("have %d debts, %d dropped", st.Debts, st.DebtsDropped)
		}
		time.Sleep(21 * time.Second)
		expect.Equal(t, c.keeper.Load().Stats().Debts, 0, "debts")
	})
}

// Debts of inline subjects take at most half of each bound, in fallback and in
// all. The other half is left for rules.
func TestInlineDebtsLeaveHalf(t *testing.T) {
	start := algorithms.At(time.Unix(1e9, 0))
	fresh := func() *debts {
		l := newDebts(&Config{})
		return &l
	}
	ds := fresh()
	op := func(i int, inline bool) *counters.Op {
		k := keyOf(i)
		k.Counter += 1 << 60
		if inline {
			k.Counter = counters.InlineCounter(k.Counter)
		}
		return &counters.Op{Key: k, Limit: &limit, Cost: 1}
	}
	// owe records debts until there is no room for more, and returns their number.
	owe := func(first int, inline, alone bool) (n int) {
		for i := first; i < first+2*maxDebts; i++ {
			one := op(i, inline)
			if !alone && !ds.hasRoom([]counters.Op{*one}) || !ds.addDebt(one, takeRecordNow(&limit, start), 1, alone) {
				break
			}
			n++
		}
		return n
	}
	for _, tt := range []struct {
		inline, alone bool
		want          int
	}{
		{true, true, maxFallbackDebts / 2}, {false, true, maxFallbackDebts / 2}, {true, true, 0},
		{true, false, maxDebts/2 - maxFallbackDebts/2},
		{false, false, maxDebts/2 - maxFallbackDebts/2}, {true, false, 0},
	} {
		expect.Equal(t, owe(ds.total, tt.inline, tt.alone), tt.want, "%+v", tt)
	}
	if ds.total != maxDebts || ds.inlineTotal != maxDebts/2 {
		t.Errorf("have %d debts, %d of them inline", ds.total, ds.inlineTotal)
	}
	again := fresh()
	if n, err := again.restore(ds.append(nil, start), start); n != maxDebts || err != nil ||
		again.inlineTotal != maxDebts/2 {
		t.Errorf("restored %d debts, %d of them inline, %v", n, again.inlineTotal, err)
	}
	for p := range ds.byPartition {
		for _, d := range ds.inOrder(p) {
			ds.remove(d)
		}
	}
	if ds.total != 0 || ds.inlineTotal != 0 {
		t.Errorf("have %d debts left, %d of them inline", ds.total, ds.inlineTotal)
	}
}

// Debts outlive the process. The next one reports them, once.
func TestG7_DebtsOutliveTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		keys := f.keysOf(a, b, 10)
		f.net.Isolate(c.ip)
		time.Sleep(400 * time.Millisecond)
		before := c.keeper.Load().DebtChanges()
		for _, i := range keys {
			decideAlone(t, c, i, counters.Admitted)
		}
		if c.keeper.Load().DebtChanges() == before {
			t.Error("DebtsChanged has not changed")
		}
		text := c.keeper.Load().AppendDebts(nil)
		c.kill()
		time.Sleep(50 * time.Millisecond)
		c.restart()
		for range 2 {
			if n, err := c.keeper.Load().RestoreDebts(text); err != nil || n != 0 && n != len(keys) {
				t.Errorf("have %d, %v", n, err)
			}
		}
		f.net.Rejoin(c.ip)
		f.bring(c)
		f.settle()
		time.Sleep(5 * time.Second)
		if n := c.keeper.Load().Stats().Debts; n != 0 || !f.usedIs(keys, 1) {
			t.Errorf("have %d debts left, %d used", n, f.used(keyOf(keys[0])))
		}
	})
}

// Decoding any debts from disk ends, and yields nothing out of bounds.
func FuzzDebts(f *testing.F) {
	newKeeper := func() *Keeper {
		k := &Keeper{config: Config{Now: func() algorithms.Instant { return algorithms.At(time.Unix(1e9, 0)) }}}
		k.adopted.Store(&adoptedState{State: agreement.New()})
		k.debts = newDebts(&k.config)
		return k
	}
	k := newKeeper()
	k.debts.addDebt(&counters.Op{Key: keyOf(1), Limit: &limit, Cost: 3},
		takeRecordNow(&limit, k.config.Now()), 2, false)
	f.Add(k.AppendDebts(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		k := newKeeper()
		if _, err := k.RestoreDebts(b); err != nil {
			return
		}
		for p := range k.debts.byPartition {
			for _, d := range k.debts.inOrder(p) {
				if d.cost < 1 || d.lacking < 0 || d.lacking > d.cost || d.limit.Amount < 0 ||
					d.isExpired(k.config.Now()) {
					t.Errorf("have %+v", d)
				}
			}
		}
		again := newKeeper()
		if n, err := again.RestoreDebts(k.AppendDebts(nil)); err != nil || n != k.debts.total {
			t.Errorf("restored %d of %d, %v", n, k.debts.total, err)
		}
	})
}
