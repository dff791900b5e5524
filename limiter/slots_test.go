package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

const slotsText = `rules:
  - {name: render, key: [k], limits: [{limit: 2, ttl: 1s, algorithm: concurrency}]}
  - {name: four, key: [k], limits: [{limit: 4, ttl: 1s, algorithm: concurrency}]}
  - {name: free, key: [k], on_partition: allow, limits: [{limit: 1, ttl: 30s, algorithm: concurrency}]}
  - {name: outer, key: [tenant], limits: [{limit: 5, ttl: 10s, algorithm: concurrency}, {limit: 100, per: 8760h, unit: tokens, algorithm: fixed-window}]}
  - {name: inner, key: [user], limits: [{limit: 1, ttl: 10s, algorithm: concurrency}]}
`

// acquire acquires n slots at a node. It returns no ID if it is refused.
func (n *testNode) acquire(rule, key string, slots int64) (id string, err error) {
	var a Answer
	s, err := n.Acquire(&Query{Rule: rule, Key: []string{key}, ByKey: true, Slots: slots}, &a)
	if err == nil && a.Allowed != (s.ID != "") {
		n.w.t.Errorf("allowed is %v, but the slot is %q", a.Allowed, s.ID)
	}
	return s.ID, err
}

// expectSlot acquires a slot, or expects that there is none.
func (n *testNode) expectSlot(what, rule, key string, slots int64, want bool) (id string) {
	n.w.t.Helper()
	id, err := n.acquire(rule, key, slots)
	if err != nil || (id != "") != want {
		n.w.t.Fatalf("%s: have a slot %v, %v; want %v", what, id != "", err, want)
	}
	return id
}

// The vectors, at each node, whichever of them owns the subject.
func TestSlotVectors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		for i, at := range w.nodes {
			other := w.nodes[(i+1)%3]
			key := w.keyOf("render", w.nodes[0], w.nodes[1]) + string(rune('0'+i))
			a := at.expectSlot("a", "render", key, 0, true)
			other.expectSlot("b", "render", key, 0, true)
			var answer Answer
			if _, err := at.Acquire(&Query{Rule: "render", Key: []string{key}, ByKey: true},
				&answer); err != nil || answer.Allowed {
				t.Fatalf("c: %v", err)
			}
			if retry := answer.Limits[0].RetryAfter; retry <= 900*time.Millisecond || retry > time.Second {
				t.Errorf("c may retry after %v", retry)
			}
			for _, want := range []bool{true, false} {
				if held, err := other.ReleaseSlot(a); err != nil || held != want {
					t.Errorf("a release: have %v, %v; want %v", held, err, want)
				}
			}
			c := at.expectSlot("c", "render", key, 0, true)
			other.expectSlot("d", "render", key, 0, false)

			time.Sleep(600 * time.Millisecond)
			if left, err := other.RenewSlot(c, 0); err != nil || left < 990*time.Millisecond {
				t.Errorf("a renewal: %v, %v", left, err)
			}
			time.Sleep(600 * time.Millisecond) // b has ended
			e := at.expectSlot("e", "render", key, 0, true)
			time.Sleep(time.Second)
			for _, id := range []string{a, c, e} {
				if _, err := at.RenewSlot(id, 0); !errors.Is(err, ErrUnknownSlot) {
					t.Errorf("a renewal after the end: %v", err)
				}
			}
		}

		at := w.nodes[1]
		at.expectSlot("3 of 4", "four", "x", 3, true)
		at.expectSlot("2 more", "four", "x", 2, false)
		at.expectSlot("1 more", "four", "x", 1, true)
	})
}

// A refusal says when all the slots that were asked for will be free, and when the
// next one will be.
func TestSlotVectors_TimesOfARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		for i, at := range w.nodes {
			key := w.keyOf("four", w.nodes[0], w.nodes[1]) + fmt.Sprint(i)
			for range 3 {
				at.expectSlot("one of three", "four", key, 1, true)
				time.Sleep(200 * time.Millisecond)
			}

			var a Answer
			_, err := at.Acquire(&Query{Rule: "four", Key: []string{key}, ByKey: true, Slots: 3}, &a)
			expect.NoError(t, err)
			got := a.Limits[0]
			retry := got.RetryAfter.Round(50 * time.Millisecond)
			more := got.MoreAfter.Round(50 * time.Millisecond)
			if got.Allowed || got.Remaining != 1 || retry != 600*time.Millisecond || more != 400*time.Millisecond {
				t.Errorf("node %d: got %+v, want 1 free, another one in 400ms, three in 600ms", i, got.Decision)
			}
		}
	})
}

