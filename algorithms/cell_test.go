package algorithms

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// call is a check of a CellBucket, and what redis-cell replies to it, in whole
// seconds; −1 as there.
type call struct {
	at, cost                 int64 // at in ms
	allowed                  bool
	remaining, retry, resets int64
}

// seconds rounds as redis-cell does: up, but for less than a millisecond.
func seconds(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	n := int64(d / time.Second)
	if d%time.Second >= time.Millisecond {
		n++
	}
	return n
}

// redis-cell 0.5.0's replies, as seen.
func TestCellVectors(t *testing.T) {
	no, yes := false, true
	for name, tt := range map[string]struct {
		burst, count, period int64
		calls                []call
	}{
		"4 5 5": {4, 5, 5, []call{
			{0, 6, no, 5, -1, 0}, {0, 1, yes, 4, -1, 1}, {0, 1, yes, 3, -1, 2},
			{0, 1, yes, 2, -1, 3}, {0, 1, yes, 1, -1, 4},
			{0, 1, yes, 0, -1, 5}, {0, 1, no, 0, 1, 5}, {3000, 1, yes, 2, -1, 3},
			{3100, 1, yes, 1, -1, 4}, {4000, 1, yes, 1, -1, 4},
			{8000, 1, yes, 4, -1, 1}, {9500, 1, yes, 4, -1, 1}, {9500, 0, yes, 4, -1, 1},
			{9500, 2, yes, 2, -1, 3}, {9500, 5, no, 2, 3, 3},
		}},
		"15 30 60": {15, 30, 60, []call{{0, 1, yes, 15, -1, 2}}},
		"0 1 2": {0, 1, 2,
			[]call{{0, 1, yes, 0, -1, 2}, {0, 1, no, 0, 2, 2}, {1500, 1, no, 0, 1, 1}, {2000, 1, yes, 0, -1, 2}}},
		"2 3 7": {2, 3, 7,
			[]call{{0, 1, yes, 2, -1, 3}, {0, 1, yes, 1, -1, 5}, {0, 1, yes, 0, -1, 7}, {0, 1, no, 0, 3, 7}}},
		"1000 1000 60": {1000, 1000, 60,
			[]call{{0, 1, yes, 1000, -1, 1}, {0, 1, yes, 999, -1, 1}, {0, 1, yes, 998, -1, 1}}},
		"1000 60 60": {1000, 60, 60, []call{{0, 1, yes, 1000, -1, 1}}},
		"a peek":     {4, 5, 5, []call{{0, 0, yes, 5, -1, 0}}},
	} {
		c := counter{l: &Limit{Kind: CellBucket, Amount: tt.count, Burst: tt.burst + 1,
			Window: time.Duration(tt.period) * time.Second}}
		for i, want := range tt.calls {
			d := c.take(atSecond(float64(want.at)/1000), want.cost)
			retry := seconds(d.RetryAfter)
			if d.Allowed {
				retry = -1
			}
			expect.Equal(t,
				(call{want.at, want.cost, d.Allowed, d.Remaining, retry, seconds(d.ResetAfter)}),
				want, "%s, call %d", name, i)
		}
	}
}

// redisCell is redis-cell's arithmetic, transcribed.
type redisCell struct {
	unit, tolerance, limit int64
	tat                    int64 // 0: no key
}

func newRedisCell(l *Limit) *redisCell {
	unit := int64(float64(l.Window) / float64(l.Amount))
	return &redisCell{unit: unit, tolerance: unit * l.Burst, limit: l.Burst}
}

func (r *redisCell) take(now, cost int64) (d Decision) {
	if r.tat <= now {
		r.tat = 0
	}
	tat := r.tat
	if tat == 0 {
		tat = now
	}
	next := max(now, tat) + r.unit*cost
	left := next - now
	if over := next - r.tolerance - now; over > 0 {
		left = tat - now
		d.RetryAfter = Never
		if r.unit*cost <= r.tolerance {
			d.RetryAfter = time.Duration(over)
		}
	} else {
		d.Allowed = true
		r.tat = next
	}
	d.Remaining = max(0, (r.tolerance-left)/r.unit) // redis-cell rounds both to microseconds
	d.ResetAfter = time.Duration(left)
	return d
}

