package limiter

import (
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

const requestRules = "rules:\n  - {name: r, key: [k], limits: [{limit: 100, per: 1440h}, {limit: 100, per: 1440h, unit: tokens}]}"

// reserveAs reserves a cost for a subject on n, with a request id.
func (n *testNode) reserveAs(request, key string, cost int64, a *Answer) (string, error) {
	q := byKey("r", key)
	q.Costs, q.RequestID = []UnitCost{{Unit: document.Requests, Cost: cost}}, request
	return n.Reserve(&q, time.Minute, a)
}

// A request with an id is decided once, through whichever nodes, wherever its
// counters move meanwhile, and however many callers send it at once.
func TestRequestsAreDecidedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, requestRules)
		key := w.keyOf("r", w.nodes[0], nil)
		p := w.partition("r", key)
		used := func(want int64) {
			t.Helper()
			if u, err := w.nodes[2].Usage(&Query{Rule: "r", Key: []string{key}}); err != nil ||
				u.Limits[0].Used != want {
				t.Errorf("have %+v, %v; want %d used", u, err, want)
			}
		}
		var first, again Answer
		id, err := w.nodes[1].reserveAs("a", key, 10, &first)
		if err != nil || id == "" || first.DecidedBy != ByForward || first.Limits[0].Remaining != 90 {
			t.Fatalf("have %q, %v, %+v", id, err, first)
		}
		for i, n := range []*testNode{w.nodes[1], w.nodes[0], w.nodes[2], w.nodes[0]} {
			if i == 2 {
				w.handOver(p, w.nodes[1])
			}
			same, err := n.reserveAs("a", key, 10, &again)
			if err != nil || same != id || !again.Allowed || again.Limits[0].Remaining != 90 ||
				again.TightestIndex != first.TightestIndex {
				t.Errorf("node %d: have %q, %v, %+v", i, same, err, again)
			}
			if u, err := n.Adjust(adjustment("r", []string{key}, 5, "b")); err != nil ||
				u.Limits[0].Used != 15 || u.Limits[1].Remaining != 100 {
				t.Errorf("node %d: have %+v, %v", i, u, err)
			}
		}
		used(15)
		if _, err := w.nodes[0].reserveAs("a", key, 11, &again); !errors.Is(err, ErrRequestIDReused) {
			t.Errorf("another cost: have %v", err)
		}
		if _, err := w.nodes[0].Adjust(adjustment("r", []string{key}, 5, "a")); !errors.Is(err, ErrRequestIDReused) {
			t.Errorf("an adjustment by the id of a reservation: have %v", err)
		}
		if u, err := w.nodes[2].Reset(&Query{Rule: "r", Key: []string{key},
			RequestID: "c"}); err != nil || u.Limits[0].Used != 0 {
			t.Errorf("have %+v, %v", u, err)
		}
		if _, err := w.nodes[1].Adjust(adjustment("r", []string{key}, 2, "")); err != nil {
			t.Error(err)
		}
		if u, err := w.nodes[1].Reset(&Query{Rule: "r", Key: []string{key},
			RequestID: "c"}); err != nil || u.Limits[0].Used != 0 {
			t.Errorf("have %+v, %v", u, err)
		}
		used(2)
		var crowd sync.WaitGroup
		for i := range 30 {
			crowd.Go(func() {
				var a Answer
				if _, err := w.nodes[i%3].reserveAs("d", key, 3, &a); err != nil {
					t.Error(err)
				}
			})
		}
		crowd.Wait()
		used(5)
		time.Sleep(answerLife + 2*time.Second)
		if u, err := w.nodes[2].Adjust(adjustment("r", []string{key}, 5, "b")); err != nil || u.Limits[0].Used != 10 {
			t.Errorf("a minute later: have %+v, %v", u, err)
		}
	})
}