// A slot that would not outlive its owner is taken back, and so is all that was taken with it.
func TestUnconfirmedSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner := w.nodes[0]
		key := w.keyOf("outer", owner, w.nodes[1])
		never := func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
		for _, at := range w.nodes[:2] {
			owner.confirm.Store(&never)
			q := Query{Rule: "outer", Key: []string{key}, ByKey: true, Costs: []UnitCost{{"tokens", 60}}}
			var a Answer
			began := time.Now()
			if s, err := at.Acquire(&q, &a); !errors.Is(err, ErrTryAgain) || s.ID != "" {
				t.Errorf("have %q, %v", s.ID, err)
			}
			if took := time.Since(began); took < 400*time.Millisecond || took > checkTimeout {
				t.Errorf("it took %v", took)
			}
			q.Costs = nil // only slots, which are released by their IDs
			if id, err := at.Reserve(&q, time.Minute, &a); !errors.Is(err, ErrTryAgain) || id != "" {
				t.Errorf("have the reservation %q, %v", id, err)
			}
			owner.confirm.Store(nil)
			time.Sleep(100 * time.Millisecond) // refunds
			u := owner.usage("outer", key)
			if u.Limits[0].Used != 0 || u.Limits[1].Used != 0 {
				t.Errorf("%d slots and %d tokens stay used", u.Limits[0].Used, u.Limits[1].Used)
			}
			expect.Equal(t, w.openPlaces(), 0, "places are left")
		}
		id := w.nodes[2].expectSlot("afterwards", "outer", key, 0, true)
		owner.confirm.Store(&never)
		if _, err := w.nodes[1].RenewSlot(id, 0); !errors.Is(err, ErrTryAgain) {
			t.Errorf("a renewal that is not confirmed: %v", err)
		}
	})
}

// paidSlotsText has slots, and two limits that an acquire pays besides.
const paidSlotsText = `rules:
  - {name: slots, key: [slots], limits: [{limit: 5, ttl: 60s, algorithm: concurrency}]}
  - {name: here, key: [here], limits: [{limit: 9, per: 8760h, algorithm: fixed-window}]}
  - {name: there, key: [there], limits: [{limit: 9, per: 8760h, algorithm: fixed-window}]}
`

// A repeated acquire pays nothing, also if it is decided a second time by newer
// rules.
func TestAcquire_RepeatedPaysNothingByNewerRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, paidSlotsText)
		home, other := w.nodes[0], w.nodes[1]
		here, there := w.keyOf("here", home, other), w.keyOf("there", other, home)
		q := &Query{RequestID: "one", Attributes: attrs("slots", w.keyOf("slots", home, other), "here", here, "there", there)}

		newer := compile(t, 2, "version: 1\n"+paidSlotsText)
		for range 2 {
			var a Answer
			if slot, err := home.Acquire(q, &a); err != nil || slot.ID == "" {
				t.Fatalf("acquire: got %q, %v", slot.ID, err)
			}
			other.SetRules(newer)
			time.AfterFunc(10*time.Millisecond, func() { home.SetRules(newer) })
		}
		for rule, key := range map[string]string{"here": here, "there": there} {
			expect.Equal(t, w.nodes[2].usage(rule, key).Limits[0].Used, 1, "%s: used", rule)
		}
	})
}

