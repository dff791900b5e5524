package localcache

import (
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

var (
	minute  = algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1000, Window: time.Minute}
	hour    = algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 9000, Window: time.Hour}
	someone = ring.NodeID{1}
	policy  = Policy{Threshold: 0.85, Idle: 0.02, TTL: 3 * time.Second}
	from    = Source{Owner: someone, Boot: 5, Lineage: 6}
)

// opsOf returns ops on the minute, and on the hour if there is a second cost.
func opsOf(costs ...int64) []counters.Op {
	limits := [...]*algorithms.Limit{&minute, &hour}
	var ops []counters.Op
	for i, c := range costs {
		ops = append(ops,
			counters.Op{Key: counters.Key{Subject: 1 << 60, Counter: uint64(i)}, Limit: limits[i], Cost: c})
	}
	return ops
}

// deliverGrant delivers the answer to a check, with a grant of these amounts.
func (ls *Leases) deliverGrant(now time.Duration, id uint64, amounts ...int64) {
	ops := opsOf(make([]int64, len(amounts))...)
	ls.Request(now, someone, policy, ops, 1)
	for i := range ops {
		ops[i].Decision = algorithms.Decision{Allowed: true, Remaining: 500, ResetAfter: time.Minute}
	}
	ls.AcceptAnswer(now, now, from, ops,
		Grant{ID: id, EndsIn: policy.TTL, Amounts: amounts, Marks: make([]algorithms.TakeMark, len(amounts))},
		true)
}

func TestSpend(t *testing.T) {
	s := NewLeases(0)
	if o, _ := s.Spend(1, someone, opsOf(1)); o != AskOwner {
		t.Fatalf("spent without a lease: %d", o)
	}
	s.deliverGrant(1, 1, 10)
	ops := opsOf(4)
	o, r := s.Spend(2, someone, ops)
	if d := ops[0].Decision; o != Spent || r.Until != 1+policy.TTL || d.Remaining != 496 || !d.Allowed || r.Renew {
		t.Errorf("have %d, %+v, %+v", o, r, d)
	}
	if o, r := s.Spend(2, someone, opsOf(4)); o != Spent || !r.Renew {
		t.Errorf("two are left: have %d, %+v", o, r)
	}
	if o, r := s.Spend(2, someone, opsOf(1)); o != Spent || r.Renew {
		t.Errorf("a renewal is under way: have %d, %+v", o, r)
	}
	if o, _ := s.Spend(2, someone, opsOf(2)); o != AskOwner {
		t.Errorf("one is left: have %d", o)
	}
	s.Unspend(r, opsOf(4))
	if o, _ := s.Spend(2, someone, opsOf(5)); o != Spent {
		t.Errorf("four came back: have %d", o)
	}
	expect.Equal(t, s.GrantCount(), 1, "grants")
}

// The next grant is fetched when half of this one is left, however small it is.
// The level of this grant and subject is 4 eighths.
func TestRenewalLevel(t *testing.T) {
	for size, want := range map[int64]int64{1: 0, 2: 1, 3: 1, 5: 2, 7: 3, 8: 4, 15: 7, 1000: 500} {
		s := NewLeases(0)
		s.deliverGrant(1, 1, size)
		left := size
		for renews := false; !renews && left > 0; left-- {
			_, receipt := s.Spend(2, someone, opsOf(1))
			renews = receipt.Renew
		}
		expect.Equal(t, left, want, "of %d are left when the next grant is fetched", size)
	}
}

// A second grant does not extend the first one. A third is given back in full.
func TestTwoGrants(t *testing.T) {
	s := NewLeases(0)
	s.deliverGrant(0, 1, 10)
	s.deliverGrant(time.Second, 2, 20)
	s.deliverGrant(time.Second, 3, 30)
	if back := s.DrainEnded(time.Second, nil); len(back) != 1 || back[0].Grant != 3 ||
		back[0].Ops[0].Cost != 30 || back[0].Source != from {
		t.Errorf("have %+v", back)
	}
	if o, r := s.Spend(2*time.Second, someone, opsOf(3)); o != Spent || r.Until != policy.TTL {
		t.Errorf("have %d, %+v", o, r)
	}
	expect.Equal(t, s.NextDrain(), policy.TTL, "the first one ends")
	back := s.DrainEnded(policy.TTL, nil)
	if len(back) != 0 || s.NextDrain() != policy.TTL+returnPause {
		t.Errorf("a check may still be under way: have %+v, the next at %v", back, s.NextDrain())
	}
	back = s.DrainEnded(policy.TTL+returnPause, nil)
	if len(back) != 1 || back[0].Grant != 1 || back[0].Ops[0].Cost != 7 {
		t.Errorf("have %+v", back)
	}
	o, first := s.Spend(policy.TTL, someone, opsOf(3))
	if o != Spent || first.Until != time.Second+policy.TTL {
		t.Errorf("have %d, %+v", o, first)
	}
	// If the current grant is too small, the next one may be enough; then the current one ends.
	s.deliverGrant(policy.TTL, 4, 50)
	if o, r := s.Spend(policy.TTL, someone, opsOf(40)); o != Spent || r.Until != 2*policy.TTL {
		t.Errorf("have %d, %+v", o, r)
	}
	s.Unspend(first, opsOf(3)) // into the ended grant
	if back := s.DrainEnded(policy.TTL+returnPause, nil); len(back) != 1 || back[0].Grant != 2 ||
		back[0].Ops[0].Cost != 20 {
		t.Errorf("have %+v", back)
	}
	if again := s.DrainEnded(policy.TTL+returnPause, nil); len(again) != 0 {
		t.Errorf("handed out twice: %+v", again)
	}
}

