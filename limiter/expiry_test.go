package limiter

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
)

var (
	refundAll = &OnExpiry{}
	charge10  = &OnExpiry{Costs: []UnitCost{{"tokens", 10}}}
)

// reserveTokens reserves tokens of one subject, until the end of a second.
func (n *testNode) reserveTokens(rule, key string, cost int64, e *OnExpiry) string {
	q := tokens(rule, key, cost)
	q.OnExpiry = e
	return n.reserve(q, time.Second)
}

const threeRules = `rules:
  - {name: a, key: [a], usage: monthly, limits: [{limit: 1000, per: 24h, algorithm: fixed-window, unit: tokens}]}
  - {name: b, key: [b], usage: monthly, limits: [{limit: 1000, per: 24h, algorithm: token-bucket, unit: tokens}]}
  - {name: l, key: [l], consistency: local, usage: monthly, limits: [{limit: 3000, per: 24h, algorithm: fixed-window, unit: tokens}]}
  - {name: kept, key: [k], reservations: {on_expiry: charge}, limits: [{limit: 1000, per: 24h, unit: tokens}]}`

// What is not settled in time stays charged, comes back, or is replaced, as the
// reservation says: once, at every owner, and on the bill, whichever node is
// asked.
func TestEndsAreCarriedOut(t *testing.T) {
	for name, tt := range map[string]struct {
		end  *OnExpiry
		want int64 // that stays charged of 100
	}{
		"charge": {nil, 100},
		"refund": {refundAll, 0},
		"costs":  {charge10, 10},
		"all":    {&OnExpiry{Costs: []UnitCost{{"tokens", 100}}}, 100},
		"others": {&OnExpiry{Costs: []UnitCost{{"apples", 0}}}, 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nextWindow(24 * time.Hour)
				for _, size := range []int{1, 3} {
					w := newTestCluster(t, size, threeRules)
					bill := w.useMeter()
					a, b := w.keyOf("a", w.nodes[0], nil), w.keyOf("b", w.nodes[size-1], nil)
					for i, n := range w.nodes {
						l := fmt.Sprint("l", i)
						q := Query{Attributes: attrs("a", a, "b", b, "l", l),
							Costs: []UnitCost{{"tokens", 100}}, OnExpiry: tt.end}
						id := n.reserve(q, time.Second)
						if id == "" {
							t.Fatal("refused")
						}
						time.Sleep(900 * time.Millisecond)
						expect.Equal(t, n.used("l", l), 100, "used before the end")
						time.Sleep(time.Second)
						for rule, key := range map[string]string{"a": a, "b": b, "l": l} {
							want := tt.want
							if rule != "l" {
								want *= int64(i + 1)
							}
							if got := n.used(rule, key); got < want-1 || got > want { // a bucket drains
								t.Errorf("%d nodes, at %d: %d are used of %s, want %d", size, i, got, rule, want)
							}
							expect.Equal(t, bill.billed(fmt.Sprintf("%s[%s] tokens", rule, key)),
								want, "%d nodes, at %d: billed of %s", size, i, rule)
						}
					}
					if got := int64(0); tt.end != nil {
						for _, n := range w.nodes {
							got += n.figure("reservation_ends_total", "carried-out")
						}
						if got != int64(size) {
							t.Errorf("%d ends were carried out, want %d", got, size)
						}
					}
				}
			})
		})
	}
}

// What is settled in time is not touched at the end.
func TestWhatIsSettledHasNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(24 * time.Hour)
		w := newTestCluster(t, 3, threeRules)
		n := w.nodes[0]
		for i, owner := range w.nodes {
			a, l := w.keyOf("a", owner, nil), fmt.Sprint("l", i)
			q := Query{Attributes: attrs("a", a, "l", l), Costs: []UnitCost{{"tokens", 100}}, OnExpiry: refundAll}
			id := n.reserve(q, time.Second)
			w.nodes[2].settleTokens(id, 30)
			time.Sleep(3 * time.Second)
			expect.Equal(t, n.used("a", a), 30, "used")
			if got := n.used("l", l); got != 30 {
				t.Errorf("%d are used of the local rule, want the 30 of the settling elsewhere", got)
			}
		}
	})
}

