package limiter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// openPlaces returns how many places of reservations that are not settled all nodes keep.
func (w *testCluster) openPlaces() (n int64) {
	for _, node := range w.nodes {
		n += node.table.Notes().Stats().Open
	}
	return n
}

// copyOf returns what n has of p now, as its standby would receive it.
func (n *testNode) copyOf(p int) (list []counters.Record) {
	err := n.table.Copy(p, func(records []counters.Record) error {
		list = append(list, records...)
		return nil
	})
	if err != nil {
		n.w.t.Error(err)
	}
	return list
}

// promote kills p's owner: no node reaches it now. Another one goes on
// from a copy, in a new lineage.
func (w *testCluster) promote(p int, to *testNode, copied []counters.Record) {
	dead := w.node(w.place[p].owner)
	for _, n := range w.nodes {
		if n != dead {
			w.setCut(n, dead, true)
		}
	}
	for _, r := range copied {
		to.table.Put(to.clock.Now(), r)
	}
	lineage := w.place[p].lineage + 1000
	to.table.Open(p, lineage)
	w.change(func() { w.place[p] = testPlace{owner: to.id, lineage: lineage} })
}

// What comes to nothing leaves no place behind: a reservation that a limit
// refuses, at its home or at the owner of another subject, or one that is taken
// back because of its answer.
func TestRefusedReservationsLeaveNoPlace(t *testing.T) {
	const text = `rules:
  - {name: a, key: [a], limits: [{limit: 100, HOME}]}
  - {name: b, key: [b], limits: [{limit: 10, per: 1h, algorithm: ALGORITHM}]}`
	for _, tt := range [][2]string{
		{"fixed-window", "per: 1h, algorithm: fixed-window"},
		{"token-bucket", "per: 1h, algorithm: token-bucket"},
		{"fixed-window", "per: 1h, algorithm: token-bucket, unit: tokens"}, // the home takes nothing
		{"token-bucket", "ttl: 1h, algorithm: concurrency"},                // nor here: slots are released by their IDs
	} {
		algorithm, home := tt[0], tt[1]
		text := strings.NewReplacer("ALGORITHM", algorithm, "HOME", home).Replace(text)
		synctest.Test(t, func(t *testing.T) {
			nextWindow(time.Hour)
			w := newTestCluster(t, 3, text)
			time.Sleep(time.Minute)
			for _, homeOwner := range w.nodes[:2] {
				a, b := w.keyOf("a", homeOwner, nil), w.keyOf("b", w.nodes[2], nil)
				cost := []UnitCost{{document.Requests, 11}}
				for i, n := range w.nodes {
					what := fmt.Sprintf("%s, home %s at %v, asked %d", algorithm, home, homeOwner.id, i)
					tooMuch := Query{Rule: "b", Key: []string{b}, ByKey: true, Costs: cost}
					if id := n.reserve(tooMuch, time.Minute); id != "" {
						t.Errorf("%s: too much was reserved", what)
					}
					both := Query{Attributes: attrs("a", a, "b", b), Costs: cost}
					if id := n.reserve(both, time.Minute); id != "" {
						t.Errorf("%s: too much was reserved over two owners", what)
					}
					both.RequestID = what
					if id := n.reserve(both, time.Minute); id != "" {
						t.Errorf("%s: too much was reserved by a request with an id", what)
					}
					synctest.Wait()
					expect.Equal(t, w.openPlaces(), 0, "%s: places are left", what)
					expect.Equal(t, n.used("a", a), 0, "%s: left used", what)
				}
			}
		})
	}
	l := open(t, strings.NewReplacer("ALGORITHM", "token-bucket", "HOME", "per: 1h").Replace(text))
	q := Query{Attributes: attrs("a", "x", "b", "y"), Costs: []UnitCost{{document.Requests, 11}}}
	if id, err := l.Reserve(&q, time.Minute, &Answer{}); id != "" || err != nil {
		t.Errorf("alone: have %q, %v", id, err)
	}
	if st := l.table.Notes().Stats(); st.Open != 0 || st.Reservations != 0 {
		t.Errorf("alone: %+v", st)
	}
}

