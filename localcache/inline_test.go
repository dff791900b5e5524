package localcache

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// callerOps returns ops of an inline subject, from a caller that allows that many units a minute.
func callerOps(subject uint64, amount, cost int64) []counters.Op {
	l := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: amount, Window: time.Minute}
	return []counters.Op{{Key: counters.Key{Subject: subject, Counter: counters.InlineCounter(1)},
		Limit: l, Cost: cost}}
}

// deliverLease delivers the answer to a caller's check, with a grant.
func (s *Leases) deliverLease(now time.Duration, id uint64, ops []counters.Op, amount int64) bool {
	_, ok := s.Request(now, someone, policy, ops, 1)
	ops[0].Decision = algorithms.Decision{Allowed: true, Remaining: 500, ResetAfter: time.Minute}
	s.AcceptAnswer(now, now, from, ops,
		Grant{ID: id, EndsIn: policy.TTL, Amounts: []int64{amount}, Marks: []algorithms.TakeMark{0}}, false)
	return ok
}

// Of callers with different limits for one inline subject, the first has the
// lease for as long as it uses it. The others ask the owner, and do not end it.
func TestLeasesOfSeveralSets(t *testing.T) {
	s := NewLeases(0)
	first, second := callerOps(5, 100, 1), callerOps(5, 200, 1)
	if !s.deliverLease(1, 1, first, 10) || s.deliverLease(1, 2, second, 10) {
		t.Error("want a lease for the first set, and none for the second")
	}
	if back := s.DrainEnded(1, nil); len(back) != 1 || back[0].Grant != 2 || back[0].Ops[0].Cost != 10 {
		t.Errorf("the grant of the second set: got %+v back", back)
	}

	second[0].Decision = algorithms.Decision{RetryAfter: time.Minute}
	s.RememberRefusal(2, second, time.Second)
	for range 2 {
		if o, _ := s.Spend(2, someone, second); o != AskOwner {
			t.Errorf("the second set: got %d, want %d", o, AskOwner)
		}
		if o, r := s.Spend(2, someone, first); o != Spent || r.grant != 1 {
			t.Errorf("the first set: got %d, %+v", o, r)
		}
	}

	// The counters are changed, which ends the lease, whoever has it.
	s.Forget(3, 5, false)
	if back := s.DrainEnded(3+returnPause, nil); len(back) != 1 || s.GrantCount() != 0 {
		t.Errorf("got %d grants, and %+v back", s.GrantCount(), back)
	}
	s.DrainEnded(time.Hour, nil)
	if sh := &s.shards[5]; len(sh.leases)+len(sh.queue)+sh.inline != 0 {
		t.Errorf("got %d subjects, %d leases, of them %d inline", len(sh.leases), len(sh.queue), sh.inline)
	}
	if !s.deliverLease(time.Hour, 3, callerOps(5, 200, 1), 10) {
		t.Error("the second set got no lease after the first was forgotten")
	}
}

// inlineRequest is a request of a caller who allows that many a minute.
func inlineRequest(holder byte, want, remaining, amount int64) *GrantInput {
	r := request(holder, want, remaining,
		&algorithms.Limit{Kind: algorithms.FixedWindow, Amount: amount, Window: time.Minute})
	r.Ops[0].Key.Counter = counters.InlineCounter(0)
	return r
}

// What is outstanding to holders with different limits counts against all of them.
func TestLedgerOfSeveralSets(t *testing.T) {
	b := NewLeaseLedger(0)
	lo := counters.InlineCounter(0)
	first, _ := b.Grant(0, inlineRequest(1, 6, 100, 1000), debitAlways)
	second, amounts := b.Grant(0, inlineRequest(2, 10, 1100, 2000), debitAlways)
	if first == 0 || second == 0 || amounts[0] != 10 || b.Returnable(0, 7, lo) != 16 {
		t.Errorf("got %d, %v, and %d may come back", first, amounts, b.Returnable(0, 7, lo))
	}
	// A holder's report says nothing about the other's grant.
	r := inlineRequest(2, 10, 1100, 2000)
	r.Request.LastGrant, r.Request.Held = second, []HeldGrant{{ID: second, Left: []int64{4}}}
	b.Grant(0, r, func([]counters.Op) bool { return false })
	if n := b.Returnable(0, 7, lo); n != 10 {
		t.Errorf("%d may come back, want 6 of the first and 4 of the second", n)
	}
	r = inlineRequest(1, 6, 100, 1000)
	if id, _ := b.Grant(0, r, debitAlways); id != 0 {
		t.Error("granted although the holder's whole part is outstanding")
	}
	r.Request.LastGrant = first
	if _, amounts := b.Grant(0, r, debitAlways); amounts == nil || amounts[0] != 6 {
		t.Errorf("the first is spent, and its holder may have its whole part again: got %v", amounts)
	}
}

