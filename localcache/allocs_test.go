package localcache

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// hotLeases returns leases of many units of two limits, and a subject that is refused.
func hotLeases() (s *Leases, spent, refused, unknown []counters.Op) {
	s = NewLeases(0)
	s.deliverGrant(1, 1, algorithms.MaxAmount, algorithms.MaxAmount)
	of := func(hi uint64) []counters.Op {
		ops := opsOf(1, 2)
		for i := range ops {
			ops[i].Key.Subject += hi
		}
		return ops
	}
	refused = of(1)
	s.Request(1, someone, policy, refused, 1)
	for i := range refused {
		refused[i].Decision = algorithms.Decision{RetryAfter: time.Minute, ResetAfter: time.Minute}
	}
	s.RememberRefusal(1, refused, policy.TTL)
	return s, of(0), refused, of(2)
}

func TestSpendAllocatesNothing(t *testing.T) {
	s, spent, refused, unknown := hotLeases()
	for name, tt := range map[string]struct {
		ops   []counters.Op
		owner ring.NodeID
		want  Outcome
	}{
		"spent": {spent, someone, Spent}, "refused": {refused, someone, Refused},
		"unknown": {unknown, someone, AskOwner},
	} {
		if n := testing.AllocsPerRun(500, func() {
			if o, _ := s.Spend(2, tt.owner, tt.ops); o != tt.want {
				t.Errorf("%s: have %d", name, o)
			}
		}); n != 0 {
			t.Errorf("%s: have %v allocations, want 0", name, n)
		}
	}
	if n := testing.AllocsPerRun(500, func() {
		if o, r := s.Spend(2, someone, spent); o == Spent {
			s.Unspend(r, spent)
		} else {
			t.Errorf("have %d", o)
		}
	}); n != 0 {
		t.Errorf("put back: have %v allocations, want 0", n)
	}
}

func TestCountersAllocateNothing(t *testing.T) {
	c := NewFallbackTable(8000)
	defer c.Close()
	ops := opsOf(1, 1)
	now := algorithms.At(time.Unix(1_800_000_000, 0))
	c.Take(now, ops)
	if n := testing.AllocsPerRun(2000, func() { // until the first of them refuses
		c.Take(now, ops)
		if share, ok := ShareOf(&minute, 3, 1); !ok || share.Amount != 333 {
			t.Errorf("have %+v", share)
		}
	}); n != 0 || ops[0].Decision.Allowed {
		t.Errorf("have %v allocations, want 0", n)
	}
}

func BenchmarkSpend(b *testing.B) {
	s, spent, refused, unknown := hotLeases()
	for name, ops := range map[string][]counters.Op{"spent": spent, "refused": refused, "unknown": unknown} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Spend(2, someone, ops)
			}
		})
	}
}
