package limiter

import (
	"encoding/base64"
	"errors"
	"reflect"
	"strings"
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

const tokenRules = `rules:
  - name: r
    key: [k]
    limits:
      - {limit: 1000, per: 1h, algorithm: ALGORITHM, unit: tokens}
      - {limit: 100, per: 1h, algorithm: fixed-window}`

// A check that is decided a second time, because an owner has newer rules, makes
// a place of its own: the first one goes back late, as its partition moves.
func TestReserve_PlaceOfTheSecondRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const text = `rules:
  - {name: here, key: [here], limits: [{limit: 9, per: 1h, algorithm: fixed-window}]}
  - {name: there, key: [there], limits: [{limit: 9, per: 1h, algorithm: fixed-window}]}`
		w := newTestCluster(t, 3, text)
		asker, owner := w.nodes[0], w.nodes[1]
		here, there := w.keyOf("here", asker, owner), w.keyOf("there", owner, asker)
		p := w.partition("here", here)
		newer := compile(t, 2, "version: 1\n"+text)
		owner.SetRules(newer)

		var once sync.Once
		setDetail := func(f func(from, to ring.NodeID, m peer.Method, body []byte)) { w.detail = f }
		setDetail(func(from, _ ring.NodeID, m peer.Method, _ []byte) {
			if from != asker.id || m != MethodAsk {
				return
			}
			once.Do(func() {
				w.change(func() { w.place[p].frozen = true })
				asker.table.Shut(p)
				go func() {
					time.Sleep(20 * time.Millisecond)
					asker.SetRules(newer)
					time.Sleep(20 * time.Millisecond)
					asker.table.Open(p, w.place[p].lineage)
					w.change(func() { w.place[p].frozen = false })
				}()
			})
		})

		id := asker.reserve(Query{Attributes: attrs("here", here, "there", there)}, time.Minute)
		time.Sleep(3 * time.Second) // what waits has gone back, or is given up
		if _, err := asker.Settle(id, nil); err != nil {
			t.Errorf("settle: got %v, want the place of the second round to be there", err)
		}
		for rule, key := range map[string]string{"here": here, "there": there} {
			expect.Equal(t, w.nodes[2].usage(rule, key).Limits[0].Used, 0, "%s: used after a settlement of nothing", rule)
		}
	})
}

// reserve makes a reservation on n and returns its id, which is empty if the check was refused.
func (n *testNode) reserve(q Query, ttl time.Duration) string {
	n.w.t.Helper()
	var a Answer
	id, err := n.Reserve(&q, ttl, &a)
	if err != nil || (id != "") != a.Allowed {
		n.w.t.Fatalf("reserve: %v, allowed %v with id %q", err, a.Allowed, id)
	}
	return id
}

// lease asks n about a subject until it has a lease.
func (n *testNode) lease(rule, key string) {
	for range 20 {
		n.check(byKey(rule, key))
		time.Sleep(5 * time.Millisecond)
	}
}

// settleTokens settles a reservation on n.
func (n *testNode) settleTokens(id string, tokens int64) *Settlement {
	n.w.t.Helper()
	s, err := n.Settle(id, []UnitCost{{Unit: "tokens", Cost: tokens}})
	if err != nil {
		n.w.t.Fatalf("settle: %v", err)
	}
	return s
}

func tokens(rule, key string, n int64) Query {
	q := byKey(rule, key)
	q.Costs = []UnitCost{{Unit: "tokens", Cost: n}}
	return q
}

