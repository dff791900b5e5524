package localcache

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

// If many checks are refused, a node does not ask for each unit that comes
// back. If only a few are, it follows the owner's answer.
func TestPressure(t *testing.T) {
	second := algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 100, Burst: 1500, Window: time.Second}
	small := algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 100, Burst: 4, Window: time.Second}
	policy := policy
	policy.Nodes = 10
	for _, tt := range []struct {
		name  string
		limit algorithms.Limit
		cost  int64
		times int
		after time.Duration // since the last refusal
		want  time.Duration
	}{
		{"few", second, 1000, pressureThreshold - 1, 0, 0},
		{"many", second, 1000, pressureThreshold, 0, policy.TTL / backOffDivisor},
		{"many, a while ago", second, 1000, pressureThreshold, policy.TTL / 2, 0},
		{"very many, a while ago", second, 1000, 2 * pressureThreshold, policy.TTL / 2, policy.TTL / backOffDivisor},
		{"very many, long ago", second, 1000, 100, policy.TTL, 0},
		{"a bucket that is soon full", small, 1000, pressureThreshold, 0, 10 * time.Millisecond},
		{"what a question brings is soon there again: its cost, and a lease of 2 % of 1,500 over 10 nodes", second, 4, pressureThreshold, 0, 70 * time.Millisecond},
		{"a limit of nothing", algorithms.Limit{Kind: algorithms.TokenBucket, Window: time.Second},
			1, pressureThreshold, 0, 0},
		{"a window that begins anew", minute, 1000, pressureThreshold, 0, 0},
	} {
		var p pressure
		for range tt.times {
			p.addRefusal(time.Minute, policy.TTL)
		}
		expect.Equal(t, p.backOff(time.Minute+tt.after, policy, &tt.limit, tt.cost), tt.want, "%s", tt.name)
	}
}

// A node refuses what it knows to be used up for as long as that lasts, and says when to retry.
func TestUsedUp(t *testing.T) {
	bucket := algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 1000, Burst: 100_000, Window: time.Second}
	s, policy := NewLeases(0), policy
	policy.Nodes = 20 // a lease is at most 100
	ask := func(now time.Duration) (Outcome, algorithms.Decision) {
		ops := opsOf(1)
		ops[0].Limit = &bucket
		o, _ := s.Spend(now, someone, ops)
		return o, ops[0].Decision
	}
	answer := func(now time.Duration, d algorithms.Decision) {
		ops := opsOf(1)
		ops[0].Limit = &bucket
		s.Request(now, someone, policy, ops, 1)
		ops[0].Decision = d
		if d.Allowed {
			s.AcceptAnswer(now, now, from, ops, Grant{}, false)
		} else {
			s.RememberRefusal(now, ops, policy.TTL)
		}
	}
	const began = time.Minute
	answer(began, algorithms.Decision{RetryAfter: time.Millisecond})
	for range pressureThreshold {
		if o, d := ask(began); o != Refused || d.RetryAfter != time.Millisecond {
			t.Fatalf("have %d, %+v", o, d)
		}
	}
	now := began + time.Millisecond
	if o, _ := ask(now); o != AskOwner {
		t.Fatalf("there may be room: have %d", o)
	}
	answer(now, algorithms.Decision{Allowed: true})
	const hold = 101 * time.Millisecond // the time in which 101 units come back
	if o, d := ask(now); o != Refused || d.RetryAfter != hold || d.Allowed {
		t.Errorf("nothing is left: have %d, %+v", o, d)
	}
	if o, _ := ask(now + hold); o != AskOwner {
		t.Errorf("there is room again: have %d", o)
	}
	answer(now, algorithms.Decision{Allowed: true, Remaining: 1})
	if o, _ := ask(now); o != AskOwner {
		t.Errorf("one is left: have %d", o)
	}
	answer(now, algorithms.Decision{RetryAfter: time.Millisecond})
	if o, d := ask(now); o != Refused || d.RetryAfter != hold {
		t.Errorf("refused by the owner: have %d, %+v", o, d)
	}
	// Without pressure, the owner's answer applies.
	now += policy.TTL
	answer(now, algorithms.Decision{RetryAfter: time.Millisecond})
	if o, d := ask(now); o != Refused || d.RetryAfter != time.Millisecond {
		t.Errorf("without pressure: have %d, %+v", o, d)
	}
	answer(now, algorithms.Decision{Allowed: true})
	if o, _ := ask(now); o != AskOwner {
		t.Errorf("without pressure: have %d", o)
	}
}
