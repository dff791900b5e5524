package limiter

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
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

const seatsText = `rules:
  - {name: seats, key: [tenant], usage: monthly, limits: [{limit: 5, ttl: 10s, algorithm: concurrency}]}
  - {name: tokens, key: [user], limits: [{limit: 10, per: 8760h, unit: tokens, algorithm: fixed-window}]}
`

// seatQuery is an acquire of a seat and of tokens, with a request id.
func seatQuery(tenant, user, id string, tokens int64) *Query {
	return &Query{
		Attributes: []rules.Attribute{{Name: "tenant", Value: tenant}, {Name: "user", Value: user}},
		Costs:      []UnitCost{{Unit: document.Requests, Cost: 1}, {Unit: "tokens", Cost: tokens}}, RequestID: id,
	}
}

// What was refused is not admitted because it is repeated, even while the first
// attempt is under way and has its slot already.
func TestRepeatedAcquireOfARefusedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, seatsText)
		w.pause = func() time.Duration { return rand.N(300 * time.Microsecond) }
		tenant, user := w.keyOf("seats", w.nodes[0], w.nodes[1]), w.keyOf("tokens", w.nodes[1], w.nodes[0])
		for i, id := range []string{"all of the tokens", "one", "two", "three", "four", "five", "six", "seven"} {
			var asking sync.WaitGroup
			for attempt := range 3 {
				asking.Go(func() {
					time.Sleep(time.Duration(attempt) * time.Duration(i) * 100 * time.Microsecond)
					var a Answer
					slot, err := w.nodes[attempt].Acquire(seatQuery(tenant, user, id, 10), &a)
					if err != nil || (slot.ID != "") != (i == 0) {
						t.Errorf("%s: have %q, %v", id, slot.ID, err)
					}
				})
			}
			asking.Wait()
		}
		time.Sleep(time.Second)
		expect.Equal(t, w.nodes[0].usage("seats", tenant).Limits[0].Used, 1, "seats are used")
	})
}

// A repetition gets the slot at any node, and is neither charged nor billed.
func TestRepeatedAcquireIsHarmless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, seatsText)
		bill := w.useMeter()
		tenant, user := w.keyOf("seats", w.nodes[0], w.nodes[1]), w.keyOf("tokens", w.nodes[1], w.nodes[0])
		first := ""
		for i := range 6 {
			var a Answer
			slot, err := w.nodes[i%3].Acquire(seatQuery(tenant, user, "one", 4), &a)
			if first == "" {
				first = slot.ID
			}
			if err != nil || slot.ID == "" || slot.ID != first {
				t.Errorf("attempt %d: have %q, %v; want %q", i, slot.ID, err, first)
			}
			if want := 10*time.Second - time.Duration(i)*time.Second; slot.Expires > want {
				t.Errorf("attempt %d: it is held for %v, want at most %v", i, slot.Expires, want)
			}
			time.Sleep(time.Second)
		}
		expect.Equal(t, w.nodes[1].usage("tokens", user).Limits[0].Used, 4, "tokens are used")
		expect.Equal(t, len(bill.times), 1, "units on the bill")
		for unit, times := range bill.times {
			expect.Equal(t, times, 1, "requests on the bill, of %s", unit)
		}
	})
}

// At whichever node it is repeated, an acquire with other contents is refused,
// and changes nothing.
func TestAcquireIDReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, seatsText)
		tenant, user := w.keyOf("seats", w.nodes[0], w.nodes[1]), w.keyOf("tokens", w.nodes[1], w.nodes[0])
		var a Answer
		slot, err := w.nodes[2].Acquire(seatQuery(tenant, user, "one", 4), &a)
		if err != nil || slot.ID == "" {
			t.Fatalf("have %q, %v", slot.ID, err)
		}

		more := seatQuery(tenant, user, "one", 4)
		more.Slots = 2
		for _, n := range w.nodes {
			for _, q := range []*Query{more, seatQuery(tenant, user, "one", 5)} {
				_, err := n.Acquire(q, &a)
				expect.ErrorIs(t, err, ErrRequestIDReused, "at %s", n.id)
			}
		}
		expect.Equal(t, w.nodes[1].usage("tokens", user).Limits[0].Used, 4, "tokens are used")

		// Nobody was answered with it but the caller that has hung up.
		w.nodes[2].ReleaseUnanswered(slot)
		expect.Equal(t, w.nodes[0].usage("seats", tenant).Limits[0].Used, 0, "seats are used")
	})
}