// Without the owner a reservation is still decided, but its answer is not kept.
func TestRequestsWithoutTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, requestRules)
		key := w.keyOf("r", w.nodes[0], nil)
		w.setCut(w.nodes[0], w.nodes[1], true)
		w.setCut(w.nodes[0], w.nodes[2], true)
		var a Answer
		began := time.Now()
		one, err := w.nodes[1].reserveAs("a", key, 10, &a)
		if err != nil || one == "" || !a.Allowed || time.Since(began) > checkTimeout {
			t.Errorf("have %q, %v, %+v after %v", one, err, a, time.Since(began))
		}
		if two, err := w.nodes[1].reserveAs("a", key, 10, &a); err != nil || two == one {
			t.Errorf("have %q, %v", two, err)
		}
		if _, err := w.nodes[1].Adjust(adjustment("r", []string{key}, 5, "b")); !errors.Is(err, ErrNoOwner) {
			t.Errorf("have %v", err)
		}
	})
}

// A request that must be taken back, at an owner that is slow to settle, takes no
// longer than any other call.
func TestRequestTakenBackAtASlowOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, requestRules)
		owner := w.nodes[0]
		w.change(func() {
			w.detail = func(_, _ ring.NodeID, m peer.Method, _ []byte) {
				delay := 3 * time.Second
				if m == MethodAsk {
					delay = 0
				}
				w.change(func() { w.slow[owner.id] = delay })
			}
		})

		var a Answer
		began := time.Now()
		_, err := w.nodes[1].reserveAs("a", w.keyOf("r", owner, nil), 10, &a)
		expect.ErrorIs(t, err, ErrNoOwner, "reserve")
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A node that does not know yet that the standby has become the owner still
// adjusts, reserves and settles there.
func TestStandbyHasBecomeOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, requestRules)
		asker, dead, owner := w.nodes[0], w.nodes[1], w.nodes[2]
		key := w.keyOf("r", owner, nil)
		p := w.partition("r", key)
		w.change(func() { w.place[p].standby = owner.id })
		w.setCut(asker, dead, true)
		stale := func() { asker.wrong.Store(p, dead.id) }
		stale()
		if u, err := asker.Adjust(adjustment("r", []string{key}, 5, "")); err != nil || u.Limits[0].Used != 5 {
			t.Errorf("adjust: have %+v, %v", u, err)
		}
		var a Answer
		stale()
		id, err := asker.reserveAs("a", key, 10, &a)
		if err != nil || a.DecidedBy != ByForward {
			t.Errorf("reserve: have %+v, %v", a, err)
		}
		stale()
		if out, err := asker.Settle(id, nil); err != nil || owner.used("r", key) != 5 {
			t.Errorf("settle: have %+v, %v", out, err)
		}
	})
}

// A node keeps a bounded number of answers. Beyond that it forgets the oldest
// answer to a check; if only answers to writes are left, it refuses further
// writes.
func TestAnswersAreBounded(t *testing.T) {
	table := counters.New(10_000_000)
	t.Cleanup(table.Close)
	clock := NewClock()
	t.Cleanup(func() { _ = clock.Close() })
	l := New(table, clock)
	l.SetRules(compile(t, 1, requestRules))
	var a Answer
	q := byKey("r", "k")
	q.Costs, q.RequestID = []UnitCost{{Unit: document.Requests, Cost: 1}}, "first"
	first, err := l.Reserve(&q, time.Minute, &a)
	expect.NoError(t, err)
	adjust := func(i int) error {
		_, err := l.Adjust(adjustment("r", []string{fmt.Sprintf("k%d", i%1000)}, 1, fmt.Sprintf("write %d", i)))
		return err
	}
	writes := 0
	for ; ; writes++ {
		err := adjust(writes)
		if errors.Is(err, ErrTooManyRequestIDs) {
			break
		}
		if err != nil {
			t.Fatalf("write %d: %v", writes, err)
		}
	}
	if writes < 50_000 {
		t.Errorf("only %d answers to writes were kept", writes)
	}
	if again, err := l.Reserve(&q, time.Minute, &a); err != nil || again != first {
		t.Errorf("the answer to a check, which no write takes the place of: have %q, %v, want %q", again, err, first)
	}
	if err := adjust(0); err != nil {
		t.Errorf("a repeated one: %v", err)
	}
	if _, err := l.Adjust(adjustment("r", []string{"k"}, 1, "")); err != nil {
		t.Errorf("one without an id: %v", err)
	}
	if n := l.requests.repeated.Load(); n < 2 {
		t.Errorf("have %d repeated", n)
	}
	for k, v := range map[string]int64{"k": 2, "k0": int64(writes+999) / 1000} {
		if u, err := l.Usage(&Query{Rule: "r", Key: []string{k}}); err != nil || u.Limits[0].Used != v {
			t.Errorf("%s: have %+v, %v, want %d", k, u, err, v)
		}
	}
}

