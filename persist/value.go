package persist

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// A counter's value in counters.db:
//
//	byte 0      version, 2: keys are hashed with the cluster's key; in version 1 they were hashed without one
//	bytes 1–4   CRC32C of the key and of all that follows, little endian
//	byte 5      algorithm; the highest bit: with a queue
//	byte 6      level
//	uvarint     expiry, Unix seconds
//	uvarint     number of the checkpoint that wrote it
//	uvarint     with a queue: how much of the log was ahead of the clock, in nanoseconds
//	state       Count and Part as uvarints, At as a varint
//	or log      number of entries as a uvarint, then of each the time since the one before as a varint, and N
//	            as a uvarint
//
// All times are of the wall clock.
const (
	valueVersion = 2
	olderVersion = 1
	valueHeader  = 7
	keySize      = 16
	valueQueue   = 0x80
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errValue: a value is not what was written.
var errValue = errors.New("damaged value")

// stored is a counter as counters.db has it, with times of the wall clock.
type stored struct {
	counters.Record
	expiry int64  // Unix seconds, >= 0
	queue  int64  // how much of the log was ahead of the clock when it was written, in nanoseconds
	seq    uint64 // number of the checkpoint that wrote it
}

func appendKey(b []byte, k counters.Key) []byte {
	b = binary.BigEndian.AppendUint64(b, k.Hi)
	return binary.BigEndian.AppendUint64(b, k.Lo)
}

func parseKey(b []byte) counters.Key {
	return counters.Key{Hi: binary.BigEndian.Uint64(b), Lo: binary.BigEndian.Uint64(b[8:])}
}

// queueOf is how much of a log is ahead of the clock, because its checks wait for their turn: nanoseconds.
func queueOf(r *counters.Record, steady int64) int64 {
	if n := len(r.Log); n > 0 {
		return max(0, r.Log[n-1].At-steady)
	}
	return 0
}

// appendValue appends the value of r under key, which has such a queue. delta takes steady times to the wall clock, in
// nanoseconds.
func appendValue(b, key []byte, r *counters.Record, delta, expiry int64, seq uint64, queue int64) []byte {
	begin := len(b)
	b = append(b, valueVersion, 0, 0, 0, 0, byte(r.Kind), r.Level)
	b = binary.AppendUvarint(b, uint64(expiry))
	b = binary.AppendUvarint(b, seq)
	if queue > 0 {
		b[begin+5] |= valueQueue
		b = binary.AppendUvarint(b, uint64(queue))
	}
	if r.Kind == algorithms.SlidingLog {
		b = appendLog(b, r.Log, delta)
	} else {
		at := r.State.At
		if r.Kind.Bucket() {
			at += delta
		}
		b = binary.AppendUvarint(b, uint64(r.State.Count))
		b = binary.AppendUvarint(b, uint64(r.State.Part))
		b = binary.AppendVarint(b, at)
	}
	binary.LittleEndian.PutUint32(b[begin+1:], checksum(key, b[begin:]))
	return b
}

func appendLog(b []byte, log []algorithms.Entry, delta int64) []byte {
	b = binary.AppendUvarint(b, uint64(len(log)))
	last := -delta
	for _, e := range log {
		b = binary.AppendVarint(b, e.At-last)
		b = binary.AppendUvarint(b, uint64(e.N))
		last = e.At
	}
	return b
}

func checksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value[5:])
}

// intactValue reports whether a value, of any version, is as it was written.
func intactValue(key, value []byte) bool {
	return len(key) == keySize && len(value) >= valueHeader && binary.LittleEndian.Uint32(value[1:]) == checksum(key, value)
}

// parseValue is the inverse of appendValue, with delta 0. The log's entries are appended to log[:0].
func parseValue(key, value []byte, log []algorithms.Entry) (stored, error) {
	var s stored
	if !intactValue(key, value) || value[0] != valueVersion {
		return s, errValue
	}
	s.Key = parseKey(key)
	s.Kind, s.Level = algorithms.Kind(value[5]&^valueQueue), value[6]
	r := reader{rest: value[valueHeader:]}
	s.expiry = r.amount()
	s.seq = r.uvarint()
	if value[5]&valueQueue != 0 {
		if s.queue = r.amount(); s.queue == 0 || s.Kind != algorithms.SlidingLog {
			return s, errValue
		}
	}
	switch {
	case s.Kind > algorithms.SlidingLog:
		return s, errValue
	case s.Kind == algorithms.SlidingLog:
		s.Log = r.log(log[:0])
	default:
		s.State = algorithms.State{Count: r.amount(), Part: r.amount(), At: r.varint()}
	}
	if r.failed || len(r.rest) > 0 {
		return s, errValue
	}
	return s, nil
}

// reader takes numbers off a byte slice. After a failure it only returns zeros.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) fail() { r.rest, r.failed = nil, true }

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// amount is a uvarint that fits int64.
func (r *reader) amount() int64 {
	v := r.uvarint()
	if v > math.MaxInt64 {
		r.fail()
		return 0
	}
	return int64(v)
}

func (r *reader) log(entries []algorithms.Entry) []algorithms.Entry {
	n := r.uvarint()
	if n > algorithms.MaxLogEntries {
		r.fail()
		return nil
	}
	var at int64
	for range n {
		at += r.varint()
		e := algorithms.Entry{At: at, N: r.amount()}
		if r.failed || e.N == 0 {
			r.fail()
			return nil
		}
		entries = append(entries, e)
	}
	return entries
}
