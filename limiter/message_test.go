package limiter

import (
	"bytes"
	"encoding/base64"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
)

func someOps() []counters.Op {
	zone, err := algorithms.Zone("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	limits := []algorithms.Limit{
		{Kind: algorithms.SlidingWindow, Amount: 5, Window: time.Minute},
		{Kind: algorithms.TokenBucket, Amount: 1<<53 - 1, Burst: 7, Window: algorithms.MaxWindow},
		{Kind: algorithms.FixedWindow, Amount: 1, Window: 24 * time.Hour,
			Calendar: algorithms.NewCalendar(algorithms.Day, zone)},
		{Kind: algorithms.SlidingLog, Amount: 2, Window: algorithms.MinWindow},
	}
	return []counters.Op{
		{Key: counters.Key{Subject: 1, Counter: 2}, Limit: &limits[0], Cost: 0},
		{Key: counters.Key{Subject: 1, Counter: 1}, Limit: &limits[1], Cost: 1<<53 - 1, Shadow: true},
		{Key: counters.Key{Subject: 2, Counter: 1}, Limit: &limits[2], Cost: 3},
		{Key: counters.Key{Subject: 1 << 63, Counter: 0}, Limit: &limits[3], Cost: 1},
	}
}

func someQuestion() *question {
	return &question{count: 3, patience: 500 * time.Millisecond, hops: 1,
		flags: flagPeek | flagDespiteOldRules, revision: 9, version: 17, ops: someOps(),
		requests: someLeaseRequests(),
		place:    &placeRequest{id: 3, home: 4, group: 5, inline: true, ttl: time.Second}}
}

func someChange() *change {
	return &change{verb: verbAdjust, hops: 1, ops: someOps()[:2], ticket: ticketOf("x", 1<<48-1, 0)}
}

func someLeaseRequests() []leaseRequest {
	t := localcache.Policy{Threshold: 0.85, Idle: 0.02, TTL: time.Second}
	return []leaseRequest{
		{subject: 1, holder: ring.NodeID{3},
			LeaseRequest: localcache.LeaseRequest{Policy: t, Boot: 1 << 63, LastGrant: 9, Want: []int64{0, 1<<53 - 1},
				Held: []localcache.HeldGrant{{ID: 8, Left: []int64{1, 2}}, {ID: 9, Left: []int64{0, 0}}}}},
		{subject: 1 << 63, holder: ring.NodeID{3}, LeaseRequest: localcache.LeaseRequest{Policy: t, Want: []int64{5}}},
	}
}

func someRefunds() *refundList {
	return &refundList{[]refund{
		{takenCosts: takenCosts{subject: 1, boot: 7, life: counters.Life{Lineage: 1 << 63, Resets: 3},
			ops: someOps()[:1], marks: []algorithms.TakeMark{-3}}, grant: 5, hops: 1},
		{takenCosts: takenCosts{subject: 2, steady: -5, ops: someOps()[2:3], marks: []algorithms.TakeMark{12}}, reservedAt: 9},
	}}
}

func someReply() *reply {
	return &reply{
		replyHead: replyHead{status: statusDecided, revision: 3, version: 4, standby: true,
			decider: ring.NodeID{7}, boot: 1 << 63, steady: -5},
		lives:    []counters.Life{{Lineage: 1}, {}, {Lineage: 1<<64 - 1, Resets: 5}},
		admitted: []bool{true, false},
		results: append(make([]result, 4),
			result{Decision: algorithms.Decision{Allowed: true, Remaining: 5, Used: 9,
				ResetAfter: time.Hour, Delay: 3}, mark: -7},
			result{Decision: algorithms.Decision{RetryAfter: algorithms.Never}, noRoom: true},
			result{Decision: algorithms.Decision{RetryAfter: time.Second}}, result{}),
		grants: []leaseGrant{{subject: 2,
			Grant: localcache.Grant{ID: 7, EndsIn: time.Second, Amounts: []int64{3}, Marks: []algorithms.TakeMark{-9}}}},
	}
}