// What a first round took is given back once, although the slots are not
// confirmed in the end: newer rules need no counter for this caller.
func TestUnconfirmedSlots_AfterNewerRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, paidSlotsText)
		home, other := w.nodes[0], w.nodes[1]
		here, there := w.keyOf("here", home, other), w.keyOf("there", other, home)
		for range 5 {
			home.check(byKey("here", here))
		}

		newer := compile(t, 2, "version: 1\nlists: {allow: [{here: "+here+"}]}\n"+paidSlotsText)
		other.SetRules(newer)
		time.AfterFunc(10*time.Millisecond, func() { home.SetRules(newer) })
		failing := func(context.Context, int) error { return errors.New("no standby") }
		home.confirm.Store(&failing)
		var a Answer
		_, err := home.Acquire(&Query{Attributes: attrs("slots", w.keyOf("slots", home, other), "here", here, "there", there)}, &a)
		time.Sleep(time.Second) // refunds
		if used := home.usage("here", here).Limits[0].Used; used != 5 {
			t.Errorf("got %d used after an acquire that returned %v, want 5 as before", used, err)
		}
	})
}

// A slot is renewed although the owner of a shadow limit can't be reached:
// nothing depends on what such a limit counts.
func TestRenewSlot_WithoutTheOwnerOfAShadowLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: real, key: [real], limits: [{limit: 5, ttl: 10s, algorithm: concurrency}]}
  - {name: tried, key: [tried], shadow: true, limits: [{limit: 5, ttl: 10s, algorithm: concurrency}]}`)
		owner, lost, asker := w.nodes[0], w.nodes[1], w.nodes[2]
		var a Answer
		slot, err := asker.Acquire(&Query{Attributes: attrs("real", w.keyOf("real", owner, asker),
			"tried", w.keyOf("tried", lost, owner))}, &a)
		if err != nil || slot.ID == "" {
			t.Fatalf("acquire: got %q, %v", slot.ID, err)
		}

		for _, at := range []*testNode{owner, asker} {
			w.setCut(at, lost, true)
		}
		time.Sleep(5 * time.Second)
		left, err := asker.RenewSlot(slot.ID, 0)
		if err != nil || left < 9*time.Second {
			t.Errorf("renew: got %v, %v; want 10s", left, err)
		}
	})
}

// Rules with blocks beside a limit of slots change neither which partitions must
// confirm the slots, nor what is taken back.
func TestUnconfirmedSlots_BesideBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: first, key: [first], limits: [{limit: 9, per: 8760h, algorithm: fixed-window}], block: 1h}
  - {name: second, key: [second], limits: [{limit: 9, per: 8760h, algorithm: fixed-window}], block: 1h}
  - {name: slots, key: [slots], limits: [{limit: 5, ttl: 10s, algorithm: concurrency}]}
  - {name: last, key: [last], limits: [{limit: 9, per: 8760h, algorithm: fixed-window}], block: 1h}`)
		owner := w.nodes[0]
		keys := map[string]string{}
		q := Query{}
		for _, rule := range []string{"first", "second", "slots", "last"} {
			keys[rule] = w.keyOf(rule, owner, w.nodes[1])
			q.Attributes = append(q.Attributes, rules.Attribute{Name: rule, Value: keys[rule]})
		}
		u, err := owner.Locate(&Query{Rule: "slots", Key: []string{keys["slots"]}})
		expect.NoError(t, err)

		var confirmed []int
		fail := true
		confirm := func(_ context.Context, p int) error {
			confirmed = append(confirmed, p)
			if fail {
				return errors.New("no standby")
			}
			return nil
		}
		owner.confirm.Store(&confirm)
		var a Answer
		if s, err := owner.Acquire(&q, &a); !errors.Is(err, ErrTryAgain) || s.ID != "" {
			t.Errorf("unconfirmed: got %q, %v; want ErrTryAgain", s.ID, err)
		}
		time.Sleep(100 * time.Millisecond) // refunds
		for rule, key := range keys {
			if used := owner.usage(rule, key).Limits[0].Used; used != 0 {
				t.Errorf("%s: got %d used after an acquire that failed, want 0", rule, used)
			}
		}

		fail = false
		confirmed = nil
		if s, err := owner.Acquire(&q, &a); err != nil || s.ID == "" {
			t.Fatalf("confirmed: got %q, %v; want a slot", s.ID, err)
		}
		if want := []int{ring.PartitionOf(u.Hash.Hi)}; !slices.Equal(confirmed, want) {
			t.Errorf("got confirmations of partitions %v, want %v", confirmed, want)
		}
	})
}

