package partitions

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// An acknowledgement for the last window's debt leaves a newer debt of the next window alone.
func TestAcknowledgedDebtOfTheLastWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		k := f.nodes[1].keeper.Load()
		k.mu.Lock()
		key := keyOf(f.keysOf(f.nodes[0], f.nodes[1], 1)[0])
		op := &counters.Op{Key: key, Limit: &limit, Cost: 5}
		k.debts.addDebt(op, algorithms.TakeRecord{Window: 7}, 0, false)
		first := k.debts.notFinal(key)
		k.debts.makeFinal(first)
		op.Cost = 3
		k.debts.addDebt(op, algorithms.TakeRecord{Window: 8}, 0, false)
		k.mu.Unlock()
		k.handleDebtsReply(ring.NodeID{1}, []*debt{first}, []byte{debtTaken}, nil)
		k.mu.Lock()
		if list := k.debts.ofCounter(key); len(list) != 1 || list[0].cost != 3 {
			t.Errorf("got %+v, want one debt of 3", list)
		}
		k.mu.Unlock()
	})
}

// A standby sends its copies to an owner that lost its memory. It still owes
// the debts that a push has overwritten in them.
func TestPulledDebtsThatWereReplacedStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		a, b := f.nodes[0], f.nodes[1]
		keys := f.keysOf(a, b, 20)
		f.net.Isolate(a.ip) // otherwise a third node would forward
		time.Sleep(400 * time.Millisecond)
		for _, i := range keys {
			actAsStandby(t, b, i)
			if by, ok, err := f.take(a, keyOf(i)); by != a || !ok || err != nil {
				t.Fatal(by.ip, ok, err)
			}
		}
		time.Sleep(300 * time.Millisecond)
		b.keeper.Load().mu.Lock()
		b.keeper.Load().callsInFlight[callKey{a.id, MethodDebts}] = true // the report is in flight when a is killed
		b.keeper.Load().mu.Unlock()
		f.net.Rejoin(a.ip)
		time.Sleep(250 * time.Millisecond) // a's pushes arrive
		a.kill()
		time.Sleep(50 * time.Millisecond)
		b.keeper.Load().mu.Lock()
		delete(b.keeper.Load().callsInFlight, callKey{a.id, MethodDebts})
		b.keeper.Load().mu.Unlock()
		a.restart()
		time.Sleep(2100 * time.Millisecond)
		f.bring(a)
		f.settle()
		time.Sleep(1000 * time.Millisecond)
		wrong := 0
		for _, i := range keys {
			if used := f.used(keyOf(i)); used != 2 {
				wrong++
			}
		}
		if wrong > 0 {
			t.Errorf("%d of %d keys do not have 2 used", wrong, len(keys))
		}
	})
}

// Debts that an owner has acknowledged must outlive it, because the debtor then drops them.
func TestG5_AcknowledgedDebtsOutliveTheirOwner(t *testing.T) {
	// relative to the owner's interval
	for _, delay := range []time.Duration{0, 30 * time.Millisecond, 70 * time.Millisecond} {
		onThreeNodes(t, func(t *testing.T, f *fleet) {
			a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
			keys := f.keysOf(a, b, 50)
			time.Sleep(time.Second + delay)
			f.net.Cut(a.ip, c.ip)
			time.Sleep(400 * time.Millisecond)
			for _, i := range keys {
				decideAlone(t, c, i, counters.Admitted)
			}
			f.net.Heal(a.ip, c.ip)
			f.eventually("the debts are acknowledged", func() bool { return c.keeper.Load().Stats().Debts == 0 })
			a.kill()
			f.end(a)
			time.Sleep(time.Second)
			if !f.usedIs(keys, 1) {
				t.Errorf("delay %v: debts forgotten: have %d used", delay, f.used(keyOf(keys[0])))
			}
		})
	}
}

// A standby can be reached, but answers nothing. The owner acknowledges no
// debts that it lacks, so they outlive the owner.
func TestG5_DebtsThatASilentStandbyLacks(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		i := f.keysOf(a, b, 1)[0]
		f.net.Isolate(c.ip)
		time.Sleep(400 * time.Millisecond)
		decideAlone(t, c, i, counters.Admitted)
		b.muted.Store(true)
		f.net.Rejoin(c.ip)
		f.eventually("the debt is debited", func() bool { return f.used(keyOf(i)) == 1 })
		time.Sleep(2 * standbyWait)
		expect.Equal(t, c.keeper.Load().Stats().Debts, 1, "debts left")
		a.kill()
		b.muted.Store(false)
		f.end(a)
		f.settle()
		f.checkDebitedOnce(t, c, []int{i})
	})
}

