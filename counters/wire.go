package counters

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
)

// A record, on its way to another node or on disk:
//
//	byte 0      algorithm (3 bits; 7: a fixed window with a Part) and level (5 bits)
//	8 + 8       Key.Hi, Key.Lo, big endian
//	uvarint     seconds until it is fresh, rounded up; 0: it has expired
//	state       Count and Part as uvarints; then, unless both are 0, of a bucket how long ago the last change was, as a
//	            uvarint, of windows the number of the window as a varint. Part is left out for fixed windows, unless there is one
//	or log      number of entries as a uvarint, then of each the time since the one before, as a uvarint, of the first how
//	            long ago it was, as a varint, and N, as a uvarint
//
// Windows ahead of the clock because of a queue have their mark in the number. Times are in nanoseconds before the moment at which
// it was written. The receiver of a message counts them from when it came, so what was used drains later by the time that the
// message took, never earlier.

const (
	// widened stands for a fixed window in which more may be used than its limit, because other regions have lent it.
	widened = algorithms.Kind(7)
	maxUsed = 1 << 60           // of counts, and of the sum of a log
	maxAge  = math.MaxInt64 / 2 // nanoseconds
	// maxQueue is how far ahead of the clock an entry of a log can be, in nanoseconds: some seconds more than a queue.
	maxQueue = int64(algorithms.MaxMaxDelay + 10*time.Second)
	// maxWindowNumber is that of the last window of a clock in nanoseconds.
	maxWindowNumber = math.MaxInt64 / int64(algorithms.MinWindow)
)

// AppendKey writes a key.
func AppendKey(b []byte, k Key) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, k.Hi), k.Lo)
}

// DecodeKey reads a key.
func DecodeKey(d *wire.Decoder) (k Key) {
	if b := d.Bytes(16); b != nil {
		k.Hi, k.Lo = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	}
	return k
}

// AppendRecord writes a record as of now. Levels are rounded to those that a table keeps.
func AppendRecord(b []byte, r *Record, now algorithms.Now) []byte {
	kind := r.Kind
	if kind == algorithms.FixedWindow && r.State.Part > 0 {
		kind = widened
	}
	b = AppendKey(append(b, byte(newMark(kind, r.Level))), r.Key)
	left := uint64(0)
	if second := now.Steady / 1e9; r.FreshAt > second {
		left = uint64(min(r.FreshAt, math.MaxUint32) - second)
	}
	b = binary.AppendUvarint(b, left)
	if r.Kind == algorithms.SlidingLog {
		return appendLog(b, r.Log, now)
	}
	s := r.State
	b = binary.AppendUvarint(b, uint64(s.Count))
	if kind == algorithms.FixedWindow {
		s.Part = 0
	} else {
		b = binary.AppendUvarint(b, uint64(s.Part))
	}
	switch {
	case s.Fresh():
		return b
	case r.Kind.Bucket():
		return binary.AppendUvarint(b, age(s.At, now))
	}
	return binary.AppendVarint(b, s.At)
}

func appendLog(b []byte, log []algorithms.Entry, now algorithms.Now) []byte {
	b = binary.AppendUvarint(b, uint64(len(log)))
	for i, e := range log {
		if i == 0 {
			b = binary.AppendVarint(b, now.Steady-e.At)
		} else {
			b = binary.AppendUvarint(b, uint64(e.At-log[i-1].At))
		}
		b = binary.AppendUvarint(b, uint64(e.N))
	}
	return b
}

// age is how long before now at was; what was after it, was now.
func age(at int64, now algorithms.Now) uint64 {
	if at >= now.Steady {
		return 0
	}
	return min(uint64(now.Steady)-uint64(at), maxAge)
}

// DecodeRecord reads what AppendRecord wrote, as of now. A log's entries are put into r.Log, as far as it has room. After a
// failure r is not to be used; else, whatever the bytes were, it may be put into a table.
func DecodeRecord(d *wire.Decoder, r *Record, now algorithms.Now) {
	m := mark(d.Byte())
	log := r.Log[:0]
	*r = Record{Key: DecodeKey(d), Kind: m.kind(), Level: m.publicLevel(), FreshAt: now.Steady / 1e9}
	if left := d.UpTo(math.MaxUint32); left > 0 {
		r.FreshAt = min((now.Steady+1e9-1)/1e9+left, math.MaxUint32)
	}
	switch r.Kind {
	case algorithms.SlidingLog:
		r.Log = decodeLog(d, log, now)
	case widened:
		r.Kind = algorithms.FixedWindow
		if r.State = decodeState(d, widened, now); r.State.Part == 0 {
			d.Fail()
		}
	case algorithms.FixedWindow, algorithms.SlidingWindow, algorithms.TokenBucket, algorithms.LeakyBucket:
		r.State = decodeState(d, r.Kind, now)
	default:
		d.Fail()
	}
}

func decodeState(d *wire.Decoder, kind algorithms.Kind, now algorithms.Now) algorithms.State {
	s := algorithms.State{Count: d.UpTo(maxUsed)}
	switch {
	case kind.Bucket():
		s.Part = d.UpTo(int64(algorithms.MaxWindow) - 1)
	case kind != algorithms.FixedWindow:
		s.Part = d.UpTo(maxUsed)
	}
	switch {
	case s.Fresh():
		return algorithms.State{}
	case kind.Bucket():
		s.At = now.Steady - d.UpTo(maxAge)
		return s
	}
	s.At = d.Varint()
	if number := s.Window(); number > maxWindowNumber || number < -maxWindowNumber {
		d.Fail()
	}
	return s
}

// decodeLog reads a log's entries, in order of time, into entries. None is later than a queue can be.
func decodeLog(d *wire.Decoder, entries []algorithms.Entry, now algorithms.Now) []algorithms.Entry {
	n := d.Count(algorithms.MaxLogEntries, 2)
	if cap(entries) < n {
		entries = make([]algorithms.Entry, 0, n)
	}
	before, total := int64(0), int64(0) // how long before now; the sum so far
	for i := range n {
		var step int64
		if i == 0 {
			if before = d.Varint(); before > maxAge || before < -maxQueue {
				d.Fail()
			}
		} else {
			step = d.UpTo(maxAge)
			before = max(-maxQueue, before-step)
		}
		units := d.UpTo(maxUsed - total)
		if units == 0 || i > 0 && step == 0 {
			d.Fail()
			return nil
		}
		total += units
		at := now.Steady - before
		if last := len(entries) - 1; last >= 0 && entries[last].At == at {
			entries[last].N += units
		} else {
			entries = append(entries, algorithms.Entry{At: at, N: units})
		}
	}
	return entries
}