// A CellBucket decides as redis-cell does, to the nanosecond.
func TestCellIsRedisCell(t *testing.T) {
	for seed := range uint64(3000) {
		chance := rand.New(rand.NewPCG(seed, 7))
		l := &Limit{Kind: CellBucket, Amount: 1 + chance.Int64N(1000),
			Burst:  1 + chance.Int64N(100),
			Window: time.Duration(1+chance.Int64N(100)) * time.Second}
		real, want := counter{l: l}, newRedisCell(l)
		now := At(time.Unix(1_800_000_000, 0))
		for i := range 200 {
			cost := chance.Int64N(4)
			if chance.IntN(5) == 0 {
				cost = chance.Int64N(l.Burst + 2)
			}
			have, want := real.take(now, cost), want.take(now.Steady, cost)
			if have.Allowed != want.Allowed || have.Remaining != want.Remaining ||
				have.RetryAfter != want.RetryAfter || have.ResetAfter != want.ResetAfter {
				t.Fatalf("seed %d, call %d, %+v: have %+v, want %+v", seed, i, l, have, want)
			}
			now.Steady += int64(chance.ExpFloat64() * float64(l.Window) / float64(l.Amount))
		}
	}
}

// More than one per millisecond is limited, which redis-cell does not do, and counted to the unit.
func TestCellLimitsHighRates(t *testing.T) {
	for _, perSecond := range []int64{1001, 6000, 1_000_000, 1_000_000_000} {
		l := &Limit{Kind: CellBucket, Amount: perSecond, Burst: 6001, Window: time.Second}
		c := counter{l: l}
		for i := range int64(6001) {
			if d := c.take(atSecond(0), 1); !d.Allowed || d.Remaining != 6000-i {
				t.Fatalf("%d a second: check %d: %+v", perSecond, i, d)
			}
		}
		if d := c.take(atSecond(0), 1); d.Allowed || d.RetryAfter != time.Second/time.Duration(perSecond) {
			t.Errorf("%d a second: the next one: %+v", perSecond, d)
		}
	}
}

// Calls with other limits are judged by their own amounts in the window of the
// first one. What is owed keeps its number of units.
func TestCellKeepsItsWindow(t *testing.T) {
	first := &Limit{Kind: CellBucket, Amount: 5, Burst: 5, Window: 5 * time.Second}
	for _, tt := range []struct {
		name              string
		amount, burst     int64
		window            time.Duration
		remaining         int64
		retry, reset, one time.Duration // after one more, the time until the next; the time until all is back
	}{
		{"the same", 5, 5, 5 * time.Second, 1, 0, 4 * time.Second, time.Second},
		{"a longer window", 5, 5, time.Hour, 1, 0, 4 * time.Second, time.Second},
		{"a shorter window", 5, 5, time.Second, 1, 0, 4 * time.Second, time.Second},
		{"a higher rate", 10, 5, 5 * time.Second, 1, 0, 2 * time.Second, 500 * time.Millisecond},
		{"a lower rate, with another window", 1, 5, time.Minute, 1, 0, 20 * time.Second, 5 * time.Second},
		{"a larger burst", 5, 8, time.Minute, 4, 0, 4 * time.Second, 0},
		{"a smaller burst", 5, 3, time.Minute, 0, time.Second, 3 * time.Second, 0},
	} {
		now := atSecond(0)
		s, _ := first.Take(State{}, now, 3)
		l := &Limit{Kind: CellBucket, Amount: tt.amount, Burst: tt.burst, Window: tt.window}
		s, ok := l.Take(s, now, 1)
		d := l.Describe(s, now, 1, ok)
		if ok != (tt.retry == 0) || d.Remaining != tt.remaining || d.ResetAfter != tt.reset ||
			d.RetryAfter != tt.retry {
			t.Errorf("%s: have %+v", tt.name, d)
		}
		if tt.one > 0 {
			if d := l.Peek(s, now, 2); d.RetryAfter != tt.one || d.Used != 4 {
				t.Errorf("%s: two more: have %+v", tt.name, d)
			}
		}
		// A limit of 0 reads what the counter keeps.
		none := &Limit{Kind: CellBucket, Window: MinWindow}
		if n := none.Peek(s, now, 0); n.ResetAfter != tt.reset || n.Used != d.Used {
			t.Errorf("%s: without limits: have %+v", tt.name, n)
		}
	}
	now := atSecond(0)
	s, _ := first.Take(State{}, now, 3)
	other := &Limit{Kind: CellBucket, Amount: 1, Burst: 5, Window: time.Minute}
	if d := other.Peek(s, atSecond(3), 5); !d.Allowed {
		t.Errorf("once all is back: have %+v", d)
	}
	s, _ = other.Take(s, atSecond(3), 1)
	if s.Count != int64(time.Minute) {
		t.Errorf("the next call begins a bucket with its own window: have %+v", s)
	}
}