// Settling leaves exactly the real usage, through any node and with every algorithm.
func TestReservations(t *testing.T) {
	for _, algorithm := range []string{"fixed-window", "sliding-window", "sliding-window-log",
		"token-bucket", "leaky-bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nextWindow(time.Hour)
				w := newTestCluster(t, 3, strings.Replace(tokenRules, "ALGORITHM", algorithm, 1))
				for asked, n := range w.nodes {
					key := w.keyOf("r", w.nodes[1], nil)
					other := w.nodes[(asked+1)%3]
					want := n.used("r", key)
					settle := func(reserved, used, wantRemaining int64) {
						t.Helper()
						id := n.reserve(tokens("r", key, reserved), time.Minute)
						time.Sleep(10 * time.Millisecond)
						s := other.settleTokens(id, used)
						want += used
						expect.Equal(t, n.used("r", key), want, "%d of %d used", used, reserved)
						if have := []UnitCost{{"tokens", used}}; !reflect.DeepEqual(have,
							s.Costs) || s.Remaining != wantRemaining || s.Repeated {
							t.Errorf("have %+v, want remaining %d", s, wantRemaining)
						}
						// Settle again, with another cost, on another node.
						again := n.settleTokens(id, used+7)
						again.Repeated = false
						if !reflect.DeepEqual(again, s) || n.used("r", key) != want {
							t.Errorf("settled twice: have %+v and %d, want %+v and %d", again,
								n.used("r", key), s, want)
						}
					}
					settle(100, 40, 1000-want-40)
					settle(100, 100, 1000-want-100)
					settle(10, 30, 1000-want-30)
					if _, err := n.Reset(&Query{Rule: "r", Key: []string{key}}); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

func TestReservationOfSeveralUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 3, strings.Replace(tokenRules, "ALGORITHM", "fixed-window", 1))
		n, key := w.nodes[0], w.keyOf("r", w.nodes[1], nil)
		used := func() [2]int64 {
			u, err := n.Usage(&Query{Rule: "r", Key: []string{key}})
			expect.NoError(t, err)
			return [2]int64{u.Limits[0].Used, u.Limits[1].Used}
		}
		expect := func(want [2]int64) {
			t.Helper()
			expect.Equal(t, used(), want, "used")
		}
		id := n.reserve(tokens("r", key, 50), time.Minute)
		expect([2]int64{50, 1})
		if s, err := n.Settle(id, nil); err != nil || len(s.Costs) != 2 {
			t.Errorf("cancel: have %+v, %v", s, err)
		}
		expect([2]int64{0, 0})
		id = n.reserve(tokens("r", key, 0), time.Minute)
		expect([2]int64{0, 1})
		n.settleTokens(id, 20) // none of it was reserved
		expect([2]int64{20, 1})
		// A unit that no limit has is ignored.
		id = n.reserve(tokens("r", key, 5), time.Minute)
		if s, err := n.Settle(id, []UnitCost{{"apples", 4}}); err != nil || len(s.Costs) != 0 {
			t.Errorf("have %+v, %v", s, err)
		}
		expect([2]int64{25, 2})
		if id := n.reserve(tokens("r", key, 976), time.Minute); id != "" {
			t.Error("reserved more than is available")
		}
		expect([2]int64{25, 2})
	})
}

// Each subject's part comes back, however often another one was reset.
func TestReservationOfSeveralSubjectsWithoutACluster(t *testing.T) {
	l := open(t, `
rules:
  - {name: a, key: [a], limits: [{limit: 10, per: 1h, algorithm: fixed-window}]}
  - {name: b, key: [b], limits: [{limit: 10, per: 1h, algorithm: fixed-window}]}
`)
	second := byKey("b", "x")
	_, err := l.Reset(&second)
	expect.NoError(t, err)

	var a Answer
	both := Query{Attributes: attrs("a", "x", "b", "x"), Costs: []UnitCost{{Unit: "requests", Cost: 4}}}
	id, err := l.Reserve(&both, time.Minute, &a)
	expect.NoError(t, err)
	_, err = l.Settle(id, []UnitCost{{Unit: "requests", Cost: 1}})
	expect.NoError(t, err)

	for _, rule := range []string{"a", "b"} {
		q := byKey(rule, "x")
		usage, err := l.Usage(&q)
		expect.NoError(t, err)
		expect.Equal(t, usage.Limits[0].Used, 1, "used of rule %s", rule)
	}
}

func TestReservationsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 2, strings.Replace(tokenRules, "ALGORITHM", "fixed-window", 1))
		n, key := w.nodes[0], w.keyOf("r", w.nodes[1], nil)
		late, settled := n.reserve(tokens("r", key, 50), time.Second), n.reserve(tokens("r", key, 50), time.Second)
		n.settleTokens(settled, 20)
		time.Sleep(1100 * time.Millisecond)
		unknown := func(what, id string) {
			t.Helper()
			if s, err := n.Settle(id, nil); !errors.Is(err, ErrUnknownReservation) {
				t.Errorf("%s: have %+v, %v", what, s, err)
			}
		}
		if s, err := n.Settle(late, []UnitCost{{"tokens", 50}}); err != nil || !s.Late {
			t.Errorf("a second after its time: have %+v, %v", s, err)
		}
		if s := n.settleTokens(settled, 3); !s.Repeated || s.Costs[0].Cost != 20 {
			t.Errorf("settled in time, asked again later: have %+v", s)
		}
		expect.Equal(t, n.used("r", key), 70, "used")
		time.Sleep(2 * time.Minute)
		unknown("long after", settled)
		unknown("nothing", "")
		unknown("not base64", "???")
		id := n.reserve(tokens("r", key, 1), time.Minute)
		raw, err := base64.RawURLEncoding.DecodeString(id)
		expect.NoError(t, err)
		for i := range raw {
			raw[i] ^= 1
			unknown("forged", base64.RawURLEncoding.EncodeToString(raw))
			raw[i] ^= 1
		}
		n.settleTokens(id, 0)
	})
}

// A reservation over subjects with several owners is settled at all of them.
func TestReservationOfSeveralOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 3, `rules:
  - {name: a, key: [a], limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: b, key: [b], limits: [{limit: 1000, per: 1h, algorithm: token-bucket, unit: tokens}]}
  - {name: s, key: [a], shadow: true, limits: [{limit: 10, per: 1h, algorithm: fixed-window, unit: tokens}]}`)
		for _, n := range w.nodes {
			a, b := w.keyOf("a", w.nodes[0], nil), w.keyOf("b", w.nodes[1], nil)
			q := Query{Attributes: []rules.Attribute{{Name: "a", Value: a}, {Name: "b", Value: b}},
				Costs: []UnitCost{{"tokens", 100}}}
			usedA, usedB := n.used("a", a), n.used("b", b)
			for _, used := range []int64{30, 250} {
				id := n.reserve(q, time.Minute)
				w.nodes[2].settleTokens(id, used)
				w.nodes[1].settleTokens(id, used)
				usedA, usedB = usedA+used, usedB+used
				synctest.Wait()
				if haveA, haveB := n.used("a", a), n.used("b", b); haveA != usedA || haveB != usedB {
					t.Errorf("have %d and %d used, want %d and %d", haveA, haveB, usedA, usedB)
				}
			}
			expect.Equal(t, n.used("s", a), 0, "a shadow limit that refused has used")
		}
	})
}

// After a hand-over a settlement still gives cost back. A copy that may lack
// debits takes nothing back, but is charged.
func TestReservationAndLineage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 3, strings.Replace(tokenRules, "ALGORITHM", "fixed-window", 1))
		n, key := w.nodes[0], w.keyOf("r", w.nodes[1], nil)
		p := w.partition("r", key)
		id, settled := n.reserve(tokens("r", key, 100), time.Minute), n.reserve(tokens("r", key, 100), time.Minute)
		n.settleTokens(settled, 90)
		w.handOver(p, w.nodes[2])
		n.settleTokens(id, 10)
		if s := n.settleTokens(settled, 1); !s.Repeated {
			t.Error("the hand-over lost the settlement")
		}
		expect.Equal(t, n.used("r", key), 100, "handed over: used")
		less, more := n.reserve(tokens("r", key, 100), time.Minute), n.reserve(tokens("r", key, 100), time.Minute)
		w.beginLineage(p)
		n.settleTokens(less, 10)
		n.settleTokens(more, 150)
		expect.Equal(t, n.used("r", key), 350, "after its owner's death: used")
		var dropped int64
		for _, n := range w.nodes {
			dropped += n.figure("refunds_dropped_total")
		}
		expect.Equal(t, dropped, 1, "refunds dropped")
	})
}