// An owner whose standby can't be reached still acknowledges debts. An owner
// that stops does not wait for its standby.
func TestDebtsWithoutAStandby(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		keys := f.keysOf(a, b, 50)
		f.net.Cut(a.ip, c.ip)
		time.Sleep(400 * time.Millisecond)
		for _, i := range keys {
			decideAlone(t, c, i, counters.Admitted)
		}
		b.kill()
		f.net.Heal(a.ip, c.ip)
		f.eventually("they see each other", func() bool { return c.peers.Reachable(a.id) })
		time.Sleep(3 * time.Second)
		if n := c.keeper.Load().Stats().Debts; n != 0 || !f.usedIs(keys, 1) {
			t.Errorf("have %d debts left, %d used, want 1", n, f.used(keyOf(keys[0])))
		}
	})
}

// An owner that is ended while it waits for its standby has forgotten the
// debts, and refuses them: the debtor reports them to the next owner.
func TestDebtsOfAnOwnerThatIsEnded(t *testing.T) {
	onThreeNodes(t, func(t *testing.T, f *fleet) {
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		keys := f.keysOf(a, b, 50)
		f.net.Cut(a.ip, c.ip)
		time.Sleep(400 * time.Millisecond)
		for _, i := range keys {
			decideAlone(t, c, i, counters.Admitted)
		}
		f.net.Heal(a.ip, c.ip)
		f.eventually("they see each other", func() bool { return c.peers.Reachable(a.id) })
		f.net.DelayBetween(a.ip, b.ip, 60*time.Millisecond) // an acknowledgement takes twice as long
		f.eventually("the debts are reported", func() bool { return a.keeper.Load().debtsWaiting.Load() > 0 })
		f.net.Isolate(b.ip) // a's pushes do not arrive
		f.end(a)
		f.net.Rejoin(b.ip)
		time.Sleep(5 * time.Second)
		if n := c.keeper.Load().Stats().Debts; n != 0 || !f.usedIs(keys, 1) {
			t.Errorf("have %d debts left, %d used, want 1", n, f.used(keyOf(keys[0])))
		}
	})
}

// A node that handed a partition over acts for the next owner if that can't be
// reached before the ring is settled. Its debts are debited once: by the next
// owner when it is back, or by this node if the next owner is ended.
func TestWhoHandedOverActs(t *testing.T) {
	for _, ends := range []bool{false, true} {
		onThreeNodes(t, func(t *testing.T, f *fleet) {
			a, d := f.nodes[0], f.add()
			f.bring(d)
			f.ring(f.nodes...)
			f.waitSettled()
			var keys []int
			for i := 0; len(keys) < 20; i++ {
				if from, to := f.state.Owners(ringPartition(i)); from == a.id && to == d.id {
					keys = append(keys, i)
				}
			}
			for _, i := range keys {
				if by, ok, err := f.take(a, keyOf(i)); by != d || !ok || err != nil {
					t.Fatal(by.ip, ok, err)
				}
				ops := []counters.Op{{Key: keyOf(i), Limit: &limit, Cost: 1}}
				if v := a.keeper.Load().DecideAsStandby(now(), ops, []algorithms.Limit{limit},
					Unreachable); v != counters.Undecided {
					t.Fatalf("the node acts for an owner that can be reached: %v", v)
				}
			}
			time.Sleep(200 * time.Millisecond) // time to push
			if f.net.Isolate(d.ip); ends {
				d.kill()
			}
			time.Sleep(400 * time.Millisecond)
			for _, i := range keys {
				actAsStandby(t, a, i)
			}
			if ends {
				f.end(d)
			} else {
				f.net.Rejoin(d.ip)
			}
			f.eventually("all debts are debited", func() bool { return a.keeper.Load().Stats().Debts == 0 })
			if !f.usedIs(keys, 2) {
				t.Errorf("key %d: have %d used, want 2", keys[0], f.used(keyOf(keys[0])))
			}
		})
	}
}

// If windows begin with the first hit, a debt expires one window after it
// arose. That also holds in a process with another clock reading, and whatever
// the wall clock says.
func TestDebtsOfFirstWindowsEnd(t *testing.T) {
	l := algorithms.Limit{Kind: algorithms.FirstWindow, Amount: 5, Window: time.Minute}
	here := algorithms.Instant{Steady: 9e18, Wall: 5e18}
	there := algorithms.Instant{Steady: 3e9, Wall: 1e9}
	o := owedCost{limit: l, taken: algorithms.TakeRecord{Steady: here.Steady - 20e9}, cost: 3}
	moved := decodeOwedCost(wire.NewDecoder(o.append(nil, here)), there, 0)
	for _, tt := range []struct {
		debt *owedCost
		at   algorithms.Instant
	}{{&o, here}, {&moved, there}} {
		if left := tt.debt.timeLeft(tt.at); left != 40*time.Second {
			t.Errorf("have %v left, want 40s", left)
		}
		tt.at.Steady += 40e9
		if !tt.debt.isExpired(tt.at) {
			t.Errorf("have %v left after the window", tt.debt.timeLeft(tt.at))
		}
	}
}