// Two levels of two owners: if the inner one is full, the outer one is as
// before, even if what gives its slot back is lost at first.
func TestSlotsOfTwoOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		outer, inner, asker := w.nodes[0], w.nodes[1], w.nodes[2]
		tenant, user := w.keyOf("outer", outer, inner), w.keyOf("inner", inner, outer)
		acquire := func() (Slot, error) {
			var a Answer
			return asker.Acquire(&Query{Attributes: []rules.Attribute{{Name: "tenant",
				Value: tenant}, {Name: "user", Value: user}}}, &a)
		}
		first, err := acquire()
		if err != nil || first.ID == "" {
			t.Fatalf("have %v, %v", first, err)
		}
		used := func() int64 { return outer.usage("outer", tenant).Limits[0].Used }
		if s, err := acquire(); err != nil || s.ID != "" || used() != 1 {
			t.Errorf("the inner one is full: have %q, %v, and %d used of the outer one", s.ID, err, used())
		}

		w.mu.Lock()
		w.detail = func(from, to ring.NodeID, m peer.Method, _ []byte) {
			if m == MethodAsk && from == asker.id && to == inner.id { // the outer owner has been asked
				w.setCut(asker, outer, true)
				w.setCut(inner, outer, true)
			}
		}
		w.mu.Unlock()
		if s, err := acquire(); err != nil || s.ID != "" {
			t.Errorf("the inner one is full: have %q, %v", s.ID, err)
		}
		w.mu.Lock()
		w.detail = nil
		w.mu.Unlock()
		time.Sleep(time.Second)
		expect.Equal(t, used(), 2, "used of the outer one although nobody could give it back")
		w.setCut(asker, outer, false)
		w.setCut(inner, outer, false)
		time.Sleep(500 * time.Millisecond)
		expect.Equal(t, used(), 1, "used of the outer one")
		if held, err := asker.ReleaseSlot(first.ID); err != nil || !held || used() != 0 ||
			inner.usage("inner", user).Limits[0].Used != 0 {
			t.Errorf("after the release: %v, %v, %d used", held, err, used())
		}
	})
}

// A standby neither grants nor renews, and the owner's slots are as they were afterwards.
func TestStandbysGrantNoSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner, standby, other := w.nodes[0], w.nodes[1], w.nodes[2]
		key := w.keyOf("render", owner, standby)
		id := other.expectSlot("first", "render", key, 0, true)
		w.setCut(owner, standby, true)
		w.setCut(owner, other, true)
		for _, at := range []*testNode{standby, other} {
			if got, err := at.acquire("render", key, 0); !errors.Is(err, ErrTryAgain) {
				t.Errorf("have %q, %v", got, err)
			}
			if _, err := at.RenewSlot(id, 0); !errors.Is(err, ErrTryAgain) {
				t.Errorf("a renewal: %v", err)
			}
		}
		if _, err := other.ReleaseSlot(id); !errors.Is(err, ErrTryAgain) {
			t.Errorf("a release: %v", err)
		}
		w.setCut(owner, standby, false)
		w.setCut(owner, other, false)
		time.Sleep(300 * time.Millisecond) // the release is made up for
		expect.Equal(t, owner.used("render", key), 0, "used")
	})
}

