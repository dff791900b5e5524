package limiter

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

const seatsText = `rules:
  - {name: seats, key: [tenant], usage: monthly, limits: [{limit: 5, ttl: 10s, algorithm: concurrency}]}
  - {name: tokens, key: [user], limits: [{limit: 10, per: 8760h, unit: tokens, algorithm: fixed-window}]}
`

// seatQuery is an acquire of a seat and of tokens, with a request id.
func seatQuery(tenant, user, id string, tokens int64) *Query {
	return &Query{
		Attributes: []rules.Attribute{{Name: "tenant", Value: tenant}, {Name: "user", Value: user}},
		Costs:      []UnitCost{{Unit: rules.Requests, Cost: 1}, {Unit: "tokens", Cost: tokens}}, RequestID: id,
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