// A late settlement replaces what the end has left, once. In another window, or
// another life of the counter, it corrects the bill only.
func TestLateSettlings(t *testing.T) {
	for name, tt := range map[string]struct {
		end  *OnExpiry
		used int64
		late time.Duration // after the end
		do   func(w *testCluster, key string)
		want int64 // used afterwards; −1: the settlement is refused
	}{
		"charged, less":        {nil, 40, time.Second, nil, 40},
		"charged, more":        {nil, 140, time.Second, nil, 140},
		"charged, nothing":     {nil, 0, 9 * time.Minute, nil, 0},
		"refunded, some":       {refundAll, 40, time.Second, nil, 40},
		"refunded, more":       {refundAll, 140, 9 * time.Minute, nil, 140},
		"refunded, nothing":    {refundAll, 0, time.Second, nil, 0},
		"replaced, less":       {charge10, 4, time.Second, nil, 4},
		"replaced, more":       {charge10, 40, time.Second, nil, 40},
		"too late":             {nil, 40, 10*time.Minute + 2*time.Second, nil, -1},
		"too late, refunded":   {refundAll, 40, 12 * time.Minute, nil, -1},
		"reset before":         {nil, 140, time.Second, resetSubject, 0},
		"reset before, refund": {refundAll, 40, time.Second, resetSubject, 0},
		"another lineage":      {nil, 140, time.Second, anotherLineage, 100},
		"another owner":        {refundAll, 40, time.Second, anotherOwner, 40},
		"unscheduled, some":    {refundAll, 40, time.Second, nil, 40},
		"unscheduled, more":    {charge10, 140, 9 * time.Minute, nil, 140},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nextWindow(24 * time.Hour)
				w := newTestCluster(t, 3, threeRules)
				bill := w.useMeter()
				n, a := w.nodes[0], w.keyOf("a", w.nodes[1], nil)
				home := w.nodes[1]
				if strings.HasPrefix(name, "unscheduled") { // the home makes the place, and does not answer afterwards
					w.listen(func(m peer.Method) {
						if m == MethodSettle {
							w.change(func() { w.slow[home.id] = time.Hour })
						}
					})
				}
				id := n.reserveTokens("a", a, 100, tt.end)
				w.change(func() { w.detail, w.slow[home.id] = nil, 0 })
				time.Sleep(time.Second + tt.late)
				home.table.Sweep(home.clock.Now(), 1)
				if tt.do != nil {
					tt.do(w, a)
				}

				s, err := w.nodes[2].Settle(id, []UnitCost{{"tokens", tt.used}})
				if tt.want < 0 {
					if !errors.Is(err, ErrUnknownReservation) {
						t.Fatalf("%+v, %v, want it to be unknown", s, err)
					}
					return
				}
				if err != nil || !s.Late || s.Repeated {
					t.Fatalf("%+v, %v, want it to be late", s, err)
				}
				again, err := n.Settle(id, []UnitCost{{"tokens", 7}})
				if err != nil || !again.Repeated {
					t.Fatalf("again: %+v, %v", again, err)
				}
				again.Repeated = false
				if !reflect.DeepEqual(again, s) {
					t.Errorf("the same again: %+v, want %+v", again, s)
				}
				expect.Equal(t, n.used("a", a), tt.want, "used")
				expect.Equal(t, bill.billed("a["+a+"] tokens"), tt.used, "billed")
			})
		})
	}
}

func resetSubject(w *testCluster, key string) {
	if _, err := w.nodes[0].Reset(&Query{Rule: "a", Key: []string{key}}); err != nil {
		w.t.Fatal(err)
	}
}

func anotherLineage(w *testCluster, key string) { w.beginLineage(w.partition("a", key)) }

func anotherOwner(w *testCluster, key string) { w.handOver(w.partition("a", key), w.nodes[2]) }