func TestMessagesComeBack(t *testing.T) {
	q, have := someQuestion(), &question{}
	expect.NoError(t, have.read(q.appendBody(q.appendHead(nil))))
	if again := have.appendBody(have.appendHead(nil)); !bytes.Equal(again, q.appendBody(q.appendHead(nil))) {
		t.Errorf("have %x", again)
	}
	for i := range q.ops {
		h, w := have.ops[i], q.ops[i]
		if h.Limit.Calendar != nil && h.Limit.Calendar.String() != w.Limit.Calendar.String() ||
			h.Key != w.Key || h.Cost != w.Cost || h.Shadow != w.Shadow {
			t.Errorf("have %+v, want %+v", h, w)
		}
		h.Limit.Calendar, w.Limit.Calendar = nil, nil
		if *h.Limit != *w.Limit {
			t.Errorf("have %+v, want %+v", h.Limit, w.Limit)
		}
	}
	if c, err := read[change](wire.Encode(nil, someChange())); err != nil || !reflect.DeepEqual(&c, someChange()) {
		t.Errorf("have %+v, %v", c, err)
	}
	expect.DeepEqual(t, have.requests, q.requests, "have.requests")
	var given refundList
	err := wire.Decode(wire.Encode(nil, someRefunds()), &given, "gifts")
	if err != nil || !bytes.Equal(wire.Encode(nil, &given), wire.Encode(nil, someRefunds())) ||
		given.list[0].ops[0].Key.Subject != 1 {
		t.Errorf("have %+v, %v", given, err)
	}
	r, got := someReply(), &reply{}
	if err := got.read(r.append(nil), 4, 3, 5); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("have %+v, %v", got, err)
	}
	no := &reply{replyHead: replyHead{status: statusNotOwner, revision: 5, hint: ring.NodeID{1}}}
	if err := got.read(no.append(nil), 4, 3, 5); err != nil || got.status != statusNotOwner ||
		got.hint != no.hint || len(got.results) != 0 {
		t.Errorf("have %+v, %v", got, err)
	}
}

// The largest check that the rules allow fits into a message.
func TestLargestQuestion(t *testing.T) {
	limit := algorithms.Limit{Kind: algorithms.LeakyBucket, Amount: algorithms.MaxAmount,
		Burst: algorithms.MaxAmount, Window: algorithms.MaxWindow}
	q := &question{count: 1}
	for i := range 1000 {
		for j := range 24 { // the limits of a rule, and its blocks
			q.ops = append(q.ops,
				counters.Op{Key: counters.Key{Subject: uint64(i), Counter: uint64(j)},
					Limit: &limit, Cost: algorithms.MaxAmount})
		}
	}
	if err := (&question{}).read(q.appendBody(q.appendHead(nil))); err != nil {
		t.Error(err)
	}
	q.ops = append(q.ops, counters.Op{Key: counters.Key{Subject: 1000}, Limit: &limit})
	if err := (&question{}).read(q.appendBody(q.appendHead(nil))); err == nil {
		t.Error("one more is read")
	}
}

func TestBadQuestions(t *testing.T) {
	good := func() *question { q := someQuestion(); return q }
	for name, spoil := range map[string]func(*question){
		"no check":             func(q *question) { q.count = 0 },
		"too many checks":      func(q *question) { q.count = maxIdentical + 1 },
		"too many results":     func(q *question) { q.count = maxResults/len(q.ops) + 1 },
		"too many hops":        func(q *question) { q.hops = maxHops + 1 },
		"unknown flag":         func(q *question) { q.flags = allFlags + 1 },
		"no ops":               func(q *question) { q.ops = nil },
		"subjects in no order": func(q *question) { q.ops[2].Key.Subject = 0 },
		"a counter twice":      func(q *question) { q.ops[1].Key.Counter = q.ops[0].Key.Counter },
		"a cost below zero":    func(q *question) { q.ops[0].Cost = -1 },
		"a cost too large":     func(q *question) { q.ops[0].Cost = algorithms.MaxAmount + 1 },
		"no amount":            func(q *question) { q.ops[1].Limit.Amount = 0 },
		"no burst":             func(q *question) { q.ops[1].Limit.Burst = 0 },
		"a short window":       func(q *question) { q.ops[0].Limit.Window = 1 },
		"a long window":        func(q *question) { q.ops[0].Limit.Window = algorithms.MaxWindow + 1 },
		"this node's zone": func(q *question) {
			q.ops[2].Limit.Calendar = algorithms.NewCalendar(algorithms.Day, time.FixedZone("Local", 0))
		},
		"a request of no subject":   func(q *question) { q.requests[1].subject = 3 },
		"two requests of a subject": func(q *question) { q.requests[1].subject = 1 },
		"requests in no order": func(q *question) {
			q.requests[0],
				q.requests[1] = q.requests[1], q.requests[0]
		},
		"a request of another's size": func(q *question) { q.requests[1].Want = []int64{1, 2} },
		"a long lease":                func(q *question) { q.requests[0].Policy.TTL = localcache.MaxTTL + 1 },
		"a short lease":               func(q *question) { q.requests[0].Policy.TTL = localcache.MinTTL - 1 },
		"no threshold":                func(q *question) { q.requests[0].Policy.Threshold = math.NaN() },
		"all of it idle":              func(q *question) { q.requests[0].Policy.Idle = 1.5 },
		"three grants held": func(q *question) {
			q.requests[1].Held = []localcache.HeldGrant{{Left: []int64{1}}, {Left: []int64{1}}, {Left: []int64{1}}}
		},
		"no such zone": func(q *question) {
			q.ops[2].Limit.Calendar = algorithms.NewCalendar(algorithms.Day, time.FixedZone("../x", 0))
		},
	} {
		q := good()
		spoil(q)
		if err := (&question{}).read(q.appendBody(q.appendHead(nil))); err == nil {
			t.Errorf("%s: was read", name)
		}
	}
	for name, spoil := range map[string]func(*change){
		"a ticket for too long": func(c *change) { c.ticket.keepFor = answerLife + time.Second },
		"a look with a ticket":  func(c *change) { c.verb = verbUsage },
		"two subjects":          func(c *change) { c.ops = someOps() },
		"no subject":            func(c *change) { c.ops = nil },
		"an unknown verb":       func(c *change) { c.verb = verbs },
		"no hop":                func(c *change) { c.hops = 0 },
		"too many hops":         func(c *change) { c.hops = maxHops + 1 },
		"a cost too low":        func(c *change) { c.ops[0].Cost = -algorithms.MaxAmount - 1 },
		"a reset with a reward": func(c *change) { c.verb, c.ops[0].Cost = verbReset, -1 },
	} {
		c := someChange()
		spoil(c)
		if _, err := read[change](wire.Encode(nil, c)); err == nil {
			t.Errorf("a change with %s was read", name)
		}
	}
	q, r := good(), someReply()
	whole, answer := q.appendBody(q.appendHead(nil)), r.append(nil)
	for n := range whole {
		if (&question{}).read(whole[:n]) == nil {
			t.Errorf("a question cut at %d was read", n)
		}
	}
	for n := range answer {
		if (&reply{}).read(answer[:n], 4, 3, 5) == nil {
			t.Errorf("a reply cut at %d was read", n)
		}
	}
	if (&reply{}).read(answer, 4, 2, 5) == nil || (&reply{}).read(answer, 3, 3, 5) == nil ||
		(&reply{}).read(answer, 4, 3, 1) == nil {
		t.Error("a reply to another question was read")
	}
}

