package localcache

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

var (
	fastLimit   = &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 1000, Window: time.Second}
	slowLimit   = &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 100_000, Window: time.Minute}
	leasePolicy = Policy{Threshold: 0.85, Idle: 0.02, TTL: time.Second}
	leaseOwner  = ring.NodeID{1}
)

func leaseOps(costs ...int64) []counters.Op {
	ops := []counters.Op{{Key: counters.Key{Subject: 1, Counter: 1}, Limit: fastLimit},
		{Key: counters.Key{Subject: 1, Counter: 2}, Limit: slowLimit}}[:len(costs)]
	for i := range ops {
		ops[i].Cost = costs[i]
		ops[i].Decision = algorithms.Decision{Allowed: true, Remaining: 1000}
	}
	return ops
}

// heldUnits returns how many units s may still spend, according to its report to an owner.
func heldUnits(s *Leases, now time.Duration) (n int64) {
	w, _ := s.Request(now, leaseOwner, leasePolicy, leaseOps(1), 1)
	for _, h := range w.Held {
		n += h.Left[0]
	}
	return n
}

// G2: a check that another op refuses a moment later puts back what it spent,
// but only into the grant it came from. Each process of an owner numbers grants
// from the start, so after a restart another grant may have the same number.
func TestG2_UnspendIntoItsOwnGrant(t *testing.T) {
	s := NewLeases(0)
	now := time.Second
	come := func(process uint64) {
		s.Request(now, leaseOwner, leasePolicy, leaseOps(1), 1)
		s.AcceptAnswer(now, now, Source{Owner: leaseOwner, Boot: process, Lineage: process}, leaseOps(1),
			Grant{ID: 1, EndsIn: time.Second, Amounts: []int64{10}, Marks: []algorithms.TakeMark{1}}, false)
	}
	come(1)
	_, receipt := s.Spend(now, leaseOwner, leaseOps(5))
	come(2) // the owner has restarted
	if outcome, _ := s.Spend(now, leaseOwner, leaseOps(10)); outcome != Spent {
		t.Fatalf("have %d", outcome)
	}
	s.Unspend(receipt, leaseOps(5))
	if outcome, _ := s.Spend(now, leaseOwner, leaseOps(5)); outcome == Spent {
		t.Error("15 units were spent from a grant of 10")
	}
}

// G2: a holder's report covers everything it may still spend, because the owner
// relies on it when it takes back others' grants. So a holder does not spend a
// grant that arrives after a later one, and a grant never exceeds the report
// when cost is put back.
func TestG2_LateGrantIsNotSpentUnknown(t *testing.T) {
	s := NewLeases(0)
	now := time.Second
	from := Source{Owner: leaseOwner, Boot: 1, Lineage: 1}
	come := func(id uint64) {
		s.AcceptAnswer(now, now, from, leaseOps(1),
			Grant{ID: id, EndsIn: time.Second, Amounts: []int64{10}, Marks: []algorithms.TakeMark{1}}, false)
	}
	s.Request(now, leaseOwner, leasePolicy, leaseOps(1), 1)
	come(6)
	w, _ := s.Request(now, leaseOwner, leasePolicy, leaseOps(1), 1)
	if w.LastGrant != 6 || len(w.Held) != 1 {
		t.Fatalf("have %+v", w)
	}
	// The owner now believes that nothing of grant 5 is outstanding, but the grant was in transit.
	come(5)
	if n := heldUnits(s, now); n > 10 {
		t.Errorf("the holder may spend %d units, but reported 10", n)
	}
}

// A refusal by one limit applies no longer than that limit said. After that, it
// does not refuse a smaller cost just because another limit refused the same
// check for longer.
func TestRefusalStandsByEachLimit(t *testing.T) {
	s := NewLeases(0)
	now := time.Second
	s.Request(now, leaseOwner, leasePolicy, leaseOps(1, 1000), 1)
	ops := leaseOps(1, 1000)
	ops[0].Decision = algorithms.Decision{RetryAfter: 10 * time.Millisecond}
	ops[1].Decision = algorithms.Decision{RetryAfter: 30 * time.Second, Remaining: 500}
	s.RememberRefusal(now, ops, leasePolicy.TTL)
	if outcome, _ := s.Spend(now+time.Millisecond, leaseOwner, leaseOps(1, 0)); outcome != Refused {
		t.Errorf("while the first limit refuses: have %d", outcome)
	}
	now += 50 * time.Millisecond
	if outcome, _ := s.Spend(now, leaseOwner, leaseOps(1, 1000)); outcome != Refused {
		t.Errorf("the second limit refuses: have %d", outcome)
	}
	if outcome, _ := s.Spend(now, leaseOwner, leaseOps(1, 1)); outcome == Refused {
		t.Error("refused by a limit whose retry_after was over 40 ms ago")
	}
}