// Over several owners, a late settlement charges and gives back at all of them,
// but not in windows that have begun since.
func TestLateSettlingsOfSeveralOwners(t *testing.T) {
	const text = `rules:
  - {name: a, key: [a], limits: [{limit: 1000, per: 24h, algorithm: ALGORITHM, unit: tokens}]}
  - {name: b, key: [b], limits: [{limit: 1000, per: 24h, algorithm: ALGORITHM, unit: tokens}]}
  - {name: s, key: [b], limits: [{limit: 1000, per: 10s, algorithm: ALGORITHM, unit: tokens}]}`
	for _, algorithm := range []string{"fixed-window", "sliding-window", "sliding-window-log",
		"token-bucket", "leaky-bucket"} {
		for _, end := range []*OnExpiry{nil, refundAll, charge10} {
			for _, used := range []int64{0, 5, 50, 150} {
				synctest.Test(t, func(t *testing.T) {
					nextWindow(24 * time.Hour)
					w := newTestCluster(t, 3, strings.ReplaceAll(text, "ALGORITHM", algorithm))
					n, a, b := w.nodes[0], w.keyOf("a", w.nodes[1], nil), w.keyOf("b", w.nodes[2], nil)
					q := Query{Attributes: attrs("a", a, "b", b), Costs: []UnitCost{{"tokens", 100}}, OnExpiry: end}
					id := n.reserve(q, time.Second)
					time.Sleep(25 * time.Second)
					n.settleTokens(id, used)
					synctest.Wait()
					for rule, key := range map[string]string{"a": a, "b": b, "s": b} {
						want := used
						if rule == "s" {
							want = 0
						}
						if got := n.used(rule, key); got < want-1 || got > want+1 { // a bucket drains, and rounds up
							t.Errorf("%s, on expiry %v: %d are used of %s, want %d", algorithm, end, got, rule, want)
						}
					}
				})
			}
		}
	}
}

// The end is carried out by whichever node owns the home then. If that has lost
// counters, nothing comes back.
func TestEndsAfterTheHomeMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(24 * time.Hour)
		w := newTestCluster(t, 3, threeRules)
		n, owner := w.nodes[0], w.nodes[1]

		moved := w.keyOf("a", owner, nil)
		n.reserveTokens("a", moved, 100, refundAll)
		w.handOver(w.partition("a", moved), w.nodes[2])
		time.Sleep(2 * time.Second)
		expect.Equal(t, n.used("a", moved), 0, "handed over: used")
		w.handOver(w.partition("a", moved), owner) // it knows that this was carried out
		time.Sleep(2 * time.Second)

		begun := w.keyOf("a", owner, nil)
		n.reserveTokens("a", begun, 100, refundAll)
		w.beginLineage(w.partition("a", begun))
		time.Sleep(2 * time.Second)
		expect.Equal(t, n.used("a", begun), 100, "from a copy: used")

		lapsed := w.keyOf("a", w.nodes[2], nil)
		n.reserveTokens("a", lapsed, 100, refundAll)
		w.nodes[2].authority.Store(false)
		time.Sleep(5 * time.Second)
		w.nodes[2].authority.Store(true)
		time.Sleep(2 * time.Second)
		expect.Equal(t, n.used("a", lapsed), 0, "without authority at the end: used")
	})
}

// A standby that has the place when its owner dies carries the end out, unless the owner has.
func TestEndsAfterTheHomeDied(t *testing.T) {
	for _, died := range []time.Duration{0, 2 * time.Second} { // after it was reserved
		synctest.Test(t, func(t *testing.T) {
			nextWindow(24 * time.Hour)
			w := newTestCluster(t, 3, threeRules)
			bill := w.useMeter()
			n, owner, next := w.nodes[0], w.nodes[1], w.nodes[2]
			key := w.keyOf("a", owner, nil)
			p := w.partition("a", key)
			id := n.reserveTokens("a", key, 100, refundAll)
			time.Sleep(died)
			if err := owner.table.Copy(p, func(records []counters.Record) error {
				for _, r := range records {
					next.table.Put(next.clock.Now(), r)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			owner.authority.Store(false)
			owner.table.Shut(p)
			owner.table.Drop(p)
			w.change(func() {
				w.place[p].owner = next.id
				w.place[p].lineage += 1000
			})
			next.table.Open(p, w.place[p].lineage)

			time.Sleep(4 * time.Second)
			want := int64(100) // its cost may have been taken after the copy
			if died > time.Second {
				want = 0
			}
			expect.Equal(t, next.used("a", key), want, "died after %v: used", died)
			expect.Equal(t, bill.billed("a["+key+"] tokens"), 0, "died after %v: billed", died)
			if s, err := n.Settle(id, []UnitCost{{"tokens", 40}}); err != nil || !s.Late {
				t.Errorf("late: %+v, %v", s, err)
			}
			if got := next.used("a", key); got != want {
				t.Errorf("died after %v, and settled late: %d are used, want %d as before", died, got, want)
			}
		})
	}
}

// A reservation whose home can't keep what is to be done at its end is refused
// if there is no room, and takes nothing.
func TestEndsNeedRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(24 * time.Hour)
		w := (&testCluster{t: t, room: 1000}).start(1, threeRules)
		n := w.nodes[0]
		q := tokens("a", "x", 100)
		q.OnExpiry = refundAll
		var a Answer
		for range 10 {
			id, err := n.Reserve(&q, time.Second, &a)
			if errors.Is(err, ErrTooManyReservations) {
				break
			}
			expect.NoError(t, err)
			n.settleTokens(id, 0)
		}
		expect.Equal(t, n.used("a", "x"), 0, "used")
	})
}

