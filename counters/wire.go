package counters

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// A record on its way to another node:
//
//	byte 0      algorithm (3 bits; 7: a fixed window with a Part) and level (5 bits)
//	8 + 8       Key.Hi, Key.Lo, big endian
//	uvarint     seconds until it is fresh, rounded up; 0: it has expired
//	state       Count and Part as uvarints; then, unless both are 0, of a bucket how long ago the last change was, as a
//	            uvarint, of windows the number of the window as a varint. Part is left out for fixed windows, unless there is one
//	or log      number of entries as a uvarint, then of each the time since the one before, as a uvarint, of the first how
//	            long ago it was, as a varint, and N, as a uvarint
//
// Windows ahead of the clock because of a queue have their mark in the number. Times are in nanoseconds before the moment at which the message was made. The receiver counts them from when it
// came, so what was used drains later by the time that the message took, never earlier.

// ErrRecord: the bytes are not a record.
var ErrRecord = errors.New("not a counter's record")

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

// AppendRecord appends r to b. Levels are rounded to those that a table keeps.
func AppendRecord(b []byte, r *Record, now algorithms.Now) []byte {
	kind := r.Kind
	if kind == algorithms.FixedWindow && r.State.Part > 0 {
		kind = widened
	}
	b = append(b, byte(newMark(kind, r.Level)))
	b = binary.BigEndian.AppendUint64(b, r.Key.Hi)
	b = binary.BigEndian.AppendUint64(b, r.Key.Lo)
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

// ParseRecord reads a record that AppendRecord made, which came at now, and returns what follows it. A log's entries
// are put into r.Log, as far as it has room. The error wraps ErrRecord; r is then not to be used. Whatever the bytes
// are, a record that is returned may be put into a table.
func ParseRecord(b []byte, r *Record, now algorithms.Now) (rest []byte, err error) {
	if len(b) < 17 {
		return nil, ErrRecord
	}
	m := mark(b[0])
	log := r.Log[:0]
	*r = Record{Kind: m.kind(), Level: m.publicLevel(), Key: Key{
		Hi: binary.BigEndian.Uint64(b[1:]), Lo: binary.BigEndian.Uint64(b[9:]),
	}}
	in := reader{rest: b[17:]}
	room := r.Kind == widened
	if room {
		r.Kind = algorithms.FixedWindow
	}
	left := int64(in.upTo(math.MaxUint32))
	r.FreshAt = now.Steady / 1e9
	if left > 0 {
		r.FreshAt = min((now.Steady+1e9-1)/1e9+left, math.MaxUint32)
	}
	switch {
	case r.Kind > algorithms.SlidingLog:
		return nil, ErrRecord
	case r.Kind == algorithms.SlidingLog:
		r.Log = in.log(log, now)
	default:
		r.State = in.state(r.Kind, room, now)
	}
	if in.failed || room && r.State.Part == 0 {
		return nil, ErrRecord
	}
	return in.rest, nil
}

// reader takes numbers off a byte slice. After a failure it only returns zeros.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) fail() { r.rest, r.failed = nil, true }

// upTo reads a uvarint of at most most.
func (r *reader) upTo(most uint64) uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > most {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) state(kind algorithms.Kind, room bool, now algorithms.Now) algorithms.State {
	s := algorithms.State{Count: int64(r.upTo(maxUsed))}
	switch {
	case kind.Bucket():
		s.Part = int64(r.upTo(uint64(algorithms.MaxWindow) - 1))
	case kind == algorithms.SlidingWindow || room:
		s.Part = int64(r.upTo(maxUsed))
	}
	if s.Fresh() {
		return algorithms.State{}
	}
	if kind.Bucket() {
		s.At = now.Steady - int64(r.upTo(maxAge))
		return s
	}
	v, n := binary.Varint(r.rest)
	if number := (algorithms.State{At: v}).Window(); n <= 0 || number > maxWindowNumber || number < -maxWindowNumber {
		r.fail()
		return algorithms.State{}
	}
	r.rest, s.At = r.rest[n:], v
	return s
}

// since reads how long ago something was, which may wait for its turn in a queue still.
func (r *reader) since() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 || v > maxAge || v < -maxQueue {
		r.fail()
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// log reads a log's entries, in order of time, into entries. None is later than a queue can be.
func (r *reader) log(entries []algorithms.Entry, now algorithms.Now) []algorithms.Entry {
	n := int(r.upTo(algorithms.MaxLogEntries))
	if n > len(r.rest)/2 { // two bytes each, at least
		r.fail()
		return nil
	}
	if cap(entries) < n {
		entries = make([]algorithms.Entry, 0, n)
	}
	before, total := int64(0), uint64(0) // how long before now; the sum so far
	for i := range n {
		var step int64
		if i == 0 {
			before = r.since()
		} else {
			step = int64(r.upTo(maxAge))
			before = max(-maxQueue, before-step)
		}
		units := r.upTo(maxUsed - total)
		if units == 0 || i > 0 && step == 0 {
			r.fail()
			return nil
		}
		total += units
		at := now.Steady - before
		if last := len(entries) - 1; last >= 0 && entries[last].At == at {
			entries[last].N += int64(units)
		} else {
			entries = append(entries, algorithms.Entry{At: at, N: int64(units)})
		}
	}
	return entries
}