// Nothing is given back in a lineage that begins in the last moment before the
// change: neither by a settlement, at the home or elsewhere, nor by a check
// that is rolled back.
func TestALineageBeginsWhileCostIsGivenBack(t *testing.T) {
	for what, tt := range map[string]struct {
		rule    string // whose partition begins the lineage
		reading int32  // of the owner's authority, after which it begins; 0: when another node is asked
	}{"home": {"a", 1}, "other subject": {"b", 2}, "check": {"a", 0}} {
		w := newTestCluster(t, 2, `rules:
  - {name: a, key: [a], limits: [{limit: 1000, per: 1440h, algorithm: fixed-window, unit: tokens}]}
  - {name: b, key: [b], limits: [{limit: 1000, per: 1440h, algorithm: fixed-window, unit: tokens}]}
  - {name: c, key: [c], limits: [{limit: 1, per: 1440h, algorithm: fixed-window, unit: tokens}]}`)
		n := w.nodes[0]
		a, b, c := w.keyOf("a", n, nil), w.keyOf("b", n, nil), w.keyOf("c", w.nodes[1], nil)
		key := map[string]string{"a": a, "b": b}[tt.rule]
		id := n.reserve(Query{Attributes: attrs("a", a, "b", b), Costs: []UnitCost{{"tokens", 100}}}, time.Minute)
		begun := false
		begin := func() {
			begun = true
			n.asked.Store(nil)
			p := w.partition(tt.rule, key)
			n.table.Shut(p)
			n.table.Drop(p) // the new lineage continues from a copy without the cost
			w.change(func() { w.place[p].lineage += 1000 })
			n.table.Open(p, w.place[p].lineage)
			if q := tokens(tt.rule, key, 200); !n.check(q).Allowed {
				t.Error("refused")
			}
		}

		if what == "check" {
			w.detail = func(_, _ ring.NodeID, m peer.Method, _ []byte) {
				if m == MethodAsk && !begun {
					begin()
				}
			}
			if q := (Query{Attributes: attrs("a", a, "c", c), Costs: []UnitCost{{"tokens", 100}}}); n.check(q).Allowed {
				t.Error("admitted")
			}
		} else {
			var readings atomic.Int32
			read := func() {
				if readings.Add(1) == tt.reading {
					begin()
				}
			}
			n.asked.Store(&read)
			n.settleTokens(id, 0)
		}
		if have := n.used(tt.rule, key); !begun || have != 200 {
			t.Errorf("%s: have %d used in the new lineage, want 200", what, have)
		}
	}
}

func TestSettlingFindsItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 3, strings.Replace(tokenRules, "ALGORITHM", "fixed-window", 1))
		n, owner := w.nodes[0], w.nodes[1]
		key := w.keyOf("r", owner, nil)
		id := n.reserve(tokens("r", key, 100), time.Minute)
		w.setCut(n, owner, true)
		w.setCut(n, w.nodes[2], true)
		if s, err := n.Settle(id, nil); !errors.Is(err, ErrNoOwner) {
			t.Errorf("cut off: have %+v, %v", s, err)
		}
		w.setCut(n, owner, false)
		n.settleTokens(id, 0)
		// An owner without authority does not settle.
		id = n.reserve(tokens("r", key, 100), time.Minute)
		owner.authority.Store(false)
		if s, err := n.Settle(id, nil); !errors.Is(err, ErrNoOwner) {
			t.Errorf("without authority: have %+v, %v", s, err)
		}
		owner.authority.Store(true)
		n.settleTokens(id, 1)
		expect.Equal(t, n.used("r", key), 1, "used")
	})
}

// An owner whose authority lapses while it settles does not answer, but has
// settled everything, once: a repeated settlement finds it done.
func TestAuthorityLapsesWhileSettling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 2, `rules:
  - {name: a, key: [a], usage: monthly, limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: b, key: [b], usage: monthly, limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}`)
		n, owner, bill := w.nodes[1], w.nodes[0], newFakeMeter()
		for _, n := range w.nodes {
			n.UseMeter(bill)
		}
		a, b := w.keyOf("a", owner, nil), w.keyOf("b", n, nil)
		q := Query{Attributes: []rules.Attribute{{Name: "a", Value: a}, {Name: "b", Value: b}},
			Costs: []UnitCost{{"tokens", 100}}}
		for i, used := range []int64{30, 170} {
			id := n.reserve(q, time.Minute)
			lapse := func() { owner.authority.Store(false) }
			owner.asked.Store(&lapse)
			if s, err := n.Settle(id, []UnitCost{{Unit: "tokens", Cost: used}}); !errors.Is(err, ErrNoOwner) {
				t.Errorf("without authority: have %+v, %v", s, err)
			}
			owner.asked.Store(nil)
			owner.authority.Store(true)
			if s := n.settleTokens(id, 1); !s.Repeated || s.Costs[0].Cost != used {
				t.Errorf("repeated: have %+v, want %d used", s, used)
			}
			synctest.Wait()
			want := []int64{30, 200}[i]
			if haveA, haveB := n.used("a", a), n.used("b", b); haveA != want || haveB != want {
				t.Errorf("have %d and %d used, want %d", haveA, haveB, want)
			}
			if billed := map[string]int64{"a[" + a + "] tokens": want,
				"b[" + b + "] tokens": want}; !reflect.DeepEqual(bill.cost, billed) {
				t.Errorf("have a bill of %v, want %v", bill.cost, billed)
			}
		}
	})
}