// A node that is cut off refuses or, with on_partition: allow, grants what it
// is asked for. The owner counts that as soon as it can be reached, and grants
// nothing until there is room. It does not count a slot that is released before
// it knows of it.
func TestSlotsOfANodeThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner, lone := w.nodes[0], w.nodes[2]
		key, freeKey := w.keyOf("render", owner, w.nodes[1]), w.keyOf("free", owner, w.nodes[1])
		lone.authority.Store(false)
		for _, n := range w.nodes[:2] {
			w.setCut(lone, n, true)
		}
		lone.expectSlot("denied", "render", key, 0, false)

		var denied Answer
		_, err := lone.Acquire(&Query{Rule: "render", Key: []string{key}, ByKey: true}, &denied)
		expect.NoError(t, err)
		why := "its owner can't be reached, and nodes don't divide slots"
		if got := string(denied.AppendReason(nil)); !strings.Contains(got, why) {
			t.Errorf("reason: got %q, want %q in it", got, why)
		}

		var ids []string
		for range 4 {
			ids = append(ids, lone.expectSlot("allowed", "free", freeKey, 0, true))
		}
		if _, err := lone.RenewSlot(ids[0], 0); !errors.Is(err, ErrTryAgain) {
			t.Errorf("a renewal meanwhile: %v", err)
		}
		if _, err := lone.ReleaseSlot(ids[2]); !errors.Is(err, ErrTryAgain) {
			t.Errorf("a release meanwhile: %v", err)
		}

		for _, n := range w.nodes[:2] {
			w.setCut(lone, n, false)
		}
		lone.authority.Store(true)
		if held, err := lone.ReleaseSlot(ids[3]); err != nil || held {
			t.Errorf("a release before the owner knows of it: %v, %v", held, err)
		}
		time.Sleep(time.Second)
		if used := owner.used("free", freeKey); used != 2 {
			t.Errorf("%d are used, want the 2 that were told", used)
		}
		owner.expectSlot("more", "free", freeKey, 0, false)
		if _, err := owner.RenewSlot(ids[0], 0); err != nil {
			t.Errorf("a renewal: %v", err)
		}
		for _, id := range ids[:2] {
			if held, err := owner.ReleaseSlot(id); err != nil || !held {
				t.Errorf("a release: %v, %v", held, err)
			}
		}
		owner.expectSlot("there is room again", "free", freeKey, 0, true)
	})
}

// Neither a longer ttl nor a lower limit makes room, and a shorter ttl holds
// from the next renewal on.
func TestSlotsWhileRulesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner := w.nodes[0]
		key := w.keyOf("four", owner, w.nodes[1])
		setRules := func(version int64, text string) {
			for _, n := range w.nodes {
				n.SetRules(compile(t, version, "version: 1\nrules:\n  - {name: four, key: [k], limits: ["+text+"]}"))
			}
		}
		ids := make([]string, 4)
		for i := range ids {
			ids[i] = w.nodes[i%3].expectSlot("first", "four", key, 0, true)
		}
		setRules(2, "{limit: 4, ttl: 1h, algorithm: concurrency}")
		owner.expectSlot("with a longer ttl", "four", key, 0, false)
		if left, err := owner.RenewSlot(ids[0], time.Hour); err != nil || left < 59*time.Minute {
			t.Errorf("a renewal for longer: %v, %v", left, err)
		}
		setRules(3, "{limit: 2, ttl: 500ms, algorithm: concurrency}")
		if left, err := w.nodes[1].RenewSlot(ids[0], time.Hour); err != nil ||
			left > 500*time.Millisecond || left < 490*time.Millisecond {
			t.Errorf("a renewal with a shorter ttl: %v, %v", left, err)
		}
		if _, err := owner.ReleaseSlot(ids[1]); err != nil {
			t.Error(err)
		}
		owner.expectSlot("3 are held of 2", "four", key, 0, false)
		time.Sleep(1100 * time.Millisecond)
		owner.expectSlot("all have ended", "four", key, 2, true)
	})
}

// A renewal that would make a slot end earlier changes nothing if it fails: its
// holder counts on the old end.
func TestRenewSlot_ShorterAndUnconfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner := w.nodes[0]
		key := w.keyOf("inner", owner, w.nodes[1])
		id := w.nodes[1].expectSlot("first", "inner", key, 0, true)
		failing := func(context.Context, int) error { return errors.New("no standby") }
		owner.confirm.Store(&failing)
		_, err := w.nodes[1].RenewSlot(id, time.Second)
		expect.ErrorIs(t, err, ErrTryAgain, "a renewal that is not confirmed")

		time.Sleep(2 * time.Second)
		owner.confirm.Store(nil)
		owner.expectSlot("second", "inner", key, 0, false)
		left, err := w.nodes[1].RenewSlot(id, time.Second)
		if err != nil || left > time.Second {
			t.Errorf("a renewal that is confirmed: got %v, %v; want 1s", left, err)
		}
		time.Sleep(2 * time.Second)
		owner.expectSlot("after the end", "inner", key, 0, true)
	})
}