// An id under which another subject's request holds slots is refused as such
// even if only the owner of the second limit notices it. It does not matter which
// node is asked, who owns the limits, or whether another slot is free.
func TestAcquireIDReused_ForAnotherSubject(t *testing.T) {
	const text = `rules:
  - {name: seats, key: [tenant], limits: [{limit: 5, ttl: 10s, algorithm: concurrency}]}
  - {name: desks, key: [user], limits: [{limit: 2, ttl: 10s, algorithm: concurrency}]}
`
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, text)
		user := w.keyOf("desks", w.nodes[1], w.nodes[0])
		acquire := func(n *testNode, tenant, id string) (Slot, error) {
			var a Answer
			return n.Acquire(&Query{Attributes: []rules.Attribute{{Name: "tenant", Value: tenant},
				{Name: "user", Value: user}}, RequestID: id}, &a)
		}

		first := w.keyOf("seats", w.nodes[0], w.nodes[1])
		for _, id := range []string{"one", "two"} { // the second takes the last desk
			slot, err := acquire(w.nodes[2], first, id)
			if err != nil || slot.ID == "" {
				t.Fatalf("%s: got slot %q, error %v", id, slot.ID, err)
			}
			for home := range w.nodes {
				tenant := w.keyOf("seats", w.nodes[home], w.nodes[(home+2)%3])
				for _, n := range w.nodes {
					_, err := acquire(n, tenant, id)
					expect.ErrorIs(t, err, ErrRequestIDReused, "%s: home %d, at %s", id, home, n.id)
				}
				time.Sleep(10 * time.Millisecond)
				expect.Equal(t, w.nodes[home].usage("seats", tenant).Limits[0].Used, 0, "%s: seats at home %d", id, home)
			}
		}
		expect.Equal(t, w.nodes[1].usage("desks", user).Limits[0].Used, 2, "desks are used")
	})
}

// An acquire with an id whose owner does not answer takes no longer than any
// other call.
func TestAcquireWithAnIDOfASlowOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner := w.nodes[0]
		w.change(func() { w.slow[owner.id] = 3 * time.Second })
		for _, rule := range []string{"render", "free"} {
			q := byKey(rule, w.keyOf(rule, owner, w.nodes[1]))
			q.RequestID = "one"
			var a Answer
			began := time.Now()
			_, err := w.nodes[2].Acquire(&q, &a)
			expect.ErrorIs(t, err, ErrTryAgain, "%s", rule)
			if took := time.Since(began); took > checkTimeout+rollbackTimeout {
				t.Errorf("%s: it took %v", rule, took)
			}
		}
	})
}

// A node that is cut off decides an acquire with an id as one without.
func TestAcquireWithAnIDOfANodeThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner, alone := w.nodes[0], w.nodes[2]
		alone.authority.Store(false)
		w.setCut(alone, w.nodes[0], true)
		w.setCut(alone, w.nodes[1], true)
		acquire := func(rule string) (Slot, error) {
			var a Answer
			q := byKey(rule, w.keyOf(rule, owner, w.nodes[1]))
			q.RequestID = "one"
			return alone.Acquire(&q, &a)
		}

		slot, err := acquire("free")
		if err != nil || slot.ID == "" {
			t.Errorf("on_partition: allow: have %q, %v", slot.ID, err)
		}
		slot, err = acquire("render")
		if slot.ID != "" {
			t.Errorf("on_partition: deny: have %q, %v", slot.ID, err)
		}
	})
}

// A full owner says so through another node, and is not asked again in another
// way.
func TestAcquireWithAnIDWhereThereIsNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner := w.nodes[0]
		owner.table.Notes().BoundSlots(1)
		w.change(func() {
			w.detail = func(_, _ ring.NodeID, m peer.Method, _ []byte) {
				if m == MethodAsk {
					t.Error("a node asked once more")
				}
			}
		})
		for _, n := range w.nodes {
			var a Answer
			q := byKey("render", w.keyOf("render", owner, nil))
			q.RequestID = "one"
			_, err := n.Acquire(&q, &a)
			expect.ErrorIs(t, err, ErrTooManySlots, "at %s", n.id)
		}
	})
}