func FuzzQuestion(f *testing.F) {
	q := someQuestion()
	f.Add(q.appendBody(q.appendHead(nil)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		have := &question{}
		if have.read(b) != nil {
			return
		}
		again := &question{}
		if err := again.read(have.appendBody(have.appendHead(nil))); err != nil {
			t.Errorf("can't decode the message after encoding it again: %v", err)
		}
	})
}

func FuzzReply(f *testing.F) {
	f.Add(someReply().append(nil))
	f.Add((&reply{replyHead: replyHead{status: statusAskerBehind, version: 3}}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &reply{}
		if r.read(b, 4, 3, 5) == nil && r.status == statusDecided && len(r.results) != 4*len(r.admitted) {
			t.Errorf("have %+v", r)
		}
	})
}

func FuzzGifts(f *testing.F) {
	f.Add(wire.Encode(nil, someRefunds()))
	f.Fuzz(func(t *testing.T, b []byte) {
		var have, again refundList
		if wire.Decode(b, &have, "gifts") != nil {
			return
		}
		for i := range have.list {
			if g := &have.list[i]; len(g.ops) != len(g.marks) {
				t.Errorf("have %+v", g)
			}
		}
		if err := wire.Decode(wire.Encode(nil, &have), &again, "gifts"); err != nil {
			t.Errorf("can't decode the message after encoding it again: %v", err)
		}
	})
}

func FuzzReservation(f *testing.F) {
	key := []byte("key")
	limits := []algorithms.Limit{{Kind: algorithms.TokenBucket, Amount: 5, Burst: 9, Window: time.Second}}
	r := reservation{madeAt: 1, until: 2, units: []string{"tokens"}, subjects: []reservedSubject{{
		takenCosts: takenCosts{subject: 1, life: counters.Life{Lineage: 2}, boot: 3, steady: 4,
			ops:   []counters.Op{{Key: counters.Key{Subject: 1, Counter: 5}, Limit: &limits[0], Cost: 6}},
			marks: []algorithms.TakeMark{7}},
		units: []int{0},
	}}}
	raw, _ := base64.RawURLEncoding.DecodeString(r.id(key))
	f.Add(raw[:len(raw)-signatureBytes])
	f.Add([]byte{reservationFormat})
	f.Fuzz(func(t *testing.T, b []byte) {
		id := base64.RawURLEncoding.EncodeToString(append(slices.Clone(b), signature(key, b)...))
		have, err := parseReservation(id, key)
		if err != nil {
			return
		}
		_ = have.placeID()
		if again, err := parseReservation(have.id(key), key); err != nil || len(again.subjects) != len(have.subjects) {
			t.Errorf("have %+v, %v, want %+v", again, err, have)
		}
	})
}

// A message lasts as long as the check that has most time, which need not be
// the last one.
func TestSharedMessage_deadline(t *testing.T) {
	now := time.Now()
	var asks []*pendingAsk
	for _, left := range []time.Duration{200, 500, 100} {
		asks = append(asks, &pendingAsk{deadline: now.Add(left * time.Millisecond)})
	}

	expect.Equal(t, latestDeadline(asks).Sub(now), 500*time.Millisecond, "time for the message")
}