// A refused acquire leaves no slot at an owner that had stored one for an earlier
// round, by older rules.
func TestAcquire_RefusedInASecondRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		seats, other, asker := w.nodes[0], w.nodes[1], w.nodes[2]
		tenant, user := w.keyOf("outer", seats, other), w.keyOf("inner", other, seats)
		newer := compile(t, 2, "version: 1\n"+strings.Replace(slotsText, "limit: 100, per: 8760h", "limit: 1, per: 8760h", 1))
		other.SetRules(newer)
		time.AfterFunc(10*time.Millisecond, func() {
			asker.SetRules(newer)
			seats.SetRules(newer)
		})

		var a Answer
		slot, err := asker.Acquire(&Query{Attributes: attrs("tenant", tenant, "user", user), Costs: []UnitCost{{"tokens", 60}}}, &a)
		if err != nil || slot.ID != "" {
			t.Fatalf("acquire: got %q, %v; want a refusal", slot.ID, err)
		}
		time.Sleep(time.Second) // releases
		expect.Equal(t, seats.usage("outer", tenant).Limits[0].Used, 0, "seats are used")
		expect.Equal(t, other.usage("inner", user).Limits[0].Used, 0, "inner slots are used")
	})
}

// A release that can't be carried out is tried again as long as the slot may be
// held, even if that was renewed under a longer ttl than it was acquired.
func TestReleasesOutlastALongerTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner, asker := w.nodes[0], w.nodes[2]
		key := w.keyOf("four", owner, w.nodes[1])
		a := asker.expectSlot("a", "four", key, 0, true)
		for _, n := range w.nodes {
			n.SetRules(compile(t, 2, "version: 1\nrules:\n"+
				"  - {name: four, key: [k], limits: [{limit: 4, ttl: 1h, algorithm: concurrency}]}"))
		}
		_, err := asker.RenewSlot(a, time.Hour)
		expect.NoError(t, err)

		for _, n := range w.nodes[:2] {
			w.setCut(asker, n, true)
		}
		if _, err := asker.ReleaseSlot(a); !errors.Is(err, ErrTryAgain) {
			t.Errorf("a release meanwhile: %v", err)
		}
		time.Sleep(2 * time.Second)
		for _, n := range w.nodes[:2] {
			w.setCut(asker, n, false)
		}
		time.Sleep(500 * time.Millisecond)
		expect.Equal(t, owner.used("four", key), 0, "used after a release that was kept")
	})
}

// Where slots may have been lost, none is granted until they have ended. Those
// that are renewed come back.
func TestLostSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner := w.nodes[0]
		key := w.keyOf("render", owner, w.nodes[1])
		p := w.partition("render", key)
		a := w.nodes[2].expectSlot("a", "render", key, 0, true)
		released := owner.expectSlot("b", "render", key, 0, true)
		if _, err := owner.ReleaseSlot(released); err != nil {
			t.Fatal(err)
		}

		owner.table.Drop(p)
		owner.table.MarkSlotsLost(owner.clock.Now(), p)
		w.beginLineage(p)
		w.nodes[1].expectSlot("after the loss", "render", key, 0, false)
		time.Sleep(500 * time.Millisecond)
		if _, err := w.nodes[1].RenewSlot(a, 0); err != nil {
			t.Errorf("a renewal of what was lost: %v", err)
		}
		owner.expectSlot("still", "render", key, 0, false)
		time.Sleep(600 * time.Millisecond)
		owner.expectSlot("beside a", "render", key, 0, true)
		owner.expectSlot("a third", "render", key, 0, false)
		if _, err := owner.RenewSlot(released, 0); !errors.Is(err, ErrUnknownSlot) {
			t.Errorf("a renewal after all have ended: %v", err)
		}
	})
}

// What an operator freed does not come back if its owner dies before the holder
// has renewed.
func TestLostSlotsThatWereFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner := w.nodes[0]
		key := w.keyOf("render", owner, w.nodes[1])
		p := w.partition("render", key)
		freed := w.nodes[2].expectSlot("a", "render", key, 0, true)
		_, err := owner.Reset(&Query{Rule: "render", Key: []string{key}, ByKey: true})
		expect.NoError(t, err)
		time.Sleep(100 * time.Millisecond)

		owner.table.MarkSlotsLost(owner.clock.Now(), p)
		w.beginLineage(p)
		_, err = w.nodes[2].RenewSlot(freed, 0)
		expect.ErrorIs(t, err, ErrUnknownSlot, "a renewal of what was freed")
	})
}