// Another attempt of the same request may have got the slot meanwhile: it stays.
func TestReleaseUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, seatsText)
		tenant, user := w.keyOf("seats", w.nodes[0], w.nodes[1]), w.keyOf("tokens", w.nodes[1], w.nodes[0])
		used := func() int64 { return w.nodes[0].usage("seats", tenant).Limits[0].Used }
		acquire := func(at int, id string) Slot {
			t.Helper()
			var a Answer
			slot, err := w.nodes[at].Acquire(seatQuery(tenant, user, id, 0), &a)
			if err != nil || slot.ID == "" {
				t.Fatalf("have %q, %v", slot.ID, err)
			}
			return slot
		}

		alone := acquire(2, "alone")
		w.nodes[2].ReleaseUnanswered(alone)
		expect.Equal(t, used(), 0, "used after the only attempt was taken back")

		first, second := acquire(2, "twice"), acquire(1, "twice")
		w.nodes[2].ReleaseUnanswered(first)
		w.nodes[1].ReleaseUnanswered(second)
		expect.Equal(t, used(), 1, "used after both attempts were taken back")
		if held, err := w.nodes[0].ReleaseSlot(second.ID); err != nil || !held {
			t.Errorf("a release: %v, %v", held, err)
		}
	})
}

const poolText = `rules:
  - {name: seats, key: [tenant], limits: [{limit: 5, ttl: 10s, algorithm: concurrency}]}
  - {name: pool, key: [pool], limits: [{limit: 1, ttl: 10s, algorithm: concurrency}]}
`

// poolWorld returns a cluster with the owners of a seat and of a pool, and a
// query that acquires both, with a request id.
func poolWorld(t *testing.T) (w *testCluster, seats, pool *testNode, q *Query) {
	w = newTestCluster(t, 3, poolText)
	seats, pool = w.nodes[0], w.nodes[1]
	tenant, shared := w.keyOf("seats", seats, pool), w.keyOf("pool", pool, seats)
	return w, seats, pool, &Query{Attributes: attrs("tenant", tenant, "pool", shared), RequestID: "one"}
}

// held returns how many slots q holds at the owners of poolText's rules.
func (w *testCluster) held(q *Query) (seats, pool int64) {
	return w.nodes[0].usage("seats", q.Attributes[0].Value).Limits[0].Used,
		w.nodes[1].usage("pool", q.Attributes[1].Value).Limits[0].Used
}

// A caller that hung up releases nothing of a slot with which a repetition was
// answered, at whichever owners its parts are.
func TestReleaseUnanswered_OfSeveralOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, seats, pool, q := poolWorld(t)
		asker := w.nodes[2]
		acquire := func(at *testNode) Slot {
			t.Helper()
			var a Answer
			slot, err := at.Acquire(q, &a)
			if err != nil || slot.ID == "" {
				t.Fatalf("acquire: got %q, %v", slot.ID, err)
			}
			return slot
		}
		expectHeld := func(when string, want int64) {
			t.Helper()
			if gotSeats, gotPool := w.held(q); gotSeats != want || gotPool != want {
				t.Errorf("%s: got %d and %d held, want %d", when, gotSeats, gotPool, want)
			}
		}

		first, second := acquire(asker), acquire(pool)
		asker.ReleaseUnanswered(first)
		expectHeld("after the first caller has hung up", 1)
		if held, err := asker.ReleaseSlot(second.ID); err != nil || !held {
			t.Fatalf("release: got %v, %v", held, err)
		}
		expectHeld("after the release", 0)

		// Without a repetition, all of it is released, as soon as the owners can be
		// reached.
		only := acquire(asker)
		for _, owner := range []*testNode{seats, pool} {
			w.setCut(asker, owner, true)
		}
		asker.ReleaseUnanswered(only)
		expectHeld("while no owner can be reached", 1)
		w.setCut(asker, seats, false)
		time.Sleep(500 * time.Millisecond)
		w.setCut(asker, pool, false)
		time.Sleep(500 * time.Millisecond)
		expectHeld("after the owners can be reached", 0)
	})
}

// An acquire to which no limit of slots applies holds nothing, and there is
// nothing to release.
func TestReleaseUnanswered_WithoutSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, "lists: {allow: [{tenant: vip}]}\n"+poolText)
		var a Answer
		slot, err := w.nodes[2].Acquire(&Query{Attributes: attrs("tenant", "vip", "pool", "x"), RequestID: "one"}, &a)
		if err != nil || slot.ID == "" {
			t.Fatalf("acquire: got %q, %v", slot.ID, err)
		}
		w.nodes[2].ReleaseUnanswered(slot)
	})
}