// What comes back to a CellBucket leaves it as if it had not been taken, unless
// its rate may have changed.
func TestCellGivesBack(t *testing.T) {
	for seed := range uint64(2000) {
		chance := rand.New(rand.NewPCG(seed, 8))
		l := &Limit{Kind: CellBucket, Amount: 1 + chance.Int64N(1000),
			Burst: 1 + chance.Int64N(2000), Window: time.Second}
		now := At(time.Unix(1_800_000_000, 0))
		var s, ideal State
		other := func() {
			cost, ok := chance.Int64N(l.Burst/4+1), false
			s, ok = l.Take(s, now, cost)
			if ok {
				ideal = l.Force(ideal, TakeRecord{}, now, cost)
			}
		}
		step := func() {
			d := int64(chance.ExpFloat64() * float64(50*time.Millisecond))
			now.Steady, now.Wall = now.Steady+d, now.Wall+d
		}
		for range 30 {
			step()
			reserved := 1 + chance.Int64N(l.Burst)
			used, ok := chance.Int64N(reserved+1), false
			s, ok = l.Take(s, now, reserved)
			if !ok {
				other()
				continue
			}
			ideal = l.Force(ideal, TakeRecord{}, now, used)
			from := l.TakeRecord(s, now)
			from.MaxRate = l.Amount
			for range chance.IntN(4) {
				step()
				other()
			}
			step()
			s = l.Give(s, from, now, reserved-used)
			s, ideal = l.Advance(s, now), l.Advance(ideal, now)
			if l.cellOf(s,
				now).owed.less(l.cellOf(ideal, now).owed) {
				t.Fatalf("seed %d: have %+v, want at least %+v", seed, s, ideal)
			}
		}
		from := l.TakeRecord(s, now)
		from.MaxRate = l.Amount + 1
		if have := l.Give(s, from, now, 1); have != l.Advance(s, now) {
			t.Fatalf("seed %d: something came back although the rate was higher", seed)
		}
	}
}

// What takes centuries to drain is counted to the unit, too.
func TestCellOfCenturies(t *testing.T) {
	for _, l := range []*Limit{
		{Kind: CellBucket, Amount: 1, Burst: 5000, Window: MaxWindow},
		{Kind: CellBucket, Amount: 1, Burst: 1_000_000, Window: MaxWindow},
		{Kind: CellBucket, Amount: 7, Burst: 100_000, Window: 365 * 24 * time.Hour},
		{Kind: CellBucket, Amount: 1, Burst: 100, Window: 365 * 24 * time.Hour},
	} {
		c, now := counter{l: l}, At(time.Unix(1_800_000_000, 123_456_789))
		half := l.Burst / 2
		for i := range half {
			if d := c.take(now, 1); !d.Allowed || d.Remaining != l.Burst-1-i || d.MoreAfter <= 0 {
				t.Fatalf("%+v: check %d: have %+v", l, i, d)
			}
			now.Steady += 1000
		}
		if d := c.take(now, l.Burst-half); !d.Allowed || d.Remaining != 0 {
			t.Errorf("%+v: all of the rest: have %+v", l, d)
		}
		unit := l.Window / time.Duration(l.Amount)
		d := c.take(now, 1)
		if d.Allowed || d.RetryAfter > unit || d.RetryAfter < unit-time.Minute {
			t.Errorf("%+v: one more: have %+v", l, d)
		}
		if d := c.take(Instant{Steady: now.Steady + int64(unit)}, 1); !d.Allowed {
			t.Errorf("%+v: one more after %v: have %+v", l, unit, d)
		}
	}
}

