package counters

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// A count takes nothing when another op of its check refuses, whatever the state of its counter.
func TestRefusedChecksCountNothing(t *testing.T) {
	table := New(1000)
	defer table.Close()
	limit := algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 3, Window: time.Hour}
	now := algorithms.At(time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC))
	for name, at := range map[string]algorithms.Instant{
		"now":                          now,
		"after the clock was set back": {Steady: now.Steady + 1, Wall: now.Wall - int64(3*time.Hour)},
	} {
		counted, other := Key{Subject: uint64(len(name)), Counter: 1}, Key{Subject: uint64(len(name)), Counter: 2}
		fill := []Op{{Key: counted, Limit: &limit, Cost: 3}}
		if v := table.Take(now, fill); v != Admitted {
			t.Fatalf("%s: have %v", name, v)
		}
		ops := []Op{{Key: counted, Limit: &limit, Cost: 5, Mode: CountMode}, {Key: other, Limit: &limit, Cost: 4}}
		if v := table.Take(at, ops); v != Refused || ops[0].Decision.Used != 3 {
			t.Errorf("%s: have %v, %d used", name, v, ops[0].Decision.Used)
		}
		if used, _ := table.Usage(at, counted, &limit); used != 3 {
			t.Errorf("%s: %d used, want 3: the check was refused", name, used)
		}
		ops = ops[:1]
		ops[0].Mode = CountMode
		if v := table.Take(at, ops); v != Admitted || ops[0].Decision.Allowed || ops[0].Decision.Used != 8 {
			t.Errorf("%s: have %v, %+v", name, v, ops[0].Decision)
		}
		look := []Op{{Key: counted, Limit: &limit, Cost: 1, Mode: PeekMode}}
		if v := table.Take(at, look); v != Refused || look[0].Decision.Used != 8 {
			t.Errorf("%s: a peek: have %v, %+v", name, v, look[0].Decision)
		}
	}
}
