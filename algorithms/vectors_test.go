package algorithms

import (
	"math"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// step is one expected decision: at t seconds, a check of cost is allowed or
// refused, and leaves remaining.
type step struct {
	t         float64
	cost      int64
	allowed   bool
	remaining int64
	retry     time.Duration // compared if refused
	delay     time.Duration // compared if allowed
}

func allowedStep(t float64, cost, remaining int64) step {
	return step{t: t, cost: cost, allowed: true, remaining: remaining}
}

func refusedStep(t float64, cost, remaining int64, retry time.Duration) step {
	return step{t: t, cost: cost, remaining: remaining, retry: retry}
}

func delayedStep(t float64, remaining int64, delay time.Duration) step {
	return step{t: t, cost: 1, allowed: true, remaining: remaining, delay: delay}
}

func atSecond(t float64) Instant {
	ns := int64(t*1e9 + 0.5)
	return Instant{Steady: ns, Wall: ns}
}

// counter gives states and logs the same interface, as the table of counters does.
type counter struct {
	l     *Limit
	state State
	log   Log
}

func (c *counter) take(now Instant, cost int64) Decision {
	if c.l.Kind == SlidingLog {
		peeked := c.log.Peek(c.l, now, cost)
		ok := c.log.Take(c.l, now, cost)
		d := c.log.Describe(c.l, now, cost, ok)
		if d != peeked {
			panic("peek and take differ")
		}
		if d.Used != c.log.Used() {
			panic("the decision and the log differ in what is used")
		}
		return d
	}
	peeked := c.l.Peek(c.state, now, cost)
	var ok bool
	c.state, ok = c.l.Take(c.state, now, cost)
	d := c.l.Describe(c.state, now, cost, ok)
	if d != peeked {
		panic("peek and take differ")
	}
	if d.Used != c.l.Used(c.state, now) {
		panic("the decision and the state differ in what is used")
	}
	return d
}

func TestVectors(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	noon := float64(time.Date(2026, 1, 2, 12, 0, 59, 0, time.UTC).Unix())
	tests := []struct {
		name  string
		limit Limit
		steps []step
	}{
		{"token bucket", Limit{Kind: TokenBucket, Amount: 10, Burst: 10, Window: 10 * s}, []step{
			allowedStep(0, 1, 9), allowedStep(0, 4, 5), allowedStep(0, 5, 0), refusedStep(0, 1, 0, s),
			refusedStep(0.5, 1, 0, s/2), allowedStep(0.5, 0, 0),
			allowedStep(1, 1, 0), allowedStep(6, 5, 0),
			allowedStep(100, 0, 10), refusedStep(100, 11, 10, Never), allowedStep(100, 10, 0),
		}},
		{"token bucket with a burst", Limit{Kind: TokenBucket, Amount: 100, Burst: 10, Window: 60 * s}, []step{
			allowedStep(0, 10, 0), refusedStep(0, 1, 0, 600*ms), allowedStep(0.6, 1, 0), allowedStep(60, 10, 0),
		}},
		{"token bucket, period no whole nanoseconds",
			Limit{Kind: TokenBucket, Amount: 7, Burst: 7, Window: 60 * s}, []step{
				allowedStep(0, 7, 0), refusedStep(0, 1, 0, 8_571_428_572), allowedStep(60, 0, 7),
				allowedStep(60, 7, 0), refusedStep(60, 1, 0, 8_571_428_572),
			}},
		{"leaky bucket", Limit{Kind: LeakyBucket, Amount: 2, Burst: 5, Window: s}, []step{
			delayedStep(0, 4, 0), delayedStep(0, 3, 500*ms), delayedStep(0, 2, s),
			delayedStep(0, 1, 1500*ms), delayedStep(0, 0, 2*s),
			refusedStep(0, 1, 0, 500*ms), delayedStep(0.5, 0, 2*s), delayedStep(10, 4, 0),
		}},
		{"fixed window", Limit{Kind: FixedWindow, Amount: 100, Window: 60 * s}, []step{
			allowedStep(noon, 100, 0), refusedStep(noon, 1, 0, s), allowedStep(noon+1, 100, 0),
			allowedStep(noon+61, 50, 50), refusedStep(noon+61, 60, 50, 60*s),
			allowedStep(noon+61, 50, 0), refusedStep(noon+61, 101, 0, Never),
		}},
		{"first window", Limit{Kind: FirstWindow, Amount: 3, Window: 10 * s}, []step{
			refusedStep(0, 4, 3, Never), allowedStep(1, 0, 3), allowedStep(2, 1, 2),
			allowedStep(5, 2, 0), refusedStep(6, 1, 0, 6*s), refusedStep(6, 4, 0, Never),
			allowedStep(6, 0, 0),
			refusedStep(11.9, 1, 0, 100*ms), allowedStep(12, 0, 3), allowedStep(20, 2, 1),
			refusedStep(25, 2, 1, 5*s), allowedStep(29.9, 1, 0), allowedStep(30, 3, 0),
			refusedStep(30, 1, 0, 10*s),
		}},
		{"sliding log", Limit{Kind: SlidingLog, Amount: 3, Window: 10 * s}, []step{
			allowedStep(0, 1, 2), allowedStep(4, 1, 1), allowedStep(8, 1, 0),
			refusedStep(9, 1, 0, s), allowedStep(10, 1, 0),
			refusedStep(13.9, 1, 0, 100*ms), allowedStep(14, 1, 0), refusedStep(14, 4, 0, Never), allowedStep(14, 0, 0),
		}},
		{"sliding window", Limit{Kind: SlidingWindow, Amount: 100, Window: 60 * s}, []step{
			allowedStep(0, 60, 40), allowedStep(75, 20, 35), allowedStep(75, 35, 0),
			refusedStep(75, 1, 0, s), allowedStep(76, 1, 0),
		}},
		{"sliding window, full current", Limit{Kind: SlidingWindow, Amount: 100, Window: 60 * s}, []step{
			allowedStep(90, 100, 0), refusedStep(90, 1, 0, 30*s+600*ms),
			refusedStep(120.5, 1, 0, 100*ms), allowedStep(120.6, 1, 0),
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := counter{l: &tt.limit}
			for i, want := range tt.steps {
				have := c.take(atSecond(want.t), want.cost)
				if have.Allowed != want.allowed || have.Remaining != want.remaining ||
					have.RetryAfter != want.retry || have.Delay != want.delay {
					t.Errorf("step %d, %+v: have %+v", i, want, have)
				}
			}
		})
	}
}

func TestTokenBucketOverAnyMinute(t *testing.T) {
	l := &Limit{Kind: TokenBucket, Amount: 100, Burst: 10, Window: time.Minute}
	c := counter{l: l}
	admitted := 0
	for ms := 0; ms <= 60_000; ms++ {
		if c.take(atSecond(float64(ms)/1000), 1).Allowed {
			admitted++
		}
	}
	expect.Equal(t, admitted, 110, "admitted in a minute")
}

func TestDebtOfTheLastWindowLeavesThisOneAlone(t *testing.T) {
	l := &Limit{Kind: SlidingWindow, Amount: 100, Window: time.Minute}
	before := atSecond(30)
	s, _ := l.Take(State{}, before, 10)
	from := l.TakeRecord(s, before)
	now := atSecond(60)
	s = l.Force(s, from, now, 40)
	if s.Count != 0 || s.Part != 50 {
		t.Errorf("have %+v, want 0 in this window and 50 in the last", s)
	}
	s = l.Give(s, from, now, 45)
	if s.Count != 0 || s.Part != 5 {
		t.Errorf("have %+v, want 0 in this window and 5 in the last", s)
	}
	later := atSecond(120)
	s, _ = l.Take(s, later, 7)
	s = l.Give(s, from, later, 7)
	if s.Count != 7 {
		t.Errorf("a Give from two windows ago changed %+v", s)
	}
}

func TestLimitChangeKeepsWhatWasUsed(t *testing.T) {
	for _, kind := range append(allKinds, FirstWindow) {
		t.Run(nameOf(kind), func(t *testing.T) {
			now := atSecond(5)
			c := counter{l: &Limit{Kind: kind, Amount: 100, Burst: 100, Window: time.Hour}}
			if d := c.take(now, 80); d.Remaining != 20 {
				t.Fatalf("have %+v", d)
			}
			c.l = &Limit{Kind: kind, Amount: 50, Burst: 50, Window: time.Hour}
			if d := c.take(now, 1); d.Allowed || d.Remaining != 0 {
				t.Errorf("lowered: have %+v, want refused with 0", d)
			}
			c.l = &Limit{Kind: kind, Amount: 200, Burst: 200, Window: time.Hour}
			if d := c.take(now, 0); d.Remaining != 120 {
				t.Errorf("raised: have %+v, want 120 remaining", d)
			}
		})
	}
}

func TestSettleIntoDebt(t *testing.T) {
	l := &Limit{Kind: FixedWindow, Amount: 1000, Window: time.Hour}
	now := atSecond(5)
	take := func(s State, cost int64, want bool) State {
		t.Helper()
		s, ok := l.Take(s, now, cost)
		if ok != want {
			t.Fatalf("take %d of %+v: have %v", cost, s, ok)
		}
		return s
	}
	s := take(State{}, 800, true)
	s = take(s, 300, false)
	s = l.Give(s, l.TakeRecord(s, now), now, 300) // settled with 500
	s = take(s, 500, true)
	s = l.Force(s, l.TakeRecord(s, now), now, 200) // settled with 700
	if d := l.Peek(s, now, 1); d.Allowed || d.Remaining != 0 || l.Used(s, now) != 1200 {
		t.Errorf("have %+v, %d used", d, l.Used(s, now))
	}
	if _, ok := l.Take(s, now, 0); !ok {
		t.Error("a cost of 0 was refused in debt")
	}
}

// In a log beyond its bound, every hit leaves late by at most the grain,
// however long the traffic lasts.
func TestCoarseLogForgets(t *testing.T) {
	l := &Limit{Kind: SlidingLog, Amount: 1_000_000, Window: time.Minute}
	g := &Log{}
	const step = 66_667 // ns: 900,000 a minute, a tenth below the limit
	for i := int64(0); i < 2_000_000; i++ {
		now := Instant{Steady: 1e18 + i*step}
		if !g.Take(l, now, 1) {
			t.Fatalf("hit %d refused: %d used in %d entries", i, g.Used(), g.Len())
		}
		if g.Len() > MaxLogEntries {
			t.Fatalf("%d entries", g.Len())
		}
	}
	inWindow := int64(l.Window) / step
	if slack := int64(l.Window) / (MaxLogEntries / 2) / step; g.Used() < inWindow || g.Used() > inWindow+2*slack+2 {
		t.Errorf("have %d used, want %d to %d", g.Used(), inWindow, inWindow+2*slack+2)
	}
}

// Delayed hits lie ahead of now. They count towards the bound as any others do,
// also if a shorter delay is allowed later.
func TestLogOfDelayedHitsIsBounded(t *testing.T) {
	l := &Limit{Kind: SlidingLog, Amount: 100, Window: time.Second, MaxDelay: time.Hour}
	g := &Log{}
	for i := range int64(2 * MaxLogEntries) {
		// The first ones come a hundredth of a second apart, and so leave the others.
		now := Instant{Steady: 1e18 + min(i, 100)*1e7 + i}
		if !g.Take(l, now, 1) {
			t.Fatalf("hit %d refused: %d used in %d entries", i, g.Used(), g.Len())
		}
		if g.Len() > MaxLogEntries {
			t.Fatalf("hit %d: got %d entries, want at most %d", i, g.Len(), MaxLogEntries)
		}
	}

	short := &Limit{Kind: SlidingLog, Amount: 100, Window: time.Second}
	g.Coarsen(short, 100)
	if g.Len() > 102 {
		t.Errorf("got %d entries after Coarsen to about 100", g.Len())
	}
}

// A window's number never goes back: to a late reading of the clock, a state is as of its own time.
func TestLateReadingMovesNoState(t *testing.T) {
	for _, kind := range []Kind{FixedWindow, SlidingWindow} {
		l := &Limit{Kind: kind, Amount: 10, Window: 24 * time.Hour}
		late := At(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))

		for ahead := int64(1); ahead < 4; ahead++ {
			full := State{Count: 10, At: l.windowNumber(late.Wall) + ahead}
			got, allowed := l.Take(full, late, 1)
			if allowed || got != full {
				t.Errorf("%s, %d windows late: Take(%+v) = %+v, %t; want it as it was, refused",
					kind, ahead, full, got, allowed)
			}

			half := State{Count: 5, At: full.At}
			got, allowed = l.Take(half, late, 1)
			if want := (State{Count: 6, At: full.At}); !allowed || got != want {
				t.Errorf("%s, %d windows late: Take(%+v) = %+v, %t; want %+v, allowed", kind, ahead,
					half, got, allowed, want)
			}
		}

		next := l.windowNumber(late.Wall) + 1
		got := l.Force(State{}, TakeRecord{Window: next}, late, 3)
		expect.Equal(t, l.Used(got, late), 3, "%s: a debt from a window that has yet to begin left used", kind)
	}
}