// If a renewal was never sent, because the caller was suspended until the grant
// ended, the subject's leases can still be renewed later.
func TestRenewalAfterOneThatWasNeverSent(t *testing.T) {
	s := NewLeases(0)
	from := Source{Owner: leaseOwner, Boot: 1, Lineage: 1}
	renewed := 0
	for i := range 3 {
		now := time.Duration(i+1) * 2 * time.Second
		s.Request(now, leaseOwner, leasePolicy, leaseOps(1), 1)
		s.AcceptAnswer(now, now, from, leaseOps(1),
			Grant{ID: uint64(i + 1), EndsIn: time.Second, Amounts: []int64{100}, Marks: []algorithms.TakeMark{1}},
			false)
		for range 100 {
			if _, r := s.Spend(now, leaseOwner, leaseOps(1)); r.Renew {
				renewed++ // no answer arrives
			}
		}
	}
	expect.Equal(t, renewed, 3, "of 3 grants asked for a renewal")
}

// Any valid cost, from as many checks as one question may carry, leaves the demand finite.
func TestDemandOfHugeCosts(t *testing.T) {
	huge := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: algorithms.MaxAmount, Window: time.Second}
	s := NewLeases(0)
	ops := []counters.Op{{Key: counters.Key{Subject: 1, Counter: 1}, Limit: huge, Cost: algorithms.MaxAmount}}
	for i := range 200 {
		now := time.Second + time.Duration(i)*time.Millisecond
		w, _ := s.Request(now, leaseOwner, leasePolicy, ops, 10_000)
		if w.Want[0] <= 0 {
			t.Fatalf("after %d questions: have a request for %d", i, w.Want[0])
		}
	}
}

// A remembered refusal reports a cost that can never be allowed as such, even
// if it is the refusal of a smaller one.
func TestRefusalOfWhatIsNeverAllowed(t *testing.T) {
	s := NewLeases(0)
	now := time.Second
	s.Request(now, leaseOwner, leasePolicy, leaseOps(1), 1)
	ops := leaseOps(1)
	ops[0].Decision = algorithms.Decision{RetryAfter: 300 * time.Millisecond}
	s.RememberRefusal(now, ops, leasePolicy.TTL)
	ops = leaseOps(fastLimit.Amount + 1)
	if outcome, _ := s.Spend(now, leaseOwner, ops); outcome == Refused &&
		ops[0].Decision.RetryAfter != algorithms.Never {
		t.Errorf("have retry_after %s", ops[0].Decision.RetryAfter)
	}
}

// A remembered refusal of another limit does not admit a cost that can never be
// allowed: all limits of the check refuse it.
func TestRefusalBesideWhatIsNeverAllowed(t *testing.T) {
	s := NewLeases(0)
	now := time.Second
	s.Request(now, leaseOwner, leasePolicy, leaseOps(1, 1), 1)
	ops := leaseOps(1, 1)
	ops[1].Decision = algorithms.Decision{RetryAfter: 300 * time.Millisecond}
	s.RememberRefusal(now, ops, leasePolicy.TTL)

	ops = leaseOps(fastLimit.Amount+1, 1)
	if outcome, _ := s.Spend(now, leaseOwner, ops); outcome != Refused {
		t.Fatalf("have %d, want %d", outcome, Refused)
	}
	if d := ops[0].Decision; d.Allowed || d.RetryAfter != algorithms.Never {
		t.Errorf("have allowed %v, retry_after %s", d.Allowed, d.RetryAfter)
	}
}

// TestRefusalFromBeforeForget: a refusal is on its way while the subject is
// reset, perhaps by another owner.
func TestRefusalFromBeforeForget(t *testing.T) {
	refused := func() []counters.Op {
		ops := leaseOps(1)
		ops[0].Decision = algorithms.Decision{RetryAfter: time.Minute}
		return ops
	}
	for _, next := range []ring.NodeID{leaseOwner, {2}} {
		for _, refusalsOnly := range []bool{false, true} {
			s := NewLeases(0)
			s.Request(1, leaseOwner, leasePolicy, leaseOps(1), 1)
			s.Request(2, next, leasePolicy, leaseOps(1), 1)
			s.Forget(3, 1, refusalsOnly)

			s.RememberRefusal(1, refused(), leasePolicy.TTL)
			if outcome, _ := s.Spend(4, next, leaseOps(1)); outcome != AskOwner {
				t.Errorf("after a refusal from before: got %d, want %d", outcome, AskOwner)
			}
			s.RememberRefusal(4, refused(), leasePolicy.TTL)
			if outcome, _ := s.Spend(5, next, leaseOps(1)); outcome != Refused {
				t.Errorf("after a refusal from later: got %d, want %d", outcome, Refused)
			}
		}
	}
}
