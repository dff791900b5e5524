package partitions

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
)

// fill takes once from each key in [from, to), and counts the hits in l. All must be admitted.
func (f *fleet) fill(t *testing.T, l *[]int64, from, to int) {
	t.Helper()
	for len(*l) < to {
		*l = append(*l, 0)
	}
	for i := from; i < to; i++ {
		if _, ok, err := f.take(f.living()[i%len(f.living())], keyOf(i)); err != nil || !ok {
			t.Fatalf("key %d: %v, %v", i, ok, err)
		}
		(*l)[i]++
	}
}

// same checks that no hit was forgotten or counted twice.
func (f *fleet) same(t *testing.T, admitted []int64) {
	t.Helper()
	wrong := 0
	for i, want := range admitted {
		if used := f.used(keyOf(i)); used != want {
			wrong++
			if wrong <= 5 {
				t.Errorf("key %d: have %d used, want %d", i, used, want)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d keys of %d are wrong", wrong, len(admitted))
	}
}

// A node that gets no copies for a while, and then gets them again, gets the
// changes made meanwhile, even if it did not notice the interruption.
func TestG5_ACopyTargetThatWasAwayGetsACompleteCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b := f.nodes[0], f.nodes[1]
		var admitted []int64
		f.fill(t, &admitted, 0, 300)
		f.leave(b)
		f.waitSettled()
		b.lag.Store(int64(time.Second)) // b adopts the end of this move and the beginning of the next together
		f.settleWithLag(b)
		f.fill(t, &admitted, 0, 300)
		time.Sleep(300 * time.Millisecond)
		f.ring(f.nodes...)
		time.Sleep(time.Second)
		b.lag.Store(0)
		f.settle()
		f.fill(t, &admitted, 0, 100)
		time.Sleep(500 * time.Millisecond)
		f.same(t, admitted)
		a.kill()
		time.Sleep(2100 * time.Millisecond)
		f.end(a)
		f.settle()
		f.same(t, admitted)
	})
}

// A standby that answers nothing for some seconds misses the reset of a
// counter. The complete copy that it gets afterwards lacks the counter, so the
// standby resets it as well, and keeps the others.
func TestG6_AResetThatTheStandbyMissed(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		key := keyOf(f.keysOf(a, b, 1)[0])
		other := key
		other.Counter++
		for _, k := range []counters.Key{key, other} {
			if v := a.table.Load().Take(now(),
				[]counters.Op{{Key: k, Limit: &limit, Cost: 5}}); v != counters.Admitted {
				t.Fatal(v)
			}
		}
		time.Sleep(300 * time.Millisecond)
		b.muted.Store(true)
		expect.NoError(t,
			a.table.Load().Amend(now(),
				&counters.Amendment{Ops: []counters.Op{{Key: key, Limit: &limit}}, Reset: counters.ResetSubject}))
		_ = a.table.Load().DrainChanges(func([]counters.Record) error { return nil }) // a checkpoint
		time.Sleep(2 * pushTimeout)
		a.table.Load().Sweep(now(), 1)
		b.muted.Store(false)
		time.Sleep(3 * time.Second)
		if used, _ := b.table.Load().Usage(now(), key, &limit); used != 0 {
			t.Errorf("the standby has %d used, want 0", used)
		}
		f.leave(a)
		f.settle()
		expect.Equal(t, f.used(key), 0, "the next owner has used")
		expect.Equal(t, f.used(other), 5, "the next owner has used of the other counter")
	})
}

// settleWithLag is settle while one node applies states late.
func (f *fleet) settleWithLag(*node) { f.agree(agreement.SettleMove{Epoch: f.state.Epoch}) }

// A partition keeps its owner, and its standby changes to another node and
// back. The old standby has dropped its copy by then, and gets a new one.
func TestG5_AStandbyThatComesBackGetsACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, d := f.nodes[0], f.add()
		var admitted []int64
		f.fill(t, &admitted, 0, 300)
		f.bring(d)
		f.ring(f.nodes...)
		f.settle()
		time.Sleep(time.Second)
		d.kill()
		time.Sleep(2100 * time.Millisecond)
		f.end(d)
		f.settle()
		time.Sleep(time.Second)
		for _, n := range f.living() {
			if st := n.keeper.Load().Stats(); st.Uncopied > 0 {
				t.Errorf("%s: %+v", n.ip, st)
			}
		}
		a.kill()
		time.Sleep(2100 * time.Millisecond)
		f.end(a)
		f.settle()
		f.same(t, admitted)
	})
}

// actAsStandby decides one check at n as the standby of an owner that can't be reached.
func actAsStandby(t *testing.T, n *node, i int) {
	t.Helper()
	ops := []counters.Op{{Key: keyOf(i), Limit: &limit, Cost: 1}}
	share := limit
	share.Amount /= 3
	if v := n.keeper.Load().DecideAsStandby(now(), ops, []algorithms.Limit{share},
		Unreachable); v != counters.Admitted {
		t.Fatalf("%s acts: %v", n.ip, v)
	}
}