// Reservations never use leases: an owner can't give back what the holder of a lease spent.
func TestReservationsAreNotLeased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 2,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 100000, per: 1h, algorithm: fixed-window, unit: tokens}]}")
		n, key := w.nodes[0], w.keyOf("r", w.nodes[1], nil)
		for range 1000 {
			n.check(tokens("r", key, 1))
		}
		for range 10 {
			n.settleTokens(n.reserve(tokens("r", key, 10), time.Minute), 0)
		}
		time.Sleep(6 * time.Second) // until all unspent leases have been returned
		expect.Equal(t, n.used("r", key), 1000, "used")
	})
}

// Blocks are part of the question, but not of the reservation.
func TestReservationOfRulesWithBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 3, `rules:
  - {name: a, key: [a], block: 1h, limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}, {limit: 50, per: 1h, algorithm: fixed-window}]}
  - {name: b, key: [b], block: 1h, on_limit: delay, limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}`)
		for _, n := range w.nodes {
			a, b := w.keyOf("a", w.nodes[0], nil), w.keyOf("b", w.nodes[1], nil)
			q := Query{Attributes: []rules.Attribute{{Name: "a", Value: a}, {Name: "b", Value: b}},
				Costs: []UnitCost{{"tokens", 100}}}
			usedA, usedB := n.used("a", a), n.used("b", b)
			id := n.reserve(q, time.Minute)
			w.nodes[2].settleTokens(id, 30)
			synctest.Wait()
			if haveA, haveB := n.used("a", a), n.used("b", b); haveA != usedA+30 || haveB != usedB+30 {
				t.Errorf("have %d and %d used, want %d and %d", haveA, haveB, usedA+30, usedB+30)
			}
		}
	})
}

// A key that becomes longer by folding, and by the name of an alternative, can
// be reserved for and settled.
func TestReservationOfALongKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 3, `attributes: {user: {fold: [lower]}, ip: {}}
rules:
  - {name: a, key: [[user, ip]], usage: monthly, limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}`)
		for _, n := range w.nodes {
			n.UseMeter(newFakeMeter())
		}
		user := strings.Repeat("\u023a", document.MaxValueBytes/2) // in lower case, each takes three bytes instead of two
		id := w.nodes[0].reserve(Query{Attributes: attrs("user", user),
			Costs: []UnitCost{{"tokens", 100}}}, time.Minute)
		w.nodes[1].settleTokens(id, 30)
		synctest.Wait()
		expect.Equal(t, w.nodes[2].used("a", "user="+user), 30, "used")
	})
}