// A kind from another release is not valid here.
func TestKindsAreValid(t *testing.T) {
	for k := range Kind(math.MaxUint8) {
		if !k.Valid() {
			expect.Equal(t, k, Concurrency+1, "kinds")
			return
		}
		want := k
		switch k { // these share a name
		case FirstWindow:
			want = FixedWindow
		case CellBucket:
			want = TokenBucket
		}
		if back, ok := ParseKind(k.String()); back != want || !ok || k.Windowed() &&
			k.OnSteadyClock() || k.IsBucket() && !k.OnSteadyClock() {
			t.Errorf("kind %d is %q, and back %d", k, k, back)
		}
	}
}

func TestGiveAfterRefill(t *testing.T) {
	fast := &Limit{Kind: TokenBucket, Amount: 1000, Burst: 1000, Window: time.Second}
	slow := &Limit{Kind: TokenBucket, Amount: 1, Burst: 1000, Window: time.Second}
	s, _ := fast.Take(State{}, atSecond(0), 1000)
	from := fast.TakeRecord(s, atSecond(0))
	s, _ = fast.Take(s, atSecond(2), 1000)
	s = slow.Give(s, from, atSecond(2), 1000)
	if s.Count != 1000 {
		t.Errorf("Give put back what had drained at the old rate: %+v", s)
	}
}
