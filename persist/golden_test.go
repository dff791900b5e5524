package persist

import (
	"encoding/binary"
	"reflect"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/golden"
)

// TestGolden: the on-disk format of counters has not changed.
func TestGolden(t *testing.T) {
	now := algorithms.Instant{Steady: 1_799_999_999_000_000_000, Wall: 1_800_000_000_000_000_000}
	state := algorithms.State{Count: 300, Part: 7, At: now.Steady - 1000}
	records := []counters.Record{
		{Kind: algorithms.FixedWindow, State: algorithms.State{Count: 300, At: 29_000_000}, Fullness: 255},
		{Kind: algorithms.SlidingWindow, State: algorithms.State{Count: 300, Part: 7, At: -3}},
		{Kind: algorithms.TokenBucket, State: state},
		{Kind: algorithms.LeakyBucket, State: state},
		{Kind: algorithms.SlidingLog, Log: []algorithms.Entry{{At: now.Steady - 9, N: 2}, {At: now.Steady + 5, N: 1}}},
		{Kind: algorithms.TokenBucket}, // reset
	}
	for i := range records {
		records[i].Key, records[i].ExpiresAt = counters.Key{Subject: 1 << 63, Counter: uint64(i)}, now.Steady/1e9+60
	}
	number := binary.BigEndian.AppendUint64(nil, 12)
	frame, taken := appendFrame(nil, records, now, 0)
	addChecksum(number, frame)
	frame = golden.Check(t, "testdata/frames.txt", golden.Line{Name: "12", Bytes: frame})[0]

	then := now
	then.Steady, then.Wall = then.Wall+int64(time.Second), then.Wall+int64(time.Second)
	i := 0
	whole := readFrame(number, frame, then, func(r *counters.Record, _ int64, _ int) {
		want := records[i]
		want.ExpiresAt++
		if want.Kind.IsBucket() && want.State.Count > 0 {
			want.State.At += int64(time.Second)
		}
		for j := range want.Log {
			want.Log[j].At += int64(time.Second)
		}
		if !reflect.DeepEqual(*r, want) {
			t.Errorf("have %+v, want %+v", *r, want)
		}
		i++
	})
	if !whole || i != len(records) || taken != i {
		t.Errorf("have %d of %d records, %t", i, taken, whole)
	}
}