func TestOnceRequestsComeBack(t *testing.T) {
	for _, r := range []*reserveRequest{
		{query: &Query{Rule: "r", ByKey: true, Key: []string{"a", ""},
			Costs: []UnitCost{{Unit: "tokens", Cost: 9}}}, ttl: time.Second, ticket: ticketOf("x", 5,
			0), version: 7, hops: 1},
		{query: &Query{Attributes: []rules.Attribute{{Name: "ip", Value: "::1"}}},
			ttl: MaxReservationTime, ticket: ticketOf("", 0, time.Second), hops: maxHops},
		{query: &Query{Rule: "r", Mode: counters.CountMode}, ticket: ticketOf("x", 5, 0), hops: 1},
		{query: &Query{Rule: "r", Slots: MaxSlots, SlotTTL: MaxSlotTTL, Who: "w"},
			ttl: time.Second, ticket: ticketOf("x", 5, 0), hops: 1},
	} {
		b := wire.Encode(nil, r)
		have, err := read[reserveRequest](b)
		if err != nil || string(wire.Encode(nil, &have)) != string(b) || have.hashContent() != r.hashContent() {
			t.Errorf("have %+v, %v", have, err)
		}
		for i := range b {
			if _, err := read[reserveRequest](b[:i]); err == nil {
				t.Errorf("%d of %d bytes are read", i, len(b))
			}
		}
	}
}

func FuzzOnceRequest(f *testing.F) {
	r := &reserveRequest{query: &Query{Rule: "r", ByKey: true, Key: []string{"a"}},
		ttl: time.Second, ticket: ticketOf("x", 5, 0), hops: 1}
	f.Add(wire.Encode(nil, r))
	clock := NewClock()
	f.Cleanup(func() { _ = clock.Close() })
	l := New(counters.New(1000), clock)
	l.SetRules(compile(f, 1, requestRules))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = read[reserveRequest](b)
		_, _ = read[acquireRequest](b)
		_, _ = read[acquireReply](b)
		var a Answer
		q := byKey("r", "k")
		if _, err := l.prepare(l.clock.Now(), &q, &a); err == nil {
			if kept, err := read[keptAnswer](b); err == nil {
				_ = a.restore(&kept)
			}
		}
	})
}

// A reservation with an id is taken back and decided again if its answer can't
// be kept: because its first subject moves away while other owners are being
// asked, or because its owner gets authority only after it was asked. Requests
// that fail keep no answers, so they don't count.
func TestFailedRequestsKeepNoAnswers(t *testing.T) {
	table, clock := counters.New(1), NewClock()
	t.Cleanup(table.Close)
	t.Cleanup(func() { _ = clock.Close() })
	l := New(table, clock)
	l.SetRules(compile(t, 1,
		"rules:\n  - {name: r, key: [k], limits: [{limit: 1, per: 1440h, algorithm: fixed-window}]}"))
	for range 2 { // the second one is refused, so its counter is not evicted
		q := byKey("r", "full")
		expect.NoError(t, l.Check(&q, &Answer{}))
	}
	for range 5 {
		if _, err := l.Adjust(adjustment("r", []string{"other"}, 1, "the same")); !errors.Is(err, ErrNoRoom) {
			t.Errorf("adjust: have %v", err)
		}
		q := byKey("r", "other")
		q.RequestID = "another"
		if _, err := l.Reserve(&q, time.Minute, &Answer{}); err != nil {
			t.Error(err)
		}
	}
	if st := table.Notes().Stats(); st.WritesAndRetries+st.Reservations != 0 {
		t.Errorf("have %+v, want nothing kept but the refusal", st)
	}
}