// keysOf returns keys with this owner and standby in the agreed state.
func (f *fleet) keysOf(owner, standby *node, n int) (keys []int) {
	for i := 0; len(keys) < n; i++ {
		p := ringPartition(i)
		if f.state.To.Owner(p) == owner.id && f.state.To.Standby(p) == standby.id {
			keys = append(keys, i)
		}
	}
	return keys
}

// A standby has debts from a time when its owner could not be reached. They are
// not forgotten if the partition then moves to the standby, for example because
// the owner leaves.
func TestDebtsOfTheNextOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a := f.add()
		time.Sleep(50 * time.Millisecond) // a pushes half an interval before b reports
		b, c := f.add(), f.add()
		f.bring(a, b, c)
		f.ring(a, b, c)
		f.settle()
		keys := f.keysOf(a, b, 40)
		for _, i := range keys {
			if by, ok, err := f.take(a, keyOf(i)); by != a || !ok || err != nil {
				t.Fatal(by.ip, ok, err)
			}
		}
		time.Sleep(time.Second)
		f.net.Isolate(a.ip) // otherwise a third node would forward
		time.Sleep(400 * time.Millisecond)
		for _, i := range keys {
			actAsStandby(t, b, i)
			if by, ok, err := f.take(a, keyOf(i)); by != a || !ok || err != nil {
				t.Fatal(by.ip, ok, err)
			}
		}

		// The new owner's gate opens only once its own debts are in its counters.
		var early atomic.Int64
		watch := func() {
			for _, i := range keys {
				// In this order: the keeper may open the gate at any time meanwhile.
				if !b.table.Load().IsOpen(ringPartition(i)) {
					continue
				}

				used, _ := b.table.Load().Usage(now(), keyOf(i), &limit)
				if used < 3 {
					early.Add(1)
				}
			}
		}
		b.watch.Store(&watch)

		f.leave(a)
		time.Sleep(110 * time.Millisecond)
		f.net.Rejoin(a.ip)
		f.settle()
		time.Sleep(3 * time.Second)
		expect.Equal(t, early.Load(), 0, "keys whose gate was open without their debts")
		wrong := 0
		for _, i := range keys {
			if used := f.used(keyOf(i)); used != 3 {
				wrong++
			}
		}
		if wrong > 0 {
			t.Errorf("%d of %d keys do not have 3 used", wrong, len(keys))
		}
	})
}

// If the owner can't debit one debt, it still acknowledges the rest, so they
// are reported only once.
func TestDebtsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b := f.nodes[0], f.nodes[1]
		keys := f.keysOf(a, b, 10)
		f.net.Isolate(a.ip) // otherwise a third node would forward
		time.Sleep(400 * time.Millisecond)
		for _, i := range keys {
			actAsStandby(t, b, i)
		}
		a.table.Load().Shut(ringPartition(keys[0])) // as while its partition is in doubt
		f.net.Rejoin(a.ip)
		time.Sleep(5 * time.Second)
		for _, i := range keys[1:] {
			expect.Equal(t, f.used(keyOf(i)), 1, "key %d: used", i)
		}
	})
}

// During a move, the standby of the old owner does not act for it while the new
// owner has the token and can be reached: the old owner refuses checks because
// the new one decides them, not for lack of authority.
func TestNoActingForAnOwnerThatHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		d := f.add()
		f.bring(d)
		f.ring(f.nodes...)
		f.waitSettled() // all partitions are handed over, but no entry says so yet
		acted := 0
		for i := range 2000 {
			p := ringPartition(i)
			if from, to := f.state.Owners(p); from != a.id || to != d.id || !d.table.Load().IsOpen(p) {
				continue
			}
			for _, n := range []*node{b, c} {
				ops := []counters.Op{{Key: keyOf(i), Limit: &limit, Cost: 1}}
				if n.keeper.Load().DecideAsStandby(now(), ops, []algorithms.Limit{limit},
					WithoutAuthority) != counters.Undecided {
					acted++
				}
			}
		}
		if acted > 0 {
			t.Errorf("acted %d times although the owner decides", acted)
		}
	})
}

// TestUsedWhileAStandbyActs: whether its share admits or refuses, the standby
// says what is used of the whole limit.
func TestUsedWhileAStandbyActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b := f.nodes[0], f.nodes[1]
		key := keyOf(f.keysOf(a, b, 1)[0])
		for range 10 {
			f.take(a, key)
		}
		time.Sleep(time.Second)
		f.net.Isolate(a.ip)
		time.Sleep(400 * time.Millisecond)

		share := limit
		share.Amount = 3
		for i, want := range []counters.Verdict{counters.Admitted, counters.Admitted, counters.Admitted, counters.Refused} {
			ops := []counters.Op{{Key: key, Limit: &limit, Cost: 1}}
			v := b.keeper.Load().DecideAsStandby(now(), ops, []algorithms.Limit{share}, Unreachable)
			expect.Equal(t, v, want, "check %d: verdict", i)
			expect.Equal(t, ops[0].Decision.Used, min(int64(11+i), 13), "check %d: used", i)
		}
	})
}