// Several limits are spent together or not at all.
func TestALeaseOfTwoLimits(t *testing.T) {
	s := NewLeases(0)
	s.deliverGrant(0, 1, 10, 3)
	if o, _ := s.Spend(1, someone, opsOf(1, 4)); o != AskOwner {
		t.Errorf("three are not four: have %d", o)
	}
	if o, _ := s.Spend(1, someone, opsOf(1, 3)); o != Spent {
		t.Errorf("have %d", o)
	}
	if o, _ := s.Spend(1, someone, opsOf(1, 0)); o != Spent {
		t.Errorf("nothing is asked of the second: have %d", o)
	}
	s.DrainEnded(policy.TTL, nil)
	if back := s.DrainEnded(policy.TTL+returnPause, nil); len(back) != 1 ||
		back[0].Ops[0].Cost != 8 || back[0].Ops[1].Cost != 0 {
		t.Errorf("have %+v", back)
	}
}

func TestWhatEndsALease(t *testing.T) {
	other := minute
	other.Amount++
	for name, spend := range map[string]func(s *Leases) Outcome{
		"time":          func(s *Leases) Outcome { o, _ := s.Spend(policy.TTL, someone, opsOf(1)); return o },
		"another owner": func(s *Leases) Outcome { o, _ := s.Spend(1, ring.NodeID{2}, opsOf(1)); return o },
		"another limit": func(s *Leases) Outcome {
			ops := opsOf(1)
			ops[0].Limit = &other
			o, _ := s.Spend(1, someone, ops)
			return o
		},
		"one limit more": func(s *Leases) Outcome { o, _ := s.Spend(1, someone, opsOf(1, 1)); return o },
		"a change": func(s *Leases) Outcome {
			s.Forget(1, 1<<60, false)
			o, _ := s.Spend(1, someone, opsOf(1))
			return o
		},
		"this node's end": func(s *Leases) Outcome {
			s.SetEnabled(1, false)
			o, _ := s.Spend(1, someone, opsOf(1))
			return o
		},
		"another life of the counters": func(s *Leases) Outcome {
			s.AcceptAnswer(1, 1, Source{Owner: someone, Boot: 5, Lineage: 7}, opsOf(0), Grant{}, false)
			o, _ := s.Spend(1, someone, opsOf(1))
			return o
		},
	} {
		s := NewLeases(0)
		s.deliverGrant(0, 1, 10)
		expect.Equal(t, spend(s), AskOwner, "%s", name)
		if back := s.DrainEnded(policy.TTL+returnPause,
			s.DrainEnded(policy.TTL, nil)); len(back) != 1 || back[0].Ops[0].Cost != 10 || s.GrantCount() != 0 {
			t.Errorf("%s: have %+v back, %d left", name, back, s.GrantCount())
		}
	}
}

func TestRememberedRefusals(t *testing.T) {
	s := NewLeases(0)
	refuse := func(wait time.Duration, full bool, costs ...int64) {
		ops := opsOf(costs...)
		s.Request(0, someone, policy, ops, 1)
		ops[0].Decision, ops[0].NoRoom = algorithms.Decision{RetryAfter: wait, Remaining: 2}, full
		for i := range ops[1:] {
			ops[1+i].Decision.Allowed = true
		}
		s.RememberRefusal(0, ops, time.Second)
	}
	try := func(now time.Duration, costs ...int64) (Outcome, algorithms.Decision) {
		ops := opsOf(costs...)
		o, _ := s.Spend(now, someone, ops)
		return o, ops[0].Decision
	}
	refuse(time.Minute, false, 3)
	if o, d := try(time.Millisecond, 3); o != Refused ||
		d.RetryAfter != time.Minute-time.Millisecond || d.Remaining != 2 || d.Allowed {
		t.Errorf("have %d, %+v", o, d)
	}
	for _, tt := range []struct {
		at   time.Duration
		cost int64
		want Outcome
	}{{1, 4, Refused}, {1, 2, AskOwner}, {time.Second, 3, AskOwner}} {
		if o, _ := try(tt.at, tt.cost); o != tt.want {
			t.Errorf("at %v for %d: have %d", tt.at, tt.cost, o)
		}
	}
	refuse(time.Millisecond, false, 3)
	if o, _ := try(time.Millisecond, 3); o != AskOwner {
		t.Errorf("it may be allowed by now: have %d", o)
	}
	refuse(algorithms.Never, false, 3, 1)
	if o, _ := try(1, 3, 5); o != Refused {
		t.Errorf("have %d", o)
	}
	if o, _ := try(1, 2, 1); o != AskOwner {
		t.Errorf("only the first one refused: have %d", o)
	}
	s = NewLeases(0)
	refuse(time.Minute, true, 3)
	if o, _ := try(1, 3); o != AskOwner {
		t.Errorf("a refusal for lack of room was remembered: have %d", o)
	}
}