// The answer to a reservation of many subjects with long names is kept, too.
func TestLargeAnswersAreKept(t *testing.T) {
	text, q := "rules:\n", Query{RequestID: "one"}
	for i := range MaxReserved {
		name := fmt.Sprintf("r%d", i)
		text += "  - {name: " + name + ", key: [a" + fmt.Sprint(i%30) +
			"], usage: monthly, limits: [{limit: 9007199254740991, per: 1440h, unit: " + name +
			"}]}\n"
		if i < 30 {
			q.Attributes = append(q.Attributes,
				rules.Attribute{Name: fmt.Sprint("a", i), Value: fmt.Sprintf("%060d", i)})
		}
	}
	l := open(t, text)
	l.UseMeter(newFakeMeter())
	for i := range MaxCosts {
		q.Costs = append(q.Costs, UnitCost{Unit: fmt.Sprint("r", i), Cost: 1 << 52})
	}
	var first string
	for i := range 2 {
		var a Answer
		id, err := l.Reserve(&q, time.Minute, &a)
		if err != nil || i > 0 && id != first || a.Limits[0].Remaining != 1<<52-1 {
			t.Errorf("have an id of %d bytes, %v, %+v", len(id), err, a.Limits[0])
		}
		first = id
	}
	if n := base64.RawURLEncoding.DecodedLen(len(first)); n < 32<<10 {
		t.Errorf("an id of %d bytes is not large", n)
	}
}

func TestAnswersThatCantBeKept(t *testing.T) {
	for name, disturb := range map[string]func(w *testCluster, p int, m peer.Method){
		"its subject moves": func(w *testCluster, p int, m peer.Method) {
			if m == MethodAsk {
				w.handOver(p, w.nodes[2])
			}
		},
		"its owner is only just coming": func(w *testCluster, p int,
			m peer.Method) {
			w.nodes[0].authority.Store(m != MethodReserve)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, 3, `rules:
  - {name: r, key: [a], limits: [{limit: 100, per: 1440h}]}
  - {name: s, key: [b], limits: [{limit: 100, per: 1440h}]}`)
			a, b := w.keyOf("r", w.nodes[0], nil), w.keyOf("s", w.nodes[1], nil)
			p := w.partition("r", a)
			var disturbed atomic.Int64
			w.listen(func(m peer.Method) {
				if disturbed.Add(1) <= 4 {
					disturb(w, p, m)
				}
			})
			q := Query{Attributes: []rules.Attribute{{Name: "a", Value: a}, {Name: "b", Value: b}}, RequestID: "x"}
			q.Costs = []UnitCost{{Unit: document.Requests, Cost: 7}}
			asker := w.nodes[1]
			if name == "its subject moves" {
				asker = w.nodes[0]
			}
			var first, again Answer
			id, err := asker.Reserve(&q, time.Minute, &first)
			if err != nil || id == "" || !first.Allowed {
				t.Fatalf("%s: have %q, %v, allowed %v", name, id, err, first.Allowed)
			}
			synctest.Wait()
			w.nodes[0].authority.Store(true)
			for i, n := range w.nodes {
				if same, err := n.Reserve(&q, time.Minute, &again); err != nil || same != id {
					t.Errorf("%s: node %d: have %q, %v, want the first answer", name, i, same, err)
				}
			}
			if r, s := w.nodes[1].used("r", a), w.nodes[1].used("s", b); r != 7 || s != 7 {
				t.Errorf("%s: have %d and %d used, want 7 of each", name, r, s)
			}
		})
	}
}