// A reservation may not ask for more at its end than it reserves, nor for what a rule forbids.
func TestForbiddenEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(24 * time.Hour)
		w := newTestCluster(t, 2, threeRules)
		for name, q := range map[string]Query{
			"more": {Rule: "a", ByKey: true, Key: []string{"x"},
				Costs: []UnitCost{{"tokens", 9}}, OnExpiry: charge10},
			"no cost":     {Rule: "a", ByKey: true, Key: []string{"x"}, OnExpiry: charge10},
			"forbidden":   {Rule: "kept", ByKey: true, Key: []string{"x"}, OnExpiry: refundAll},
			"one of them": {Attributes: attrs("a", "x", "k", "x"), OnExpiry: refundAll},
		} {
			var a Answer
			if id, err := w.nodes[0].Reserve(&q, time.Second, &a); !errors.Is(err, ErrOnExpiry) || id != "" {
				t.Errorf("%s: %q, %v", name, id, err)
			}
		}
		expect.Equal(t, w.nodes[0].used("a", "x"), 0, "used")
	})
}

// A reservation with an id is made once, and has one end.
func TestEndsOfReservationsWithAnID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(24 * time.Hour)
		w := newTestCluster(t, 3, threeRules)
		key := w.keyOf("a", w.nodes[2], nil)
		q := tokens("a", key, 100)
		q.OnExpiry, q.RequestID = charge10, "one"
		ids := map[string]bool{}
		for _, n := range w.nodes {
			ids[n.reserve(q, time.Second)] = true
		}
		time.Sleep(3 * time.Second)
		if got := w.nodes[0].used("a", key); got != 10 || len(ids) != 1 {
			t.Errorf("%d are used after %d reservations, want 10 after one", got, len(ids))
		}
		q.OnExpiry = nil
		var a Answer
		if _, err := w.nodes[0].Reserve(&q, time.Second, &a); !errors.Is(err, ErrRequestIDReused) {
			t.Errorf("the same id with another end: %v", err)
		}
	})
}

// Late settlements give way to new reservations, and a bucket then takes
// nothing back of which it has forgotten the rates.
func TestLateSettlingsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(24 * time.Hour)
		w := newTestCluster(t, 1, threeRules)
		n := w.nodes[0]
		both := Query{Attributes: attrs("a", "x", "b", "x"), Costs: []UnitCost{{"tokens", 100}}}
		dropped, inTime := n.reserve(both, time.Second), n.reserve(both, time.Hour)
		time.Sleep(90 * time.Second)
		n.table.Notes().BoundReservations(500)
		n.table.Sweep(n.clock.Now(), 1)
		n.table.Notes().BoundReservations(counters.DefaultReservationBytes)
		if s, err := n.Settle(dropped, nil); !errors.Is(err, ErrUnknownReservation) {
			t.Errorf("its room was needed: %+v, %v", s, err)
		}
		n.settleTokens(inTime, 0)
		for _, rule := range []string{"a", "b"} {
			if got := n.used(rule, "x"); got < 98 || got > 100 {
				t.Errorf("%d are used of %s, want 100", got, rule)
			}
		}
	})
}

// A node without authority does not wait for a partition that it can't decide
// then: its caller learns at once that no owner is known.
func TestSettleWithoutAuthorityDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(24 * time.Hour)
		w := newTestCluster(t, 3, threeRules)
		n := w.nodes[0]
		key := w.keyOf("a", n, nil)
		p := w.partition("a", key)
		id := n.reserveTokens("a", key, 100, nil)

		n.authority.Store(false)
		w.change(func() { w.place[p].frozen = true })
		n.table.Shut(p)
		for _, other := range w.nodes[1:] {
			w.setCut(n, other, true)
		}

		began := time.Now()
		_, err := n.Settle(id, []UnitCost{{"tokens", 40}})
		expect.ErrorIs(t, err, ErrNoOwner, "settle")
		if took := time.Since(began); took > 50*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}
