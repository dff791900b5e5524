package counters

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
)

func parseRecord(b []byte, r *Record, now algorithms.Instant) (rest []byte, err error) {
	d := wire.NewDecoder(b)
	DecodeRecord(d, r, now)
	return d.Rest(), d.Err()
}

func TestRecordRoundTrip(t *testing.T) {
	here := epoch
	there := algorithms.Instant{Steady: epoch.Steady + int64(1000*time.Hour), Wall: epoch.Wall}
	ahead := there.Steady - here.Steady
	second := here.Steady / 1e9
	for _, tt := range []struct {
		name string
		have Record
		size int
	}{
		{"fixed window",
			Record{Kind: algorithms.FixedWindow, State: algorithms.State{Count: 5, At: 29_000_000},
				Fullness: 255, ExpiresAt: second + 63},
			24},
		{"sliding window",
			Record{Kind: algorithms.SlidingWindow,
				State: algorithms.State{Count: 5, Part: 300, At: 29_000_000}, ExpiresAt: second + 63},
			25},
		{"bucket",
			Record{Kind: algorithms.TokenBucket,
				State: algorithms.State{Count: 5, Part: 7, At: here.Steady - 1000}, Fullness: 9,
				ExpiresAt: second + 63},
			22},
		{"first window",
			Record{Kind: algorithms.FirstWindow,
				State: algorithms.State{Count: 5, Part: 60e9, At: here.Steady - 1000}, Fullness: 9,
				ExpiresAt: second + 63},
			27},
		{"cell bucket",
			Record{Kind: algorithms.CellBucket,
				State: algorithms.State{Count: 60e9, Part: 1e9, At: here.Steady + 3e9}, Fullness: 9,
				ExpiresAt: second + 63},
			34},
		{"first window, full, a year ago",
			Record{Kind: algorithms.FirstWindow,
				State: algorithms.State{Count: maxUsed, Part: int64(algorithms.MaxWindow),
					At: here.Steady - int64(algorithms.MaxWindow)},
				Fullness: 255, ExpiresAt: second + 1},
			43},
		{"first window, reset", Record{Kind: algorithms.FirstWindow, ExpiresAt: second + 63}, 20},
		{"reset", Record{Kind: algorithms.LeakyBucket, ExpiresAt: second + 63}, 20},
		{"no longer than for ever",
			Record{Kind: algorithms.TokenBucket,
				State: algorithms.State{Count: maxUsed, At: here.Steady}, ExpiresAt: math.MaxUint32},
			33},
		{"expired",
			Record{Kind: algorithms.FixedWindow, State: algorithms.State{Count: 5, At: -3}, ExpiresAt: second},
			21},
		{"log",
			Record{Kind: algorithms.SlidingLog,
				Log: []algorithms.Entry{{At: here.Steady - 99, N: 3},
					{At: here.Steady - 7, N: 1}, {At: here.Steady, N: 1}},
				ExpiresAt: second + 63},
			26},
		{"queue in a log",
			Record{Kind: algorithms.SlidingLog,
				Log: []algorithms.Entry{{At: here.Steady - 99, N: 3},
					{At: here.Steady + 7, N: 1}, {At: here.Steady + 3600e9, N: 1}},
				ExpiresAt: second + 63},
			31},
		{"a log that is all queue",
			Record{Kind: algorithms.SlidingLog,
				Log:       []algorithms.Entry{{At: here.Steady + 9, N: 3}, {At: here.Steady + 3600e9, N: 1}},
				ExpiresAt: second + 63},
			28},
		{"queue in windows",
			Record{Kind: algorithms.FixedWindow,
				State: algorithms.State{Count: 5, At: 1<<61 + 29_000_000}, Fullness: 255,
				ExpiresAt: second + 63},
			29},
		{"empty log", Record{Kind: algorithms.SlidingLog, Fullness: 17, ExpiresAt: second + 63}, 19},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.have.Key = Key{Subject: math.MaxUint64 - 1, Counter: 5}
			b := AppendRecord([]byte("x"), &tt.have, here)
			expect.Equal(t, len(b)-1, tt.size, "bytes")
			want := tt.have
			if want.ExpiresAt < math.MaxUint32 {
				want.ExpiresAt += ahead / 1e9
			}
			if want.Kind.OnSteadyClock() && !want.State.Fresh() {
				want.State.At += ahead
			}
			want.Log = nil
			for _, e := range tt.have.Log {
				want.Log = append(want.Log, algorithms.Entry{At: e.At + ahead, N: e.N})
			}
			have := Record{Log: make([]algorithms.Entry, 1, 2)}
			rest, err := parseRecord(append(b[1:], "rest"...), &have, there)
			if len(have.Log) == 0 {
				have.Log = nil
			}
			if err != nil || string(rest) != "rest" || !reflect.DeepEqual(have, want) {
				t.Errorf("have %+v, %q, %v, want %+v", have, rest, err, want)
			}
			for n := range len(b) - 1 {
				if _, err := parseRecord(b[1:1+n], &have, there); !errors.Is(err, wire.ErrMalformed) {
					t.Errorf("%d of %d bytes: have %v", n, len(b)-1, err)
				}
			}
		})
	}
}