// The bill shows the real usage, for each rule with `usage: monthly` that is
// not a shadow rule, wherever the reservation is settled.
func TestReservationsAreBilledAsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 3, `rules:
  - {name: a, key: [a], usage: monthly, limits: [{limit: 1000, per: 1h, unit: tokens}, {limit: 9000, per: 5h, unit: tokens}, {limit: 50, per: 1h}]}
  - {name: b, key: [b], usage: monthly, limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: n, key: [a], limits: [{limit: 1000, per: 1h, unit: tokens}]}
  - {name: all, key: [], match: {a: "*"}, usage: monthly, limits: [{limit: 1000, per: 1h, unit: tokens}]}
  - {name: s, key: [a], shadow: true, usage: monthly, limits: [{limit: 1000, per: 1h, unit: tokens}]}`)
		bills := make([]*fakeMeter, 3)
		for i, n := range w.nodes {
			bills[i] = newFakeMeter()
			n.UseMeter(bills[i])
		}
		a, b := w.keyOf("a", w.nodes[0], nil), w.keyOf("b", w.nodes[1], nil)
		q := Query{Attributes: []rules.Attribute{{Name: "a", Value: a}, {Name: "b", Value: b}},
			Costs: []UnitCost{{"tokens", 100}}}
		for i, used := range []int64{30, 100, 170} {
			id := w.nodes[i].reserve(q, time.Minute)
			w.nodes[2].settleTokens(id, used)
			w.nodes[1].settleTokens(id, used)
		}
		have := map[string]int64{}
		for _, c := range bills {
			for name, cost := range c.cost {
				have[name] += cost
			}
		}
		want := map[string]int64{"a[" + a + "] tokens": 300, "a[" + a + "] requests": 3,
			"b[" + b + "] tokens": 300, "all[] tokens": 300}
		if !reflect.DeepEqual(have, want) {
			t.Errorf("have %v, want %v", have, want)
		}
	})
}

// An owner whose authority lapses during a reset voids the subject's leases all the same.
func TestAuthorityLapsesDuringAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 2,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 1000, per: 1h, algorithm: fixed-window}]}")
		owner, holder := w.nodes[0], w.nodes[1]
		key := w.keyOf("r", owner, nil)
		holder.lease("r", key)
		u, err := owner.Locate(&Query{Rule: "r", Key: []string{key}})
		expect.NoError(t, err)
		owner.authority.Store(false)
		expect.ErrorIs(t, newChange(verbReset, u, nil).applyHere(t.Context(), owner.Limiter),
			ErrNoOwner, "without authority")
		owner.authority.Store(true)
		synctest.Wait()
		q := byKey("r", key)
		q.Costs = []UnitCost{{document.Requests, 1000}}
		if a := owner.check(q); !a.Allowed {
			t.Fatalf("after the reset: %+v", a.Limits)
		}
		if a := holder.check(byKey("r", key)); a.Allowed {
			t.Errorf("by an old lease: %+v", a.Limits)
		}
		time.Sleep(10 * time.Second) // until leases would have been returned
		expect.Equal(t, owner.used("r", key), 1000, "used")
	})
}