// A flood of inline subjects takes half of the leases, at holders and owners.
// Configured subjects get the rest.
func TestInlineLeasesLeaveHalf(t *testing.T) {
	s, b := NewLeases(0), NewLeaseLedger(0)
	subject := uint64(0)
	count := func(inline bool) (leased, granted int) {
		for range 10 * minSubjects {
			subject++
			r := inlineRequest(1, 10, 1000, 1000)
			if !inline {
				r.Ops[0].Key.Counter = 1
			}
			r.Ops[0].Key.Subject, r.Ops[0].Cost = subject, 1
			if _, ok := s.Request(1, someone, policy, r.Ops, 1); ok {
				leased++
			}
			if id, _ := b.Grant(1, r, debitAlways); id != 0 {
				granted++
			}
		}
		return leased, granted
	}
	for _, want := range []struct {
		inline bool
		n      int
	}{{true, minSubjects / 2}, {false, minSubjects / 2}, {true, 0}} {
		if leased, granted := count(want.inline); leased != want.n || granted != want.n {
			t.Errorf("inline %v: have %d leased, %d granted, want %d", want.inline, leased, granted, want.n)
		}
	}
	s.DrainEnded(time.Hour, nil)
	b.Sweep(time.Hour)
	if leased, granted := count(false); leased != minSubjects || granted != minSubjects {
		t.Errorf("rules alone: have %d leased, %d granted", leased, granted)
	}
	for i := range b.shards {
		if b.shards[i].inline != 0 || s.shards[i].inline != 0 {
			t.Errorf("shard %d counts %d and %d inline", i, s.shards[i].inline, b.shards[i].inline)
		}
	}
}

// G2 if callers differ: in each window, each caller is admitted at most its own
// limit, and all together at most the largest. Each node has a lease for one of
// them, and asks the owner for the others.
func TestG2_ModelOfSeveralSets(t *testing.T) {
	limit := func(kind algorithms.Kind, amount int64, window time.Duration) *algorithms.Limit {
		return &algorithms.Limit{Kind: kind, Amount: amount, Burst: amount, Window: window}
	}
	keyOf := func(lo uint64) counters.Key { return counters.Key{Subject: 12345, Counter: counters.InlineCounter(lo)} }
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.TokenBucket} {
		sets := []limitSet{
			{[]counters.Key{keyOf(1)}, []*algorithms.Limit{limit(kind, 1000, 2*time.Second)}},
			{[]counters.Key{keyOf(1)}, []*algorithms.Limit{limit(kind, 2000, 2*time.Second)}},
			{[]counters.Key{keyOf(1)}, []*algorithms.Limit{limit(kind, 1500, 2*time.Second)}},
			{[]counters.Key{keyOf(1), keyOf(2)},
				[]*algorithms.Limit{limit(kind, 1200, 2*time.Second), limit(kind, 3000, 8*time.Second)}},
			{[]counters.Key{keyOf(2)}, []*algorithms.Limit{limit(kind, 4000, 8*time.Second)}},
		}
		for _, c := range []networkCase{
			{kind: kind, ordered: true, slow: 2 * time.Millisecond},
			{kind: kind, slow: 40 * time.Millisecond, loss: 0.02, unspend: true},
		} {
			t.Run(fmt.Sprintf("%s/%+v", kind, c), func(t *testing.T) {
				for seed := range runCount(2) { // one with four sets, one with five
					w := newNetwork(t, seed, c)
					w.chance = rand.New(rand.NewPCG(seed, 2))
					w.sets = sets[seed%2:] // four sets, or five
					w.pickSet()
					w.policy.TTL = 100 * time.Millisecond
					end := 16 * time.Second
					w.traffic(end)
					w.run(end)
					hits, all := w.hits, [5]int{}
					for i := range hits {
						all[hits[i].set]++
					}
					check := func(what string, l *algorithms.Limit, costs func(h hit) int64) {
						w.limits, w.hits = []*algorithms.Limit{l}, nil
						for _, h := range hits {
							w.hits = append(w.hits, hit{at: h.at, cost: []int64{costs(h)}})
						}
						if over, now := w.excess(0); over > 0 {
							t.Errorf("seed %d: %s: %.3f too many at %s, of %v hits by set", seed, what, over, now, all)
						}
					}
					for _, k := range []counters.Key{keyOf(1), keyOf(2)} {
						var largest *algorithms.Limit
						of := func(h hit) (cost int64) {
							for i, key := range w.sets[h.set].key {
								if key == k {
									cost = h.cost[i]
								}
							}
							return cost
						}
						for set := range w.sets {
							for i, key := range w.sets[set].key {
								l := w.sets[set].limits[i]
								if key != k {
									continue
								}
								if largest == nil || l.Amount > largest.Amount {
									largest = l
								}
								if kind == algorithms.FixedWindow {
									check(fmt.Sprintf("set %d", set), l, func(h hit) int64 {
										if h.set != set {
											return 0
										}
										return of(h)
									})
								}
							}
						}
						check("all sets", largest, of)
					}
					w.table.Close()
				}
			})
		}
	}
}

// A lease is identified by its set of limits, not by its caller.
func TestCallersThatAgreeShareALease(t *testing.T) {
	s := NewLeases(0)
	s.deliverLease(1, 1, callerOps(5, 100, 1), 10)
	for range 5 {
		if o, _ := s.Spend(2, someone, callerOps(5, 100, 1)); o != Spent {
			t.Errorf("have %d", o)
		}
	}
	if o, _ := s.Spend(2, ring.NodeID{2}, callerOps(5, 100, 1)); o != AskOwner || s.GrantCount() != 0 {
		t.Errorf("another owner: have %d, %d grants", o, s.GrantCount())
	}
}
