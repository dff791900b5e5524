package counters

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/wire"
)

// The encoding of a record, for another node or for disk:
//
//	byte 0      algorithm (3 bits; 7 is a note) and fullness (5 bits)
//	8 + 8       Key.Subject, Key.Counter, big endian; of a note: Key.Subject,
//	            Key.ID, followed by the rest of it
//	uvarint     seconds until it is fresh, rounded up; 0 if it has expired
//	state       Count and Part as uvarints. Unless both are 0, then follows,
//	            for buckets, the time since the last change as a uvarint, for a
//	            FirstWindow the time since it began, for a CellBucket how far
//	            ahead it is, or, for other windows, the window's number as a
//	            varint
//	or log      number of entries as a uvarint; then for each entry the time
//	            since the previous one as a uvarint (for the first: how long
//	            ago it was, as a varint), and N as a uvarint
//
// A window that a queue put ahead of the clock is marked in its number. Times
// are in nanoseconds before the moment of writing. The receiver counts them
// from the arrival of the message, so usage drains later by the time in
// transit, never earlier.

const (
	maxUsed = 1 << 60           // bounds counts, and the sum of a log
	maxAge  = math.MaxInt64 / 2 // nanoseconds
	// maxAhead is how far, in nanoseconds, a log entry can be ahead of the clock: a
	// few seconds more than the longest queue.
	maxAhead = int64(algorithms.LongestDelay + 10*time.Second)
	// maxWindowNumber bounds window numbers; the clock counts nanoseconds.
	maxWindowNumber = math.MaxInt64 / int64(algorithms.MinWindow)
)

// AppendKey appends a key.
func AppendKey(b []byte, k Key) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, k.Subject), k.Counter)
}

// DecodeKey reads a key.
func DecodeKey(d *wire.Decoder) (k Key) {
	if b := d.Bytes(16); b != nil {
		k.Subject, k.Counter = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	}
	return k
}

// AppendRecord appends a record as of now. It rounds the fullness to one that a table can keep.
func AppendRecord(b []byte, r *Record, now algorithms.Instant) []byte {
	if r.Note != nil {
		return appendNote(b, r.Note, now)
	}

	b = AppendKey(append(b, byte(packKindFullness(r.Kind, r.Fullness))), r.Key)
	left := uint64(0)
	if second := now.Steady / 1e9; r.ExpiresAt > second {
		left = uint64(min(r.ExpiresAt, math.MaxUint32) - second)
	}
	b = binary.AppendUvarint(b, left)

	if r.Kind == algorithms.SlidingLog {
		return appendLog(b, r.Log, now)
	}

	s := r.State
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(s.Count)), uint64(s.Part))
	switch {
	case s.Fresh():
		return b
	case r.Kind == algorithms.CellBucket:
		return binary.AppendUvarint(b, uint64(s.Ahead(now)))
	case r.Kind.OnSteadyClock():
		return binary.AppendUvarint(b, age(s.At, now))
	}
	return binary.AppendVarint(b, s.At)
}

// appendNote is AppendRecord for a note.
func appendNote(b []byte, n *notes.Note, now algorithms.Instant) []byte {
	b = append(b, byte(noteKind)|byte(n.Kind)<<3)
	b = AppendKey(b, Key{Subject: n.Subject, Counter: n.ID})
	return n.Append(b, now.Steady)
}

func appendLog(b []byte, log []algorithms.Entry, now algorithms.Instant) []byte {
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

// age returns how long before now at was; zero if at is later than now.
func age(at int64, now algorithms.Instant) uint64 {
	if at >= now.Steady {
		return 0
	}
	return min(uint64(now.Steady)-uint64(at), maxAge)
}

// DecodeRecord reads, as of now, what AppendRecord wrote. It reuses the
// capacity of r.Log for a log's entries. If decoding fails, r must not be used.
// Otherwise r may be put into a table, whatever the bytes were.
func DecodeRecord(d *wire.Decoder, r *Record, now algorithms.Instant) {
	packed := kindFullness(d.Byte())
	log := r.Log[:0]
	*r = Record{Key: DecodeKey(d), Kind: packed.kind(), Fullness: packed.recordFullness(), ExpiresAt: now.Steady / 1e9}
	if r.Kind == noteKind {
		*r = decodeNote(d, r.Key, notes.Kind(packed.packedFullness()), now)
		return
	}

	if left := d.UpTo(math.MaxUint32); left > 0 {
		// The second is rounded up, so that no counter is dropped before it is fresh.
		r.ExpiresAt = min((now.Steady+1e9-1)/1e9+left, math.MaxUint32)
	}
	if r.Kind == algorithms.SlidingLog {
		r.Log = decodeLog(d, log, now)
		return
	}
	r.State = decodeState(d, r.Kind, now)
}

// decodeNote reads the rest of what appendNote wrote.
func decodeNote(d *wire.Decoder, k Key, kind notes.Kind, now algorithms.Instant) Record {
	n := &notes.Note{Key: notes.Key{Subject: k.Subject, ID: k.Counter, Kind: kind}}
	n.Decode(d, now.Steady)
	return recordOf(n)
}

func decodeState(d *wire.Decoder, kind algorithms.Kind, now algorithms.Instant) algorithms.State {
	mostPart := int64(maxUsed)

	// The Part of a CellBucket holds more than a count; Legal checks it.
	if kind == algorithms.CellBucket {
		mostPart = math.MaxInt64
	}

	s := algorithms.State{Count: d.UpTo(maxUsed), Part: d.UpTo(mostPart)}
	if !s.Legal(kind) {
		d.Fail()
	}

	switch {
	case s.Fresh():
		return algorithms.State{}
	case kind == algorithms.CellBucket:
		s.SetAhead(now, d.UpTo(maxUsed-1))
		return s
	case kind.OnSteadyClock():
		s.At = now.Steady - d.UpTo(maxAge)
		return s
	}

	s.At = d.Varint()
	number := s.Window()
	if number > maxWindowNumber || number < -maxWindowNumber {
		d.Fail()
	}

	return s
}

// decodeLog reads a log's entries into entries, in order of time. No entry is
// further ahead of the clock than a queue can be.
func decodeLog(d *wire.Decoder, entries []algorithms.Entry, now algorithms.Instant) []algorithms.Entry {
	n := d.Count(algorithms.MaxLogEntries, 2)
	if cap(entries) < n {
		entries = make([]algorithms.Entry, 0, n)
	}

	before, total := int64(0), int64(0) // time before now; the sum so far
	for i := range n {
		var step int64
		if i == 0 {
			before = d.Varint()
			if before > maxAge || before < -maxAhead {
				d.Fail()
			}
		} else {
			step = d.UpTo(maxAge)
			before = max(-maxAhead, before-step)
		}

		units := d.UpTo(maxUsed - total)
		if units == 0 || i > 0 && step == 0 {
			d.Fail()
			return nil
		}

		total += units
		at := now.Steady - before

		// Entries beyond maxAhead were moved to it, so they may coincide.
		last := len(entries) - 1
		if last >= 0 && entries[last].At == at {
			entries[last].N += units
		} else {
			entries = append(entries, algorithms.Entry{At: at, N: units})
		}
	}

	return entries
}
