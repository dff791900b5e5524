package persist

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// fullLog is a log at its bound.
func fullLog(now algorithms.Instant, k counters.Key) counters.Record {
	r := counters.Record{Key: k, Kind: algorithms.SlidingLog, ExpiresAt: now.Steady/1e9 + 7200}
	for i := range int64(algorithms.MaxLogEntries) {
		r.Log = append(r.Log,
			algorithms.Entry{At: now.Steady - int64(time.Hour) + i*int64(50*time.Millisecond) + i%1000, N: 1 + i%200})
	}
	return r
}

// The frames hold every record once, whatever its size. A log at its bound fits into one frame.
func TestFrames(t *testing.T) {
	now := newClock().Now()
	all := sample(now, 10_000)
	for i := range 3 {
		all = append(all, fullLog(now, counters.Key{Subject: uint64(i)}), all[i])
	}
	seen, entries, most := 0, 0, 0
	for rest := all; len(rest) > 0; {
		frame, taken := appendFrame(nil, rest, now, 0)
		number := binary.BigEndian.AppendUint64(nil, uint64(len(rest)))
		addChecksum(number, frame)
		most = max(most, len(frame))
		if taken == 0 {
			t.Fatal("an empty frame")
		}
		if !readFrame(number, frame, now, func(r *counters.Record, _ int64, _ int) {
			if r.Key != all[seen].Key {
				t.Fatalf("record %d: have %+v, want %+v", seen, *r, all[seen])
			}
			seen++
			entries += len(r.Log)
		}) {
			t.Fatal("a frame can't be read")
		}
		rest = rest[taken:]
	}
	if seen != len(all) || entries < 3*algorithms.MaxLogEntries || most > 1<<20 {
		t.Errorf("have %d of %d records, %d entries, and a frame of %d bytes", seen, len(all), entries, most)
	}
}

// If any byte of a frame is wrong, none of its records counts.
func TestFrameIsWhole(t *testing.T) {
	now := newClock().Now()
	number := binary.BigEndian.AppendUint64(nil, 7)
	frame, _ := appendFrame(nil, sample(now, 20), now, 0)
	addChecksum(number, frame)
	none := func(r *counters.Record, _ int64, _ int) { t.Fatalf("have %+v", *r) }
	for i := range frame {
		frame[i] ^= 0x10
		if readFrame(number, frame, now, none) {
			t.Fatalf("byte %d damaged: accepted", i)
		}
		frame[i] ^= 0x10
	}
	for i := range frame {
		if readFrame(number, frame[:i], now, none) {
			t.Fatalf("cut to %d bytes: accepted", i)
		}
	}
	if readFrame(binary.BigEndian.AppendUint64(nil, 8), frame, now, none) {
		t.Fatal("accepted under another number")
	}
}

// FuzzReadFrame gets past the checksum: whatever is accepted may be put into a
// table, and survives another round trip.
func FuzzReadFrame(f *testing.F) {
	now := newClock().Now()
	for i := range 6 {
		frame, _ := appendFrame(nil, sample(now, i), now, 0)
		f.Add(frame)
	}
	f.Add([]byte{})
	number := make([]byte, 8)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) >= frameHeader {
			addChecksum(number, frame)
		}
		table := counters.New(1000)
		defer table.Close()
		var have []counters.Record
		whole := readFrame(number, frame, now, func(r *counters.Record, _ int64, size int) {
			if size <= 0 || r.State.Count < 0 || r.State.Part < 0 || len(r.Log) > algorithms.MaxLogEntries {
				t.Fatalf("have %+v of %d bytes", *r, size)
			}
			if _, noRoom := table.Restore(now, []counters.Record{*r}); noRoom > 0 {
				t.Fatal("no room")
			}
			if len(r.Log) == 0 && r.ExpiresAt > now.Steady/1e9 && len(have) < 500 {
				have = append(have, *r)
			}
		})
		if !whole || len(have) == 0 {
			return
		}
		again, taken := appendFrame(nil, have, now, 0)
		addChecksum(number, again)
		i := 0
		if !readFrame(number, again, now, func(r *counters.Record, _ int64, _ int) {
			if want := have[i]; r.Key != want.Key || r.Kind != want.Kind ||
				r.State.Count != want.State.Count || r.State.Part != want.State.Part {
				t.Fatalf("have %+v, then %+v", want, *r)
			}
			i++
		}) || i != taken || i != len(have) {
			t.Fatalf("%d of %d records, %d taken", i, len(have), taken)
		}
	})
}