// Extreme limits and states overflow nothing.
func TestCellExtremes(t *testing.T) {
	now := At(time.Unix(1_800_000_000, 0))
	full := State{Count: int64(MaxWindow), Part: int64(MaxWindow) | maxDoublings<<doublingsShift}
	full.SetAhead(now, maxTicks)
	for _, l := range []*Limit{
		{Kind: CellBucket, Amount: 1, Burst: MaxAmount, Window: MaxWindow},
		{Kind: CellBucket, Amount: MaxAmount, Burst: MaxAmount, Window: MinWindow},
		{Kind: CellBucket, Amount: 1, Burst: 1, Window: MaxWindow},
		{Kind: CellBucket, Window: MinWindow},
		{Kind: CellBucket, Amount: 7, Window: MinWindow},
	} {
		for _, s := range []State{{}, full,
			{Count: int64(MaxWindow), Part: 1, At: now.Steady + maxTicks},
			{Count: int64(MaxWindow), Part: int64(MaxWindow), At: now.Steady + 1}} {
			for _, cost := range []int64{0, 1, MaxAmount} {
				taken, ok := l.Take(s, now, cost)
				for i, have := range []State{
					taken, l.Force(s, TakeRecord{}, now, cost),
					l.ForceCapped(s, TakeRecord{}, now, cost), l.Reward(s, now, cost),
					l.ForceLate(s, TakeRecord{Steady: now.Steady}, now, cost),
					l.Give(s, TakeRecord{Steady: now.Steady, ResetAfter: math.MaxInt64, Amount: l.Amount}, now, cost),
				} {
					if !have.Legal(CellBucket) || have.Ahead(now) > maxTicks {
						t.Errorf("%+v, %+v, cost %d, change %d: have %+v", l, s, cost, i, have)
					}
				}
				d := l.Describe(taken, now, cost, ok)
				if d.Remaining < 0 || d.Remaining > l.Burst || d.Used < 0 || d.ResetAfter < 0 ||
					d.MoreAfter < 0 || !ok && d.RetryAfter < Never {
					t.Errorf("%+v, %+v, cost %d: have %+v", l, s, cost, d)
				}
			}
		}
	}
}

// times agrees with whole numbers of any size.
func TestWideTimes(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 9))
	for range 100_000 {
		w := uint128{chance.Uint64() >> (1 + chance.UintN(63)), chance.Uint64() >> chance.UintN(64)}
		a, b := 1+chance.Int64N(1<<55)>>chance.UintN(55), 1+chance.Int64N(1<<55)>>chance.UintN(55)
		n := new(big.Int).SetUint64(w.hi)
		n.Lsh(n, 64).Add(n, new(big.Int).SetUint64(w.lo)).Mul(n, big.NewInt(a)).Add(n,
			big.NewInt(b-1)).Div(n, big.NewInt(b))
		if n.BitLen() > 126 {
			continue
		}
		have := w.times(a, b)
		if want := (uint128{new(big.Int).Rsh(n, 64).Uint64(), n.Uint64()}); have != want {
			t.Fatalf("%v × %d / %d: have %v, want %v", w, a, b, have, want)
		}
		for shift := range uint(50) {
			if w.hi == 0 && w.lo < 1<<60 && w.double(shift).halve(shift) != w.lo {
				t.Fatalf("%v doubled and halved %d times: have %v", w, shift, w.double(shift).halve(shift))
			}
		}
	}
}