// Requests with an id for inline subjects of several owners are decided once:
// reservations, counts over the limit, and refusals. Hand-overs of the first
// subject don't change that.
func TestInlineRequestsAreDecidedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, "rules: []")
		nextWindow(time.Hour)
		limit := document.InlineLimit{Limit: 10, Per: "1h", Algorithm: "fixed-window"}
		keys := []string{w.inlineKeyOf(w.nodes[0]), w.inlineKeyOf(w.nodes[1]), w.inlineKeyOf(w.nodes[2])}
		both := func(mode counters.Mode, cost int64, id string) *Query {
			q := &Query{RequestID: id}
			for _, key := range keys[:2] {
				one := inlineQuery(key, limit).costing(UnitCost{document.Requests, cost}).Subjects[0]
				one.Mode = mode
				q.Subjects = append(q.Subjects, one)
			}
			return q
		}
		used := func(want ...int64) {
			t.Helper()
			for i := range want {
				if u, err := w.nodes[2].Usage(inlineQuery(keys[i], limit)); err != nil || u.Limits[0].Used != want[i] {
					t.Errorf("subject %d: have %+v, %v; want %d used", i, u, err, want[i])
				}
			}
		}
		home, err := w.nodes[0].Locate(inlineQuery(keys[0], limit))
		expect.NoError(t, err)
		p := ring.PartitionOf(home.Hash.Hi)
		var a Answer
		id, err := w.nodes[2].Reserve(both(counters.CheckMode, 6, "reserve"), time.Minute, &a)
		if err != nil || id == "" || !a.Allowed || a.DecidedBy != ByForward || len(a.Limits) != 2 {
			t.Fatalf("have %q, %v, %+v", id, err, a)
		}
		for round := range 4 {
			for i, n := range w.nodes {
				if round == 2 && i == 1 {
					w.handOver(p, w.nodes[1])
				}
				same, err := n.Reserve(both(counters.CheckMode, 6, "reserve"), time.Minute, &a)
				if err != nil || same != id || !a.Allowed || a.Limits[1].Used != 6 {
					t.Errorf("node %d: have %q, %v, %+v", i, same, err, a.Limits)
				}
				if err := n.Check(both(counters.CountMode, 5, "count"), &a); err != nil ||
					a.Allowed || !a.Counted || a.Limits[0].Used != 11 || a.Limits[1].Used != 11 {
					t.Errorf("node %d: have %v, %+v", i, err, a.Limits)
				}
				if same, err := n.Reserve(both(counters.CheckMode, 2, "refused"), time.Minute,
					&a); err != nil || same != "" || a.Allowed || a.Counted || a.Limits[a.IndexInOrder(0)].Allowed {
					t.Errorf("node %d: have %q, %v, %+v", i, same, err, a.Limits)
				}
			}
		}
		used(11, 11)
		for name, q := range map[string]*Query{
			"another cost": both(counters.CountMode, 4, "count"),
			"another mode": both(counters.CheckMode, 5, "count"),
		} {
			if _, err := w.nodes[1].Limiter.reserve(q, 0, &a); !errors.Is(err, ErrRequestIDReused) {
				t.Errorf("%s: have %v", name, err)
			}
		}
		changed := both(counters.CountMode, 5, "count")
		changed.Subjects[0].Limits = []document.InlineLimit{{Limit: 12, Per: "1h", Algorithm: "fixed-window"}}
		expect.ErrorIs(t, w.nodes[1].Check(changed, &a), ErrRequestIDReused, "another amount")
		if out, err := w.nodes[1].Settle(id, nil); err != nil || out.Repeated {
			t.Errorf("have %+v, %v", out, err)
		}
		synctest.Wait()
		used(5, 5)
		// A batch keeps the order of its checks, with ids and without.
		plain := both(counters.CountMode, 1, "")
		queries := []*Query{plain, both(counters.CountMode, 3, "batch"), plain, both(counters.CountMode, 3, "batch")}
		answers, errs := []*Answer{{}, {}, {}, {}}, make([]error, 4)
		w.nodes[2].CheckAll(queries, answers, errs)
		for i, want := range []int64{6, 9, 10, 9} {
			if errs[i] != nil || answers[i].Limits[1].Used != want {
				t.Errorf("check %d: have %v, %+v, want %d used", i, errs[i], answers[i].Limits, want)
			}
		}
		time.Sleep(answerLife + 2*time.Second)
		if err := w.nodes[0].Check(both(counters.CountMode, 5, "count"), &a); err != nil || a.Limits[0].Used != 15 {
			t.Errorf("a minute later: have %v, %+v", err, a.Limits)
		}
	})
}