// A reservation that a node refuses by its share of a local rule leaves no place,
// whichever of its rules refuses.
func TestRefusedReservationsLeaveNoPlace_LocalRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: a, key: [a], consistency: local, limits: [{limit: 30, per: 1h}]}
  - {name: b, key: [b], consistency: local, limits: [{limit: 300, per: 1h, algorithm: token-bucket}]}`)
		n := w.nodes[0]
		notesOf := func() notes.Stats { return n.cluster.Fallback.Notes().Stats() }
		q := Query{Attributes: attrs("a", "x", "b", "y"), Costs: []UnitCost{{document.Requests, 6}}}
		if id := n.reserve(q, time.Hour); id == "" {
			t.Fatal("6 of 10 were refused")
		}
		want := notesOf()

		for range 20 {
			time.Sleep(time.Millisecond)
			if id := n.reserve(q, time.Hour); id != "" {
				t.Fatal("12 of 10 were admitted")
			}
		}
		if got := notesOf(); got.Open != want.Open || got.Reservations != want.Reservations {
			t.Errorf("after refusals: got %+v, want %+v", got, want)
		}
	})
}

// A reservation that any node made is settled at any other one, before and
// after a hand-over, and from a copy of its home after that has died. What was
// settled stays settled.
func TestPlacesLiveOn(t *testing.T) {
	for _, algorithm := range []string{"fixed-window", "token-bucket"} {
		synctest.Test(t, func(t *testing.T) {
			nextWindow(time.Hour)
			w := newTestCluster(t, 3, strings.Replace(tokenRules, "ALGORITHM", algorithm, 1))
			time.Sleep(time.Minute)
			owner, second, third := w.nodes[0], w.nodes[1], w.nodes[2]
			key := w.keyOf("r", owner, nil)
			p := w.partition("r", key)
			reserve := func() string { return second.reserve(tokens("r", key, 100), time.Minute) }
			// In this order, because of overlapping ones a bucket takes back only what it
			// certainly still owes.
			early, settled, unsettled := reserve(), reserve(), reserve()
			third.settleTokens(early, 30) // at a node that is neither the owner nor made it
			w.handOver(p, third)
			owner.settleTokens(settled, 40)
			expect.Equal(t, w.openPlaces(), 1, "after a hand-over: places are open")

			copied := third.copyOf(p)
			late := owner.reserve(tokens("r", key, 100), time.Minute) // not in the copy
			w.promote(p, second, copied)
			for what, id := range map[string]string{"at the second owner": settled, "at the first": early} {
				if s := owner.settleTokens(id, 7); !s.Repeated || s.Costs[0].Cost == 7 {
					t.Errorf("settled %s, then again from a copy: have %+v", what, s)
				}
			}
			if got := owner.used("r", key); got != 170 {
				t.Errorf("from a copy: have %d used, want 30 + 40 + 100", got)
			}
			// Nothing comes back in another lineage, but more is charged, once.
			if s := owner.settleTokens(unsettled, 50); s.Repeated {
				t.Errorf("an open one: have %+v", s)
			}
			if s := owner.settleTokens(late, 120); s.Repeated {
				t.Errorf("one that was lost with its node: have %+v", s)
			}
			for _, id := range []string{unsettled, late} {
				if s := second.settleTokens(id, 500); !s.Repeated {
					t.Errorf("settled twice: have %+v", s)
				}
			}
			if got := owner.used("r", key); got != 190 {
				t.Errorf("have %d used, want 170 + 20", got)
			}
		})
	}
}

// A reservation whose place is gone in the lineage in which it was made is over.
func TestAPlaceThatIsGoneIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 2, strings.Replace(tokenRules, "ALGORITHM", "fixed-window", 1))
		n, owner := w.nodes[0], w.nodes[1]
		key := w.keyOf("r", owner, nil)
		id := n.reserve(tokens("r", key, 100), time.Minute)
		secret, _ := n.reservations.signingKey("reservation")
		r, err := parseReservation(id, secret)
		if err != nil || !r.hasPlace {
			t.Fatalf("have %+v, %v, want a place", r, err)
		}
		owner.table.ForgetReservation(owner.clock.Now(), placeKey(r.home().subject, r.placeID()), true, nil)
		if s, err := n.Settle(id, nil); !errors.Is(err, ErrUnknownReservation) {
			t.Errorf("in the same lineage: have %+v, %v", s, err)
		}
		w.beginLineage(w.partition("r", key))
		if s := n.settleTokens(id, 130); s.Repeated {
			t.Errorf("in another lineage: have %+v", s)
		}
		if s := n.settleTokens(id, 130); !s.Repeated {
			t.Errorf("twice in another lineage: have %+v", s)
		}
		expect.Equal(t, n.used("r", key), 130, "used")
	})
}

// A minute after it was settled, a reservation forgets its answer, but not that it was settled.
func TestSettledReservationsForgetTheirAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 2, strings.Replace(tokenRules, "ALGORITHM", "fixed-window", 1))
		n, owner := w.nodes[0], w.nodes[1]
		key := w.keyOf("r", owner, nil)
		id := n.reserve(tokens("r", key, 100), 10*time.Minute)
		n.settleTokens(id, 30)
		with := owner.table.Notes().Stats().Reservations
		time.Sleep(61 * time.Second)
		owner.table.Sweep(owner.clock.Now(), 1)
		without := owner.table.Notes().Stats().Reservations
		if without >= with || without == 0 {
			t.Errorf("it takes %d bytes with its answer, %d without", with, without)
		}
		s := n.settleTokens(id, 80)
		if !s.Repeated || len(s.Costs) != 0 || s.Remaining != -1 {
			t.Errorf("have %+v", s)
		}
		expect.Equal(t, n.used("r", key), 30, "used")
		time.Sleep(10 * time.Minute)
		owner.table.Sweep(owner.clock.Now(), 1)
		if st := owner.table.Notes().Stats(); st.Reservations != 0 || st.Open != 0 {
			t.Errorf("after its time: %+v", st)
		}
	})
}

// Reservations come back from disk, settled ones and others.
func TestPlacesComeBackFromDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 2, strings.Replace(tokenRules, "ALGORITHM", "token-bucket", 1))
		time.Sleep(time.Minute)
		n, owner := w.nodes[0], w.nodes[1]
		key := w.keyOf("r", owner, nil)
		p := w.partition("r", key)
		settled, unsettled := n.reserve(tokens("r", key, 100),
			time.Minute), n.reserve(tokens("r", key, 100), time.Minute)
		var saved []counters.Record
		save := func() {
			err := owner.table.DrainChanges(func(records []counters.Record) error {
				saved = append(append([]counters.Record(nil), records...), saved...) // a restart reads the newest first
				return nil
			})
			expect.NoError(t, err)
		}
		save()
		n.settleTokens(settled, 40)
		save()

		owner.table.Shut(p)
		owner.table.Drop(p)
		if restored, noRoom := owner.table.Restore(owner.clock.Now(), saved); restored == 0 || noRoom != 0 {
			t.Fatalf("%d records came back, %d found no room", restored, noRoom)
		}
		owner.table.Open(p, w.place[p].lineage)
		if s := n.settleTokens(settled, 1); !s.Repeated || s.Costs[0].Cost != 40 {
			t.Errorf("settled before: have %+v", s)
		}
		if s := n.settleTokens(unsettled, 70); s.Repeated {
			t.Errorf("open before: have %+v", s)
		}
		if got := n.used("r", key); got != 110 {
			t.Errorf("have %d used, want 40 + 70", got)
		}
	})
}

// The home is killed right after a settlement, whose bill is corrected by then,
// and other owners are charged. Its standby knows of the settling, so that a
// repeated one changes nothing. If it is killed before the standby knows,
// nothing was told to anybody. Only if the standby could not be reached either,
// bills are corrected twice. Other owners are charged once even then.
func TestHomeIsKilledAfterSettling(t *testing.T) {
	const (
		known = iota
		unknown
		unconfirmed
	)
	for killed := range 3 {
		synctest.Test(t, func(t *testing.T) {
			nextWindow(time.Hour)
			w := newTestCluster(t, 3, `rules:
  - {name: a, key: [a], usage: monthly, limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: b, key: [b], usage: monthly, limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}`)
			home, standby, other := w.nodes[0], w.nodes[1], w.nodes[2]
			bill := w.useMeter()
			a, b := w.keyOf("a", home, nil), w.keyOf("b", other, nil)
			p := w.partition("a", a)
			q := Query{Attributes: attrs("a", a, "b", b), Costs: []UnitCost{{"tokens", 100}}}
			id := other.reserve(q, time.Minute)
			copied := home.copyOf(p)

			confirm := func(context.Context, int) error {
				if killed == unconfirmed {
					return errors.New("not in time")
				}
				copied = home.copyOf(p)
				return nil
			}
			home.confirm.Store(&confirm)
			settle := func(by *testNode) *Settlement {
				t.Helper()
				s, err := by.Settle(id, []UnitCost{{"tokens", 170}})
				expect.NoError(t, err)
				return s
			}
			if killed != unknown {
				settle(other)
			} else {
				// It settles in its counters, and dies while it waits for its standby.
				now := home.clock.Now()
				key, _ := home.reservations.signingKey("reservation")
				r, err := parseReservation(id, key)
				expect.NoError(t, err)
				request := &settleRequest{reservation: r, signedID: id, costs: []UnitCost{{"tokens", 170}}}
				outcome, err := home.table.Settle(now, request.plan(home.Limiter, r.home(), now))
				if err != nil || outcome != counters.Made {
					t.Fatalf("have %v, %v", outcome, err)
				}
			}
			w.promote(p, standby, copied)
			if s := settle(other); s.Repeated != (killed == known) {
				t.Errorf("%d: have %+v", killed, s)
			}
			if s := settle(standby); !s.Repeated {
				t.Errorf("%d, again: have %+v", killed, s)
			}
			synctest.Wait()
			if usedA, usedB := standby.used("a", a), other.used("b", b); usedA != 170 || usedB != 170 {
				t.Errorf("%d: have %d and %d used, want 170", killed, usedA, usedB)
			}
			want := int64(170)
			if killed == unconfirmed {
				want += 70
			}
			for _, name := range []string{"a[" + a + "] tokens", "b[" + b + "] tokens"} {
				expect.Equal(t, bill.cost[name], want, "%d: %s: billed", killed, name)
			}
		})
	}
}

// Beside as many answers to writes as a node keeps, what a settlement owes
// there is debited, and only once if it is sent again.
func TestSettlingBesideAFloodOfWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 3, `rules:
  - {name: a, key: [a], limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: b, key: [b], limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: c, key: [c], limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}`)
		home, other := w.nodes[0], w.nodes[1]
		a, b, c := w.keyOf("a", home, nil), w.keyOf("b", other, nil), w.keyOf("c", other, nil)
		q := Query{Attributes: attrs("a", a, "b", b), Costs: []UnitCost{{"tokens", 100}}}
		id := home.reserve(q, time.Minute)
		var err error
		for i := 0; err == nil && i < 200_000; i++ {
			_, err = other.Adjust(&Query{Rule: "c", Key: []string{c},
				Costs: []UnitCost{{"tokens", 1}}, RequestID: fmt.Sprint(i)})
		}
		if !errors.Is(err, ErrTooManyRequestIDs) {
			t.Fatalf("have %v, want too many", err)
		}

		w.nodes[2].settleTokens(id, 150)
		synctest.Wait()
		key, _ := home.reservations.signingKey("reservation")
		r, err := parseReservation(id, key)
		expect.NoError(t, err)
		again := &settleRequest{reservation: r, signedID: id, costs: []UnitCost{{"tokens", 150}}}
		debt, _ := again.splitDifference(&r.subjects[1], false)
		if err := debt.apply(context.Background(), home.Limiter); err != nil {
			t.Errorf("a debt that is sent again: %v", err)
		}
		expect.Equal(t, home.used("b", b), 150, "used")
		if _, err := home.Adjust(&Query{Rule: "b", Key: []string{b}, Costs: []UnitCost{{"tokens", 1}}}); err != nil {
			t.Errorf("an adjustment without an id: %v", err)
		}
	})
}
