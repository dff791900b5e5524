package algorithms

import (
	"math"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// A window begins with its first hit that was taken. Refusals and admissions both say when it ends.
func TestFirstWindowSaysWhenItEnds(t *testing.T) {
	l := &Limit{Kind: FirstWindow, Amount: 2, Window: time.Minute}
	c := counter{l: l}
	for _, tt := range []struct {
		at, cost     int64
		reset, retry time.Duration
		used         int64
	}{
		{0, 3, 0, Never, 0}, {1, 0, 0, 0, 0}, {10, 1, time.Minute, 0, 1},
		{30, 2, 40 * time.Second, 40 * time.Second, 1},
		{40, 1, 30 * time.Second, 0, 2}, {69, 1, time.Second, time.Second, 2}, {70, 0, 0, 0, 0},
		{75, 2, time.Minute, 0, 2},
	} {
		if d := c.take(atSecond(float64(tt.at)), tt.cost); d.ResetAfter != tt.reset ||
			d.RetryAfter != tt.retry || d.Used != tt.used {
			t.Errorf("a cost of %d at %d s: have %+v, want %+v", tt.cost, tt.at, d, tt)
		}
	}
}

// A cost can be put back only into the window that it was taken in. A window
// from which everything is put back has not begun.
func TestFirstWindowGivesBack(t *testing.T) {
	l := &Limit{Kind: FirstWindow, Amount: 10, Window: time.Minute}
	take := func(s State, at float64, cost int64) (State, TakeRecord, time.Duration) {
		t.Helper()
		now := atSecond(at)
		s, ok := l.Take(s, now, cost)
		if !ok {
			t.Fatalf("a cost of %d at %v s is refused", cost, at)
		}
		return s, l.TakeRecord(s, now), l.Describe(s, now, cost, true).ResetAfter
	}
	s, first, _ := take(State{}, 0, 4)
	s, second, _ := take(s, 59, 5)
	expect.Equal(t, l.Give(s, first, atSecond(59.5), 4), (State{Count: 5, Part: int64(l.Window)}),
		"given back the first")
	if have := l.Give(l.Give(s, second, atSecond(59), 5), first, atSecond(59.5), 4); !have.Fresh() {
		t.Errorf("given back all: have %+v", have)
	} else if _, _, ends := take(have, 59.5, 1); ends != time.Minute {
		t.Errorf("the next window ends after %v", ends)
	}
	// The next window begins when this one ends, a second after the second hit.
	s, third, _ := take(s, 60, 7)
	for name, have := range map[string]State{
		"given back": l.Give(s, second, atSecond(60), 5),
		"given back what may have been taken before": l.Give(s, TakeRecord{Steady: third.Steady - 1}, atSecond(90), 4),
	} {
		expect.Equal(t, have, s, "%s in the next window", name)
	}
	if have := l.Give(s, third, atSecond(119), 7); !have.Fresh() {
		t.Errorf("given back at the end of the window: have %+v", have)
	}
}

// A debt begins a window when it arrives, not as of the time it arose: what was
// taken in an earlier window would come back to this one. If a window has
// begun, the debt counts in it unless it is older than a window.
func TestFirstWindowDebts(t *testing.T) {
	l := &Limit{Kind: FirstWindow, Amount: 10, Window: time.Minute}
	at := func(s float64) int64 { return atSecond(s).Steady }
	window := int64(l.Window)
	begun := State{Count: 2, Part: window, At: at(100)}
	for _, tt := range []struct {
		name      string
		have      State
		from, now float64
		want      State
	}{
		{"begins a window", State{}, 70, 100, State{Count: 20, Part: window, At: at(100)}},
		{"is over", State{}, 40, 100, State{At: at(100)}},
		{"is from a clock ahead", State{}, 101, 100, State{Count: 20, Part: window, At: at(100)}},
		{"counts in the window", begun, 110, 120, State{Count: 22, Part: window, At: at(100)}},
		{"arose before the window was known here", begun, 90, 120, State{Count: 22, Part: window, At: at(100)}},
		{"is older than a window", begun, 90, 150, begun},
	} {
		for name, force := range map[string]func(State, TakeRecord, Instant,
			int64) State{"Force": l.Force, "ForceCapped": l.ForceCapped} {
			expect.Equal(t, force(tt.have, TakeRecord{Steady: at(tt.from)}, atSecond(tt.now), 20),
				tt.want, "%s, a debt that %s", name, tt.name)
		}
	}
	if have := l.Force(State{}, TakeRecord{Steady: at(100)}, atSecond(100), 0); !have.Fresh() {
		t.Errorf("a debt of nothing: have %+v", have)
	}
}

// Nothing overflows, whatever a state holds and whatever its window becomes.
func TestFirstWindowAtTheBounds(t *testing.T) {
	now := At(time.Unix(1_800_000_000, 0))
	for _, began := range []int64{math.MinInt64, -maxOwed, 0, now.Steady - int64(MaxWindow),
		now.Steady - 1, now.Steady} {
		for _, window := range []time.Duration{MinWindow, time.Minute, MaxWindow} {
			for _, used := range []int64{0, 1, MaxAmount, maxOwed} {
				l := &Limit{Kind: FirstWindow, Amount: MaxAmount, Window: window}
				s := State{Count: used, At: began}
				s = l.Force(s, TakeRecord{Steady: began}, now, MaxAmount)
				s = l.Give(s, TakeRecord{Steady: math.MaxInt64}, now, 1)
				d := l.Peek(s, now, MaxAmount)
				if d.Used < 0 || d.Used > maxOwed || d.ResetAfter < 0 || d.ResetAfter > window ||
					!d.Allowed && (d.RetryAfter <= 0 || d.RetryAfter > window) {
					t.Errorf("%d used since %d in a window of %v: have %+v", used, began, window, d)
				}
				if passed := uint64(now.Steady)-uint64(began) >= uint64(window); passed != d.Allowed {
					t.Errorf("%d used since %d in a window of %v: allowed is %v", used, began, window, d.Allowed)
				}
			}
		}
	}
}

// Calls with another window are judged by their own amounts in the window of the first hit.
func TestFirstWindowKeepsItsWindow(t *testing.T) {
	first := &Limit{Kind: FirstWindow, Amount: 5, Window: time.Minute}
	s, _ := first.Take(State{}, atSecond(0), 3)
	for _, window := range []time.Duration{time.Second, time.Hour} {
		l := &Limit{Kind: FirstWindow, Amount: 4, Window: window}
		if d := l.Peek(s, atSecond(30), 1); !d.Allowed || d.ResetAfter != 30*time.Second || d.Used != 4 {
			t.Errorf("%v: have %+v", window, d)
		}
		if d := l.Peek(s, atSecond(30), 2); d.Allowed || d.RetryAfter != 30*time.Second ||
			d.MoreAfter != 30*time.Second {
			t.Errorf("%v: two more: have %+v", window, d)
		}
		if again, _ := l.Take(s, atSecond(60),
			1); again != (State{Count: 1, Part: int64(window), At: atSecond(60).Steady}) {
			t.Errorf("%v: the next window: have %+v", window, again)
		}
		none := &Limit{Kind: FirstWindow, Window: MinWindow}
		if d := none.Peek(s, atSecond(30), 0); d.Used != 3 || d.ResetAfter != 30*time.Second {
			t.Errorf("%v: without limits: have %+v", window, d)
		}
	}
}
