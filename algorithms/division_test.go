package algorithms

import (
	"math"
	"math/big"
	"testing"
	"time"
)

func within(n, least, most int64) int64 {
	span := uint64(most-least) + 1
	return least + int64(uint64(n)%span)
}

// The shortcuts compute the same results as unbounded integers.
func FuzzDivision(f *testing.F) {
	const day = int64(24 * time.Hour)
	for _, elapsed := range []int64{0, 1, day / 10_000, day/10_000 + 1, day, 40 * day, math.MaxInt64} {
		for _, part := range []int64{0, 1, day - 1} {
			f.Add(int64(10_000), day, int64(7), part, elapsed)
			f.Add(int64(MaxAmount), int64(MinWindow), int64(maxOwed), part, elapsed)
			f.Add(int64(1), int64(MaxWindow), int64(0), part, elapsed)
		}
	}
	f.Fuzz(func(t *testing.T, amount, window, count, part, elapsed int64) {
		amount, window = within(amount, 0, MaxAmount), within(window, int64(MinWindow), int64(MaxWindow))
		count, part = within(count, 0, maxOwed), within(part, 0, window-1)
		l := &Limit{Kind: TokenBucket, Amount: amount, Burst: amount, Window: time.Duration(window)}
		const from = -1 << 62
		to := from + within(elapsed, 0, math.MaxInt64)
		have := l.drain(State{Count: count, Part: part, At: from}, to)
		if want := drained(l, count, part, from, to); have != want {
			t.Fatalf("drain %d + %d/%d for %d ns at %d: have %+v, want %+v", count, part, window,
				to-from, amount, have, want)
		}
		if amount > 0 {
			if have, want := l.drainTime(count, part, 0), timeToDrain(l, count, part); int64(have) != want {
				t.Fatalf("time to drain %d + %d/%d at %d: have %d, want %d", count, part, window, amount, have, want)
			}
			left := within(count, 0, amount)
			if have, want := Fullness(left, amount), levelOf(left, amount); have != want {
				t.Fatalf("level of %d of %d: have %d, want %d", left, amount, have, want)
			}
		}
	})
}

func product(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }

func drained(l *Limit, count, part, from, to int64) State {
	if count == 0 && part == 0 || to == from {
		return State{Count: count, Part: part, At: to}
	}
	owed := product(count, int64(l.Window))
	owed.Add(owed, big.NewInt(part)).Sub(owed, product(to-from, l.Amount))
	if owed.Sign() <= 0 {
		return State{At: to}
	}
	whole, rest := owed.DivMod(owed, big.NewInt(int64(l.Window)), new(big.Int))
	return State{Count: whole.Int64(), Part: rest.Int64(), At: to}
}

func timeToDrain(l *Limit, count, part int64) int64 {
	owed := product(count, int64(l.Window))
	owed.Add(owed, big.NewInt(part+l.Amount-1)).Div(owed, big.NewInt(l.Amount))
	if !owed.IsInt64() {
		return math.MaxInt64
	}
	return owed.Int64()
}

func levelOf(remaining, capacity int64) uint8 {
	used := product(capacity-remaining, 255)
	switch n := used.Div(used, big.NewInt(capacity)).Int64(); {
	case remaining == 0:
		return 255
	case remaining == capacity:
		return 0
	default:
		return uint8(max(1, n))
	}
}