// The sender may have read its clock before the change it reports, and rounding
// to seconds never favours a subject. Log entries ahead of the sender's clock
// stay ahead.
func TestTimesAfterTransit(t *testing.T) {
	here, there := after(900*time.Millisecond), after(100*time.Millisecond)
	second := epoch.Steady / 1e9
	bucket := Record{Kind: algorithms.TokenBucket,
		State: algorithms.State{Count: 5, At: here.Steady + 9}, ExpiresAt: second + 60}
	log := Record{Kind: algorithms.SlidingLog, ExpiresAt: second + 60, Log: []algorithms.Entry{
		{At: here.Steady - 5, N: 1}, {At: here.Steady + 1, N: 2}, {At: here.Steady + 9, N: 3}}}
	var have Record
	if _, err := parseRecord(AppendRecord(nil, &bucket, here), &have, there); err != nil ||
		have.State.At != there.Steady || have.ExpiresAt != second+61 {
		t.Errorf("have %+v, %v", have, err)
	}
	want := []algorithms.Entry{{At: there.Steady - 5, N: 1}, {At: there.Steady + 1, N: 2}, {At: there.Steady + 9, N: 3}}
	if _, err := parseRecord(AppendRecord(nil, &log, here), &have, there); err != nil ||
		!reflect.DeepEqual(have.Log, want) {
		t.Errorf("have %+v, %v, want %+v", have.Log, err, want)
	}
}

func TestLogsAreBoundedOnTheWire(t *testing.T) {
	r := Record{Kind: algorithms.SlidingLog, ExpiresAt: math.MaxUint32}
	for i := range int64(algorithms.MaxLogEntries) {
		r.Log = append(r.Log, algorithms.Entry{At: epoch.Steady + i, N: 1})
	}
	now := after(time.Second)
	var have Record
	if _, err := parseRecord(AppendRecord(nil, &r, now), &have, now); err != nil || !reflect.DeepEqual(have, r) {
		t.Errorf("have %d entries, %v", len(have.Log), err)
	}
	r.Log = append(r.Log, algorithms.Entry{At: now.Steady, N: 1})
	if _, err := parseRecord(AppendRecord(nil, &r, now), &have, now); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("one too many: have %v", err)
	}
	// A claimed count of many entries must not cost memory.
	few := AppendRecord(nil, &Record{Kind: algorithms.SlidingLog}, now)
	few = append(few[:len(few)-1], 0xff, 0xff, 3)
	if n := testing.AllocsPerRun(10, func() { _, _ = parseRecord(few, &Record{}, now) }); n != 0 {
		t.Errorf("have %v allocations", n)
	}
}

// FuzzRecord: any input either fails to decode, or can be put into a table,
// decided upon and sent on.
func FuzzRecord(f *testing.F) {
	now := after(1234567891 * time.Nanosecond)
	for _, r := range []Record{
		{Kind: algorithms.FixedWindow, State: algorithms.State{Count: 5, At: 29_000_000},
			Fullness: 255, ExpiresAt: now.Steady/1e9 + 63},
		{Kind: algorithms.SlidingWindow,
			State:     algorithms.State{Count: 5, Part: 300, At: -29_000_000},
			ExpiresAt: now.Steady/1e9 + 63},
		{Kind: algorithms.TokenBucket,
			State: algorithms.State{Count: 5, Part: 7, At: now.Steady - 1000}, Fullness: 9,
			ExpiresAt: now.Steady/1e9 + 63},
		{Kind: algorithms.FirstWindow,
			State: algorithms.State{Count: 5, Part: 60e9, At: now.Steady - 1000}, Fullness: 9,
			ExpiresAt: now.Steady/1e9 + 63},
		{Kind: algorithms.CellBucket,
			State: algorithms.State{Count: 60e9, Part: 1e9, At: now.Steady + 3e9}, Fullness: 9,
			ExpiresAt: now.Steady/1e9 + 63},
		{Kind: algorithms.SlidingLog,
			Log:       []algorithms.Entry{{At: now.Steady - 99, N: 3}, {At: now.Steady, N: 1}},
			ExpiresAt: now.Steady/1e9 + 63},
	} {
		f.Add(AppendRecord(nil, &r, now))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Record
		rest, err := parseRecord(b, &r, now)
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.HasSuffix(b, rest) || len(rest) >= len(b) || len(r.Log) > algorithms.MaxLogEntries {
			t.Fatalf("have %d of %d bytes left, %d entries", len(rest), len(b), len(r.Log))
		}
		latest := now.Steady
		if r.Kind == algorithms.CellBucket {
			latest += maxUsed
		}
		if r.State.Count < 0 || r.State.Part < 0 || r.Kind.OnSteadyClock() && r.State.At > latest {
			t.Fatalf("have %+v", r)
		}
		for i, e := range r.Log {
			if e.N <= 0 || e.At > now.Steady+maxAhead || i > 0 && e.At <= r.Log[i-1].At {
				t.Fatalf("have %+v", r.Log)
			}
		}
		var again Record
		if rest, err := parseRecord(AppendRecord(nil, &r, now), &again, now); err != nil || len(rest) > 0 {
			t.Fatalf("sent on: %v", err)
		}
		again.ExpiresAt = r.ExpiresAt // rounded up once more
		if len(r.Log)+len(again.Log) == 0 {
			r.Log, again.Log = nil, nil
		}
		if !reflect.DeepEqual(again, r) {
			t.Fatalf("sent on: have %+v, want %+v", again, r)
		}
		table := New(100)
		defer table.Close()
		for range 2 {
			if !table.Put(now, r) || !table.Merge(now, again, true) {
				t.Fatal("no room")
			}
		}
		for _, l := range []*algorithms.Limit{
			{Kind: r.Kind, Amount: 1, Burst: 1, Window: algorithms.MinWindow},
			{Kind: r.Kind, Amount: algorithms.MaxAmount, Burst: algorithms.MaxAmount, Window: algorithms.MaxWindow},
		} {
			take(table, now, r.Key, l, 1)
			_ = table.penalize(now, r.Key, l, algorithms.MaxAmount)
			if used, d := table.Usage(now, r.Key, l); used < 0 || d.Remaining < 0 {
				t.Fatalf("have %d used, %+v", used, d)
			}
		}
	})
}