// After a loss, a limit is full for its ttl as it is now. A holder that renews
// in time gets its slot back even if the ttl has changed since it was acquired.
func TestLostSlotsOfChangedLimits(t *testing.T) {
	for _, tt := range []struct {
		name, before, after string
		beside              bool // a new slot is granted before the holder renews
	}{
		{"raised", "1s", "1h", false},
		{"lowered", "1h", "1s", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 3, slotsText)
				owner := w.nodes[0]
				key := w.keyOf("four", owner, w.nodes[1])
				p := w.partition("four", key)
				setTTL := func(version int64, ttl string) {
					for _, n := range w.nodes {
						n.SetRules(compile(t, version, "version: 1\nrules:\n"+
							"  - {name: four, key: [k], limits: [{limit: 1, ttl: "+ttl+", algorithm: concurrency}]}"))
					}
				}

				setTTL(2, tt.before)
				a := owner.expectSlot("a", "four", key, 0, true)
				setTTL(3, tt.after)
				if !tt.beside { // otherwise the holder still counts on the longer ttl
					_, err := owner.RenewSlot(a, time.Hour)
					expect.NoError(t, err)
				}

				owner.table.Drop(p)
				owner.table.MarkSlotsLost(owner.clock.Now(), p)
				w.beginLineage(p)
				time.Sleep(1100 * time.Millisecond)
				owner.expectSlot("b", "four", key, 0, tt.beside)

				if _, err := w.nodes[1].RenewSlot(a, time.Hour); err != nil {
					t.Errorf("a renewal of what was lost: %v", err)
				}
				owner.expectSlot("c", "four", key, 0, false)
			})
		})
	}
}

// Slots go with their partition.
func TestSlotsMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		key := w.keyOf("render", w.nodes[0], w.nodes[1])
		p := w.partition("render", key)
		ids := []string{w.nodes[2].expectSlot("a", "render", key, 0, true),
			w.nodes[1].expectSlot("b", "render", key, 0, true)}
		for i, to := range []*testNode{w.nodes[2], w.nodes[1], w.nodes[0]} {
			w.handOver(p, to)
			w.nodes[i].expectSlot("after a move", "render", key, 0, false)
			for _, id := range ids {
				if _, err := w.nodes[i].RenewSlot(id, 0); err != nil {
					t.Errorf("a renewal after a move: %v", err)
				}
			}
		}
		if held, err := w.nodes[2].ReleaseSlot(ids[0]); err != nil || !held {
			t.Errorf("a release after moves: %v, %v", held, err)
		}
		w.nodes[2].expectSlot("there is room", "render", key, 0, true)
	})
}

// An operator releases one slot, or all, of a subject, at any node.
func TestSlotsAreReleasedByOperators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, slotsText)
		owner, other := w.nodes[0], w.nodes[2]
		key := w.keyOf("four", owner, w.nodes[1])
		var ids []string
		for range 3 {
			ids = append(ids, other.expectSlot("first", "four", key, 0, true))
		}
		holders := other.usage("four", key).Limits[0].Holders
		if len(holders) != 3 || holders[0].Slots != 1 {
			t.Fatalf("have the holders %+v", holders)
		}
		q := &Query{Rule: "four", Key: []string{key}, ByKey: true, HolderID: ShortSlotID(holders[0].ID)}
		u, err := other.Reset(q)
		if err != nil || u.Limits[0].Used != 2 || u.Limits[0].NumHolders != 2 {
			t.Fatalf("after one was released: %+v, %v", u, err)
		}
		over := 0
		for _, id := range ids {
			if _, err := other.RenewSlot(id, 0); errors.Is(err, ErrUnknownSlot) {
				over++
			}
		}
		expect.Equal(t, over, 1, "holders have lost their slot")
		for _, bad := range []string{q.HolderID, "x", "123"} {
			q.HolderID = bad
			if _, err := other.Reset(q); !errors.Is(err, ErrUnknownSlot) {
				t.Errorf("%q: %v", bad, err)
			}
		}
		q.HolderID = ""
		u, err = other.Reset(q)
		if err != nil || u.Limits[0].Used != 0 {
			t.Errorf("after all were released: %+v, %v", u, err)
		}
	})
}

