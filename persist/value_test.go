package persist

import (
	"math"
	"reflect"
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

func TestValueRoundTrip(t *testing.T) {
	tests := []struct {
		name  string
		have  counters.Record
		delta int64
		queue int64
		want  counters.Record
	}{
		{name: "fresh", have: counters.Record{}, want: counters.Record{}},
		{
			name:  "windows keep their number",
			have:  counters.Record{Kind: algorithms.FixedWindow, Level: 255, State: algorithms.State{Count: 5, At: -3}},
			delta: 1000,
			want:  counters.Record{Kind: algorithms.FixedWindow, Level: 255, State: algorithms.State{Count: 5, At: -3}},
		},
		{
			name:  "buckets move to the wall clock",
			have:  counters.Record{Kind: algorithms.TokenBucket, Level: 1, State: algorithms.State{Count: math.MaxInt64, Part: 7, At: 40}},
			delta: -100,
			want:  counters.Record{Kind: algorithms.TokenBucket, Level: 1, State: algorithms.State{Count: math.MaxInt64, Part: 7, At: -60}},
		},
		{
			name:  "logs too, in any order",
			have:  counters.Record{Kind: algorithms.SlidingLog, Log: []algorithms.Entry{{At: 10, N: 1}, {At: 5, N: math.MaxInt64}}},
			delta: 3,
			want:  counters.Record{Kind: algorithms.SlidingLog, Log: []algorithms.Entry{{At: 13, N: 1}, {At: 8, N: math.MaxInt64}}},
		},
		{
			name:  "a queue ahead of the clock",
			have:  counters.Record{Kind: algorithms.SlidingLog, Log: []algorithms.Entry{{At: 5, N: 1}, {At: 100, N: 2}}},
			queue: 95,
			want:  counters.Record{Kind: algorithms.SlidingLog, Log: []algorithms.Entry{{At: 5, N: 1}, {At: 100, N: 2}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.have.Key = counters.Key{Hi: 1, Lo: math.MaxUint64}
			tt.want.Key = tt.have.Key
			key := appendKey(nil, tt.have.Key)
			value := appendValue(nil, key, &tt.have, tt.delta, 99, 12, tt.queue)
			have, err := parseValue(key, value, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want := (stored{Record: tt.want, expiry: 99, seq: 12, queue: tt.queue}); !reflect.DeepEqual(have, want) {
				t.Errorf("have %+v\nwant %+v", have, want)
			}
			if _, err := parseValue(appendKey(nil, counters.Key{Hi: 2}), value, nil); err == nil {
				t.Error("a value under another key was accepted")
			}
			for i := range value {
				value[i] ^= 0x10
				if _, err := parseValue(key, value, nil); err == nil {
					t.Errorf("byte %d damaged: accepted", i)
				}
				value[i] ^= 0x10
			}
		})
	}
}

func TestLogIsBounded(t *testing.T) {
	r := counters.Record{Kind: algorithms.SlidingLog, Log: make([]algorithms.Entry, algorithms.MaxLogEntries+1)}
	for i := range r.Log {
		r.Log[i] = algorithms.Entry{At: int64(i), N: 1}
	}
	key := appendKey(nil, r.Key)
	if _, err := parseValue(key, appendValue(nil, key, &r, 0, 1, 1, 0), nil); err == nil {
		t.Error("a log of too many entries was accepted")
	}
	r.Log = r.Log[1:]
	if s, err := parseValue(key, appendValue(nil, key, &r, 0, 1, 1, 0), nil); err != nil || len(s.Log) != len(r.Log) {
		t.Errorf("have %d entries, %v; want %d", len(s.Log), err, len(r.Log))
	}
}

// FuzzParseValue looks behind the checksum: whatever is accepted is a legal state, and stays what it is.
func FuzzParseValue(f *testing.F) {
	for _, r := range sample(newClock().Now(), 10) {
		key := appendKey(nil, r.Key)
		f.Add(appendValue(nil, key, &r, 5, 1<<40, 1, 0))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, value []byte) {
		key := make([]byte, keySize)
		if len(value) >= valueHeader {
			sum := checksum(key, value)
			value[0], value[1], value[2], value[3], value[4] = valueVersion, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
		}
		s, err := parseValue(key, value, nil)
		if err != nil {
			return
		}
		if s.State.Count < 0 || s.State.Part < 0 || s.expiry < 0 || len(s.Log) > algorithms.MaxLogEntries {
			t.Fatalf("illegal state %+v", s)
		}
		again, err := parseValue(key, appendValue(nil, key, &s.Record, 0, s.expiry, s.seq, s.queue), nil)
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Fatalf("have %+v, then %+v (%v)", s, again, err)
		}
	})
}