// An attempt that is taken back while its partition moves leaves its slot to
// nobody: the attempt at the next owner pays by itself, and what releases the
// first slot late does not concern the second.
func TestAcquireWhileItsPartitionMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, seatsText)
		home, next := w.nodes[0], w.nodes[2]
		tenant, user := w.keyOf("seats", home, w.nodes[1]), w.keyOf("tokens", w.nodes[1], home)
		w.freezing = 2 * rollbackTimeout
		moves := func(_ context.Context, p int) error {
			go w.handOver(p, next)
			time.Sleep(time.Millisecond)
			return errors.New("it moves")
		}
		home.confirm.Store(&moves)

		var a Answer
		slot, err := w.nodes[1].Acquire(seatQuery(tenant, user, "one", 10), &a)
		if err != nil || slot.ID == "" {
			t.Fatalf("acquire: got %q, %v", slot.ID, err)
		}
		time.Sleep(time.Second) // late releases
		expect.Equal(t, next.usage("seats", tenant).Limits[0].Used, 1, "seats are used")
		expect.Equal(t, w.nodes[1].usage("tokens", user).Limits[0].Used, 10, "tokens are used")
		_, err = w.nodes[1].RenewSlot(slot.ID, 0)
		expect.NoError(t, err)
	})
}

// An acquire whose partition moves away and comes back is decided by all its
// rules then, also by those that the failed attempt did not come to.
func TestAcquireWhoseMoveIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, poolText+`
  - {name: blocks, key: [user], limits: [{limit: 9, per: 8760h, algorithm: fixed-window}], block: 1h}`)
		home, other := w.nodes[0], w.nodes[1]
		tenant, pool, user := w.keyOf("seats", home, other), w.keyOf("pool", other, home), w.keyOf("blocks", home, other)
		p := w.partition("seats", tenant)
		comesBack := func(context.Context, int) error {
			other.confirm.Store(nil)
			w.change(func() { w.place[p].frozen = true })
			home.table.Shut(p)
			time.AfterFunc(3*rollbackTimeout/2, func() {
				home.table.Open(p, w.place[p].lineage)
				w.change(func() { w.place[p].frozen = false })
			})
			return errors.New("no standby")
		}

		other.confirm.Store(&comesBack)
		var a Answer
		slot, err := home.Acquire(&Query{RequestID: "one", Attributes: attrs("tenant", tenant, "pool", pool, "user", user)}, &a)
		if err != nil || slot.ID == "" {
			t.Fatalf("acquire: got %q, %v", slot.ID, err)
		}
		time.Sleep(time.Second) // late releases
		for rule, key := range map[string]string{"seats": tenant, "pool": pool, "blocks": user} {
			expect.Equal(t, w.nodes[2].usage(rule, key).Limits[0].Used, 1, "%s: used", rule)
		}
	})
}

// An acquire whose home dies before all owners have admitted it is decided anew
// at the next one, which has its slot: nothing is admitted unpaid.
func TestAcquireWhoseHomeDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, seatsText)
		home, other, next := w.nodes[0], w.nodes[1], w.nodes[2]
		tenant, user := w.keyOf("seats", home, other), w.keyOf("tokens", other, home)
		p := w.partition("seats", tenant)
		var copied []counters.Record
		w.change(func() {
			w.detail = func(from, to ring.NodeID, m peer.Method, _ []byte) {
				if from == home.id && to == other.id && m == MethodAsk && copied == nil {
					copied = home.copyOf(p) // the standby has the slot, and the tokens are not paid yet
				}
			}
		})

		var a Answer
		if slot, err := home.Acquire(seatQuery(tenant, user, "one", 20), &a); err != nil || slot.ID != "" {
			t.Fatalf("acquire of too many tokens: got %q, %v", slot.ID, err)
		}
		w.promote(p, next, copied)
		if slot, err := next.Acquire(seatQuery(tenant, user, "one", 20), &a); err != nil || slot.ID != "" {
			t.Errorf("the repetition: got %q, %v; want a refusal", slot.ID, err)
		}
		time.Sleep(time.Second)
		expect.Equal(t, next.usage("seats", tenant).Limits[0].Used, 0, "seats are used")
	})
}