// What concerns a subject of a rule with `consistency: local` concerns the
// counters of the node that is asked.
func TestUsageAndSettlementOfLocalRules(t *testing.T) {
	for _, algorithm := range []string{"fixed-window", "sliding-window", "sliding-window-log",
		"token-bucket", "leaky-bucket"} {
		synctest.Test(t, func(t *testing.T) {
			nextWindow(time.Hour)
			w := newTestCluster(t, 2, `rules:
  - {name: l, key: [a], consistency: local, block: 10m, limits: [{limit: 20, per: 1h, algorithm: `+algorithm+`}]}
  - {name: g, key: [b], limits: [{limit: 1000, per: 1h, algorithm: fixed-window}]}`)
			n, other := w.nodes[0], w.nodes[1]
			key := w.keyOf("l", other, nil)
			want := func(what string, here, there int64) {
				t.Helper()
				if haveHere, haveThere := n.used("l", key), other.used("l",
					key); haveHere != here || haveThere != there {
					t.Errorf("%s, %s: have %d and %d used, want %d and %d", algorithm, what,
						haveHere, haveThere, here, there)
				}
			}
			cost := func(units int64) Query {
				return Query{Rule: "l", Key: []string{key}, ByKey: true, Costs: []UnitCost{{document.Requests, units}}}
			}
			n.check(cost(3))
			want("checked", 3, 0)
			for range 2 {
				if u, err := n.Adjust(adjustment("l", []string{key}, 4, "once")); err != nil ||
					u.Limits[0].Used != 7 || u.Limits[0].Remaining != 3 {
					t.Errorf("adjust: have %+v, %v", u, err)
				}
			}
			want("adjusted", 7, 0)
			if !n.check(cost(3)).Allowed || n.check(cost(1)).Allowed || !other.check(cost(10)).Allowed {
				t.Error("each node does not have half of the limit")
			}
			q := Query{Rule: "l", Key: []string{key}}
			if u, err := n.Usage(&q); err != nil || u.Blocked != 10*time.Minute {
				t.Errorf("have %+v, %v, want a block", u, err)
			}
			if u, err := n.Reset(&q); err != nil || u.Limits[0].Used != 0 ||
				u.Limits[0].Remaining != 10 || u.Blocked != 0 {
				t.Errorf("reset: have %+v, %v", u, err)
			}
			want("reset", 0, 10)
			_, _ = other.Reset(&q)
			settle := func(by *testNode, id string, used int64, wantRepeated bool, wantRemaining int64) {
				t.Helper()
				for range 2 {
					s, err := by.Settle(id, []UnitCost{{document.Requests, used}})
					if err != nil || s.Repeated != wantRepeated || s.Remaining != wantRemaining {
						t.Errorf("%s: have %+v, %v, want %d remaining", algorithm, s, err, wantRemaining)
					}
					wantRepeated = true
				}
			}
			settle(n, n.reserve(cost(5), time.Minute), 2, false, 8)
			want("settled", 2, 0)
			settle(n, n.reserve(cost(5), time.Minute), 6, false, 2)
			want("settled with more", 8, 0)
			id := n.reserve(cost(2), time.Minute)
			settle(other, id, 0, false, -1)
			want("settled by a node that did not make it", 10, 0)
			settle(n, id, 1, true, 2)
			want("and then by the one that did", 8, 0)
			_, _ = n.Reset(&q)
			both := Query{Attributes: []rules.Attribute{{Name: "a", Value: key},
				{Name: "b", Value: w.keyOf("g", other, nil)}}, Costs: cost(2).Costs}
			settle(n, n.reserve(both, time.Minute), 1, false, 999)
			settle(n, n.reserve(both, time.Minute), 3, false, 996)
			want("settled beside another rule", 4, 0)
			both.Attributes[1].Value = w.keyOf("g", n, nil) // so n is the home
			settle(other, n.reserve(both, time.Minute), 1, false, 999)
			want("settled beside another rule through another node", 5, 0)
		})
	}
}

// What has drained of a node's share of a local bucket does not come back.
func TestSettlement_OfDrainedLocalBuckets(t *testing.T) {
	for _, algorithm := range []string{"token-bucket", "leaky-bucket"} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, 3,
				"rules:\n  - {name: l, key: [k], consistency: local, limits: [{limit: 300, per: 1m, algorithm: "+algorithm+"}]}")
			n := w.nodes[0]
			cost := func(units int64) Query {
				return Query{Rule: "l", Key: []string{"x"}, ByKey: true, Costs: []UnitCost{{document.Requests, units}}}
			}
			id := n.reserve(cost(60), time.Minute)
			time.Sleep(30 * time.Second) // 50 of its share of 100 a minute
			if !n.check(cost(90)).Allowed {
				t.Fatalf("%s: 10 + 90 of 100 were refused", algorithm)
			}

			_, err := n.Settle(id, []UnitCost{{document.Requests, 0}})
			expect.NoError(t, err)
			if used := n.used("l", "x"); used < 90 || used > 91 {
				t.Errorf("%s: got %d used after the settlement, want 90: what was owed came back", algorithm, used)
			}
		})
	}
}

// A reservation by local rules alone is billed once, whichever nodes settle it.
func TestReservationByLocalRulesIsBilledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 2,
			"rules:\n  - {name: l, key: [a], consistency: local, usage: monthly, limits: [{limit: 100, per: 1h, unit: tokens}]}")
		bill := w.useMeter()
		for i, n := range w.nodes {
			id := n.reserve(tokens("l", "x", 10), time.Minute)
			for _, by := range []*testNode{n, w.nodes[1-i], n} {
				by.settleTokens(id, 4)
			}
		}
		expect.Equal(t, bill.cost["l[x] tokens"], 8, "billed")
	})
}

