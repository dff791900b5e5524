package algorithms

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
)

// Limits survive encoding. Limits that are not legal, or mean something
// different on each node, don't decode.
func TestLimitRoundTrip(t *testing.T) {
	day, err := CalendarOf(Day, "Europe/Berlin")
	expect.NoError(t, err)
	for _, want := range []Limit{
		{Kind: FixedWindow, Amount: 5, Window: time.Minute},
		{Kind: FixedWindow, Amount: 5, Window: time.Minute, ValidUntil: 1_800_000_000e9},
		{Kind: FixedWindow, Amount: 7, Window: 24 * time.Hour, Calendar: day},
		{Kind: FixedWindow, Amount: 7, Window: 24 * time.Hour, Calendar: day, MaxDelay: time.Second},
		{Kind: FixedWindow, Window: time.Minute},
		{Kind: TokenBucket, Window: time.Minute},
		{Kind: TokenBucket, Amount: 5, Burst: 9, Window: time.Minute},
		{Kind: LeakyBucket, Amount: MaxAmount, Burst: MaxAmount, Window: MaxWindow, MaxDelay: LongestDelay},
		{Kind: SlidingLog, Amount: 1, Window: MinWindow},
		{Kind: FirstWindow, Amount: MaxAmount, Window: MaxWindow},
		{Kind: CellBucket, Amount: 5, Burst: 9, Window: time.Minute},
		{Kind: CellBucket, Window: MinWindow},
	} {
		d := wire.NewDecoder(want.Append(nil, 1<<3))
		var have Limit
		if flags := have.Decode(d, LimitFlags); have != want || flags != 1<<3 || d.Done("limit") != nil {
			t.Errorf("have %+v, %x, %v, want %+v", have, flags, d.Err(), want)
		}
		if !failsWith(&want, 1<<5, 1<<3) {
			t.Errorf("%+v: an unknown flag was accepted", want)
		}
	}
	for name, bad := range map[string]Limit{
		"local time": {Kind: FixedWindow, Amount: 7,
			Calendar: NewCalendar(Day, time.Local)},
		"an unknown zone": {Kind: FixedWindow, Amount: 7,
			Calendar: NewCalendar(Day, time.FixedZone("../x", 0))},
		"an unknown unit": {Kind: FixedWindow, Amount: 7,
			Calendar: NewCalendar(Year+1, time.UTC)},
		"a log by the calendar": {Kind: SlidingLog, Amount: 7, Calendar: day},
		"no amount":             {Kind: TokenBucket, Burst: 1, Window: time.Minute},
		"a burst of nothing":    {Kind: TokenBucket, Amount: 1, Window: time.Minute},
		"an unknown algorithm":  {Kind: Concurrency + 1, Amount: 1, Window: time.Minute},
		"a queue in a window from its first hit": {Kind: FirstWindow, Amount: 1,
			Window: time.Minute, MaxDelay: time.Second},
		"a queue in a bucket that keeps its limit": {Kind: CellBucket, Amount: 1, Burst: 1,
			Window: time.Minute, MaxDelay: time.Second},
		"a window from its first hit, by the calendar": {Kind: FirstWindow, Amount: 7, Calendar: day},
		"no window":     {Kind: FixedWindow, Amount: 1},
		"a long window": {Kind: FixedWindow, Amount: 1, Window: MaxWindow + 1},
		"a long delay": {Kind: FixedWindow, Amount: 1,
			Window: time.Minute, MaxDelay: LongestDelay + 1},
	} {
		if !failsWith(&bad, 0, 0) {
			t.Errorf("%s was accepted", name)
		}
	}
}

func failsWith(l *Limit, flags, allowed byte) bool {
	d := wire.NewDecoder(l.Append(nil, flags))
	new(Limit).Decode(d, allowed)
	return d.Failed()
}

// A calendar is looked up once and costs nothing afterwards: a message may contain thousands.
func TestDecodingCalendarsAllocatesNothing(t *testing.T) {
	day, err := CalendarOf(Day, "Pacific/Chatham")
	expect.NoError(t, err)
	b := (&Limit{Kind: FixedWindow, Amount: 7, Calendar: day}).Append(nil, 0)
	if n := testing.AllocsPerRun(100, func() {
		var l Limit
		if l.Decode(wire.NewDecoder(b), 0); l.Calendar != day {
			t.Error("another calendar")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzLimit: whatever decodes is legal, and encodes to the same bytes.
func FuzzLimit(f *testing.F) {
	day, _ := CalendarOf(Day, "Europe/Berlin")
	f.Add((&Limit{Kind: FixedWindow, Amount: 7, Calendar: day, MaxDelay: 5}).Append(nil, 0))
	f.Add((&Limit{Kind: FirstWindow, Amount: 7, Window: time.Minute}).Append(nil, 1<<3))
	f.Add((&Limit{Kind: TokenBucket, Amount: 5, Burst: 9, Window: time.Minute}).Append(nil, LimitFlags))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := wire.NewDecoder(b)
		var l Limit
		flags := l.Decode(d, LimitFlags)
		if d.Failed() {
			return
		}
		if !l.Kind.Valid() || l.Kind == FirstWindow && (l.MaxDelay > 0 || l.Calendar != nil) ||
			l.Amount < 0 || l.Amount > MaxAmount || l.Burst > MaxAmount || l.Window < MinWindow ||
			l.Window > MaxWindow && l.Calendar == nil {
			t.Errorf("have %+v", l)
		}
		if again := l.Append(nil, flags); string(again) != string(b[:len(b)-d.Len()]) {
			t.Errorf("have %x, want %x", again, b)
		}
	})
}
