package counters

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// After a check, each decision reports how much of its counter is used, whether
// the cost was taken, refused, or withdrawn because another limit refused.
func TestDecisionsSayWhatIsUsed(t *testing.T) {
	table, now := newTable(t, 1000), epoch
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 2))
	verdicts := map[Verdict]int{}
	for step := range 10_000 {
		now = after(time.Duration(now.Steady-epoch.Steady) + time.Duration(rng.Int64N(int64(5*time.Second))))
		ops := randomCheck(rng)
		verdicts[table.Take(now, ops)]++
		for i := range ops {
			op := &ops[i]
			if op.Block {
				continue
			}
			if used, _ := table.Usage(now, op.Key, op.Limit); op.Decision.Used != used {
				t.Fatalf("seed %d, step %d: have %+v of %+v, want %d used", seed, step, op.Decision, *op.Limit, used)
			}
		}
	}
	if verdicts[Admitted] < 1000 || verdicts[Refused] < 1000 {
		t.Errorf("have verdicts %v", verdicts)
	}
}

// What other regions lend to a fixed window raises its limit. Used is what was used here.
func TestUsedOfAWidenedWindow(t *testing.T) {
	table, l, k := newTable(t, 1000), perMinute(algorithms.FixedWindow, 10), key(1)
	ops := []Op{{Key: k, Limit: l, Cost: 8}}
	table.Take(epoch, ops)
	if n, err := table.CreditLoan(epoch, k, l,
		l.TakeRecord(l.Advance(algorithms.State{}, epoch), epoch).Window, 20, 8,
		always); n != 20 || err != nil {
		t.Fatalf("have borrowed %d, %v", n, err)
	}
	for want := int64(16); want <= 24; want += 8 {
		if v := table.Take(epoch, ops); v != Admitted || ops[0].Decision.Used != want ||
			ops[0].Decision.Remaining != 30-want {
			t.Errorf("%s: have %+v, want %d used", v, ops[0].Decision, want)
		}
	}
	if v := table.Take(epoch, ops); v != Refused || ops[0].Decision.Used != 24 {
		t.Errorf("%s: have %+v, want 24 used", v, ops[0].Decision)
	}
}