// After a reset, nothing of a grant comes back, even if the subject is handed
// over before it or after it.
func TestResetAndHandOver(t *testing.T) {
	for _, moved := range []string{"never", "before", "after"} {
		synctest.Test(t, func(t *testing.T) {
			nextWindow(time.Hour)
			w := newTestCluster(t, 3,
				"rules:\n  - {name: r, key: [k], limits: [{limit: 1000, per: 1h, algorithm: fixed-window}]}")
			owner, holder := w.nodes[0], w.nodes[1]
			key := w.keyOf("r", owner, nil)
			holder.lease("r", key)
			if moved == "before" {
				owner = w.nodes[2]
				w.handOver(w.partition("r", key), owner)
			}
			if _, err := owner.Reset(&Query{Rule: "r", Key: []string{key}}); err != nil {
				t.Fatal(err)
			}
			if moved == "after" {
				owner = w.nodes[2]
				w.handOver(w.partition("r", key), owner)
			}
			q := byKey("r", key)
			q.Costs = []UnitCost{{document.Requests, 1000}}
			if a := owner.check(q); !a.Allowed {
				t.Fatalf("after the reset: %+v", a.Limits)
			}
			time.Sleep(2 * maxGrantAge)
			expect.Equal(t, owner.used("r", key), 1000, "moved %s: used", moved)
		})
	}
}

// A subject of a rule with `consistency: local` has no owner, so it can't be
// the home. Other subjects get their cost back.
func TestReservationByALocalRuleFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 2, `rules:
  - {name: a, key: [a], consistency: local, limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: b, key: [b], limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}`)
		n := w.nodes[0]
		q := Query{Attributes: []rules.Attribute{{Name: "a", Value: "x"}, {Name: "b", Value: "y"}},
			Costs: []UnitCost{{"tokens", 100}}}
		n.settleTokens(n.reserve(q, time.Minute), 30)
		synctest.Wait()
		expect.Equal(t, n.used("b", "y"), 30, "used")
	})
}

// Subjects of local rules alone are decided by this node, which keeps no answer.
func TestReservationByLocalRulesWithARequestID(t *testing.T) {
	const text = "rules:\n  - {name: r, key: [k], consistency: local, limits: [{limit: 1000, per: 1h, algorithm: fixed-window}]}"
	decide := func(t *testing.T, l *Limiter) {
		for i, mode := range []counters.Mode{counters.CheckMode, counters.CountMode} {
			q, a := byKey("r", "x"), &Answer{}
			q.RequestID, q.Mode = "one", mode
			id, err := l.reserve(&q, time.Duration(1-i)*time.Minute, a)
			if err != nil || id == "" || a.DecidedBy != ByOwner || a.Limits[0].Used != int64(i+1) {
				t.Errorf("mode %d: have %q, %v, %+v", mode, id, err, a.Limits)
			}
		}
	}
	t.Run("alone", func(t *testing.T) { decide(t, open(t, text)) })
	t.Run("cluster", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			nextWindow(time.Hour)
			decide(t, newTestCluster(t, 2, text).nodes[0].Limiter)
		})
	})
}

// A settlement takes no longer than a check, even if it owes something to many
// subjects whose owner does not answer. They are charged in the background.
func TestSettlementDoesNotWaitForTheSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		names := []string{"a", "b", "c", "d", "e", "f"}
		text := "rules:\n"
		for _, name := range names {
			text += "  - {name: " + name + ", key: [" + name +
				"], limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}\n"
		}
		w := newTestCluster(t, 2, text)
		home, slow := w.nodes[0], w.nodes[1]
		q := Query{Costs: []UnitCost{{"tokens", 10}}}
		for i, name := range names {
			owner := slow
			if i == 0 {
				owner = home
			}
			q.Attributes = append(q.Attributes, rules.Attribute{Name: name, Value: w.keyOf(name, owner, nil)})
		}
		id := home.reserve(q, time.Minute)
		setSlow := func(by time.Duration) { w.change(func() { w.slow[slow.id] = by }) }
		setSlow(2 * time.Second)
		began := time.Now()
		home.settleTokens(id, 20)
		if took := time.Since(began); took > checkTimeout {
			t.Errorf("it took %v", took)
		}
		setSlow(0)
		time.Sleep(chargeTimeout)
		for i, name := range names {
			expect.Equal(t, slow.used(name, q.Attributes[i].Value), 20, "%s: used", name)
		}
	})
}