// A reservation that is repeated by its request id holds its slot for as long
// as the repeated answer says. If the slot is over, its caller learns that.
func TestSlotsOfRepeatedReservations(t *testing.T) {
	const text = `rules:
  - {name: r, key: [k], limits: [{limit: 1, ttl: 30s, algorithm: concurrency}, {limit: 100, per: 8760h, unit: tokens}]}`
	repeat := func(t *testing.T, nodes ...*Limiter) {
		q := tokens("r", "x", 10)
		reserve := func(i int, requestID string) (id string, sl Slot, err error) {
			var a Answer
			q.RequestID = requestID
			n := nodes[i%len(nodes)]
			if id, err = n.Reserve(&q, time.Minute, &a); err == nil {
				sl, _ = n.SlotOf(id)
			}
			return id, sl, err
		}

		for i := range nodes {
			one, two := fmt.Sprint("one", i), fmt.Sprint("two", i)
			first, _, err := reserve(i, one)
			expect.NoError(t, err)

			var sl Slot
			for j := range 2 {
				time.Sleep(20 * time.Second)
				again, renewed, err := reserve(i+j, one)
				if err != nil || again != first {
					t.Fatalf("repeated: have %q, %v, want %q", again, err, first)
				}
				sl = renewed
			}
			if sl.Expires < 29*time.Second {
				t.Errorf("repeated: it is held for %v", sl.Expires)
			}
			time.Sleep(sl.Expires)
			if id, _, err := reserve(i, two); id != "" || err != nil {
				t.Errorf("a second one while the first may be held: have %q, %v", id, err)
			}
			time.Sleep(time.Second)

			for _, settles := range []bool{true, false} {
				requestID := fmt.Sprint(settles, i)
				id, _, err := reserve(i, requestID)
				if id == "" || err != nil {
					t.Fatalf("have %q, %v", id, err)
				}
				if settles {
					_, err = nodes[0].Settle(id, nil)
					expect.NoError(t, err)
				} else {
					time.Sleep(31 * time.Second)
				}
				if _, sl, err := reserve(i+1, requestID); !errors.Is(err, ErrUnknownSlot) || sl.ID != "" {
					t.Errorf("repeated after its slot (settled: %t): have %+v, %v", settles, sl, err)
				}
			}
		}
	}
	synctest.Test(t, func(t *testing.T) { repeat(t, open(t, text)) })
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, text)
		repeat(t, w.nodes[0].Limiter, w.nodes[1].Limiter, w.nodes[2].Limiter)
	})
}

// A reservation with a request id takes as many slots as it says, and names
// their holder, at whichever node it is made. With another number of slots, the
// same id is refused.
func TestSlotsOfReservationsWithARequestID(t *testing.T) {
	const text = `rules:
  - {name: r, key: [k], limits: [{limit: 100, ttl: 30s, algorithm: concurrency}]}`
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, text)
		for i, n := range w.nodes {
			key := w.keyOf("r", w.nodes[0], w.nodes[1])
			q := byKey("r", key)
			q.RequestID = fmt.Sprint("id", i)
			q.Slots, q.SlotTTL, q.Who = 5, 20*time.Second, "w"

			var a Answer
			id, err := n.Reserve(&q, time.Minute, &a)
			if id == "" || err != nil {
				t.Fatalf("at node %d: have %q, %v", i, id, err)
			}
			limit := n.usage("r", key).Limits[0]
			expect.Equal(t, limit.Used, 5, "slots are held after a reservation at node %d", i)
			if len(limit.Holders) != 1 || limit.Holders[0].Who != "w" || limit.Holders[0].Expires > 20*time.Second {
				t.Errorf("at node %d: have the holders %+v", i, limit.Holders)
			}

			q.Slots = 6
			_, err = n.Reserve(&q, time.Minute, &a)
			expect.ErrorIs(t, err, ErrRequestIDReused, "at node %d", i)
			_, err = n.Settle(id, nil)
			expect.NoError(t, err)
		}
	})
}
