package persist

import (
	"math"
	"reflect"
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

func TestValueRoundTrip(t *testing.T) {
	const second, delta = 1_800_000_000, 1_799_000_000_000_000_123 // of the wall clock; from the steady to the wall clock
	now := algorithms.Now{Steady: second*1e9 - delta}
	tests := []struct {
		name string
		have counters.Record
		want counters.Record // by the wall clock
	}{
		{
			name: "windows keep their number",
			have: counters.Record{Kind: algorithms.FixedWindow, Level: 255, State: algorithms.State{Count: 5, At: -3}},
			want: counters.Record{Kind: algorithms.FixedWindow, Level: 255, State: algorithms.State{Count: 5, At: -3}},
		},
		{
			name: "and what was lent of them",
			have: counters.Record{Kind: algorithms.FixedWindow, State: algorithms.State{Count: 5, Part: 9, At: 3}},
			want: counters.Record{Kind: algorithms.FixedWindow, State: algorithms.State{Count: 5, Part: 9, At: 3}},
		},
		{
			name: "buckets move to the wall clock",
			have: counters.Record{Kind: algorithms.TokenBucket, State: algorithms.State{Count: 1 << 60, Part: 7, At: -60}},
			want: counters.Record{Kind: algorithms.TokenBucket, State: algorithms.State{Count: 1 << 60, Part: 7, At: delta - 60}},
		},
		{
			name: "logs too, with a queue ahead of the clock",
			have: counters.Record{Kind: algorithms.SlidingLog, Log: []algorithms.Entry{{At: 5, N: 1}, {At: now.Steady + 100, N: 2}}},
			want: counters.Record{Kind: algorithms.SlidingLog, Log: []algorithms.Entry{{At: delta + 5, N: 1}, {At: second*1e9 + 100, N: 2}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.have.Key, tt.have.FreshAt = counters.Key{Hi: 1, Lo: math.MaxUint64}, now.Steady/1e9+60
			tt.want.Key, tt.want.FreshAt = tt.have.Key, second+60
			key := counters.AppendKey(nil, tt.have.Key)
			value := appendValue(nil, key, &tt.have, second, now, 12)
			have, err := parseValue(key, value, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want := (stored{Record: tt.want, written: second, seq: 12}); !reflect.DeepEqual(have, want) {
				t.Errorf("have %+v\nwant %+v", have, want)
			}
			if _, err := parseValue(counters.AppendKey(nil, counters.Key{Hi: 2}), value, nil); err == nil {
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

// FuzzParseValue looks behind the checksum: whatever is accepted is a legal state, and stays what it is.
func FuzzParseValue(f *testing.F) {
	now := newClock().Now()
	for _, r := range sample(now, 10) {
		f.Add(appendValue(nil, counters.AppendKey(nil, r.Key), &r, now.Wall/1e9, now, 1))
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
		if s.State.Count < 0 || s.State.Part < 0 || s.FreshAt < 0 || len(s.Log) > algorithms.MaxLogEntries {
			t.Fatalf("illegal state %+v", s)
		}
		again, err := parseValue(key, appendValue(nil, key, &s.Record, s.written, algorithms.Now{Steady: s.written * 1e9}, s.seq), nil)
		if len(s.Log)+len(again.Log) == 0 {
			s.Log, again.Log = nil, nil
		}
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Fatalf("have %+v, then %+v (%v)", s, again, err)
		}
	})
}