// Memory is bounded, and is released again.
func TestSubjectsAreForgotten(t *testing.T) {
	s := NewLeases(0)
	n := 0
	for i := range 4 * minSubjects {
		ops := opsOf(1)
		ops[0].Key.Subject = uint64(i)
		if _, ok := s.Request(time.Duration(i), someone, policy, ops, 1); ok {
			n++
		}
	}
	expect.Equal(t, n, minSubjects, "subjects")
	s.DrainEnded(time.Hour, nil)
	for i := range s.shards {
		if len(s.shards[i].leases)+len(s.shards[i].queue) > 0 {
			t.Fatalf("shard %d still knows %d", i, len(s.shards[i].leases))
		}
	}
	expect.Equal(t, s.NextDrain(), never, "something is due")
}

// The first check asks for a few units, a flood asks for more each time, and a
// trickle asks for nothing.
func TestDemand(t *testing.T) {
	var d demand
	now := time.Second
	d.since = now
	last := int64(0)
	for range 6 {
		d.add(1)
		want := d.estimate(now, policy.TTL, 1)
		if want < last || want > max(initialChecks, maxGrowth*last) {
			t.Errorf("after %d have %d", last, want)
		}
		last, now = want, now+time.Millisecond
		d.add(want)
	}
	if last < 4*maxGrowth*maxGrowth*maxGrowth {
		t.Errorf("have %d at the end of a flood", last)
	}
	for range 20 {
		now += policy.TTL
		d.add(1)
		last = d.estimate(now, policy.TTL, 1)
	}
	if last > 2 {
		t.Errorf("have %d for one in %v", last, policy.TTL)
	}
	for range 20 {
		now += 2 * policy.TTL
		d.add(1)
		last = d.estimate(now, policy.TTL, 1)
	}
	expect.Equal(t, last, 0, "for one in %v", 2*policy.TTL)
}

func TestPolicy(t *testing.T) {
	limit := func(l algorithms.Limit) []*rules.Limit { return []*rules.Limit{{Limit: l}} }
	short, small, log := minute, minute, minute
	short.Window, small.Amount, log.Kind = 100*time.Millisecond, 29, algorithms.SlidingLog
	leaky := algorithms.Limit{Kind: algorithms.LeakyBucket, Amount: 1000, Burst: 1000, Window: time.Minute}
	bucket := algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 1000, Burst: 29, Window: time.Minute}
	tests := []struct {
		name   string
		rule   rules.Rule
		limits []*rules.Limit
		ttl    time.Duration
	}{
		{"a twentieth", rules.Rule{}, limit(minute), 3 * time.Second},
		{"at most five seconds", rules.Rule{}, limit(hour), 5 * time.Second},
		{"the shortest of its limits", rules.Rule{}, append(limit(hour), limit(minute)...), 3 * time.Second},
		{"as the rule says", rules.Rule{Lease: rules.Lease{TTL: time.Second}}, limit(minute), time.Second},
		{"exact", rules.Rule{Consistency: rules.Exact}, limit(minute), 0},
		{"local", rules.Rule{Consistency: rules.Local}, limit(minute), 0},
		{"delays", rules.Rule{OnLimit: rules.DelayCheck}, limit(minute), 0},
		{"blocks", rules.Rule{Blocks: []*rules.Limit{{}}}, limit(minute), 0},
		{"a short window", rules.Rule{}, limit(short), 0},
		{"less than ten for each", rules.Rule{}, limit(small), 3 * time.Second},
		{"a small burst", rules.Rule{}, limit(bucket), 3 * time.Second},
		{"a log", rules.Rule{}, limit(log), 0},
		{"a leaky bucket", rules.Rule{}, append(limit(minute), limit(leaky)...), 0},
	}
	for _, tt := range tests {
		if have := PolicyOf(&tt.rule, tt.limits, 3); have.TTL != tt.ttl || have.None() != (tt.ttl == 0) {
			t.Errorf("%s: have %+v", tt.name, have)
		} else if small := strings.Contains(tt.name, "less than") ||
			strings.Contains(tt.name, "small"); have.TooSmall != small {
			t.Errorf("%s: have %+v", tt.name, have)
		}
	}
}
