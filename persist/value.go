package persist

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
)

// A counter stands in counters.db under its key. Its value:
//
//	byte 0      version, 3; 2 wrote times as they are, and in 1 keys were hashed without the cluster's key
//	bytes 1–4   CRC32C of the key and of all that follows, little endian
//	uvarint     when it was written, Unix seconds, rounded up
//	uvarint     number of the checkpoint that wrote it
//	value       as [counters.AppendValue] writes it, as of then
const (
	valueVersion = 3
	valueHeader  = 5
	keySize      = 16
)

// errValue: a value is not what was written.
var errValue = errors.New("damaged value")

// stored is a counter as counters.db has it, with times of the wall clock.
type stored struct {
	counters.Record
	written int64  // Unix seconds
	seq     uint64 // number of the checkpoint that wrote it
}

// appendValue appends the value of r under key, as of second of the wall clock, which is now on the steady one.
func appendValue(b, key []byte, r *counters.Record, second int64, now algorithms.Now, seq uint64) []byte {
	begin := len(b)
	b = append(b, valueVersion, 0, 0, 0, 0)
	b = binary.AppendUvarint(b, uint64(second))
	b = binary.AppendUvarint(b, seq)
	b = counters.AppendValue(b, r, now)
	binary.LittleEndian.PutUint32(b[begin+1:], checksum(key, b[begin:]))
	return b
}

func checksum(key, value []byte) uint32 {
	return wire.Sum(0, key, value[valueHeader:])
}

// intactValue reports whether a value, of any version, is as it was written.
func intactValue(key, value []byte) bool {
	return len(key) == keySize && len(value) >= valueHeader && binary.LittleEndian.Uint32(value[1:]) == checksum(key, value)
}

// parseValue is the inverse of appendValue. A log's entries are put into log, as far as it has room.
func parseValue(key, value []byte, log []algorithms.Entry) (stored, error) {
	s := stored{Record: counters.Record{Log: log}}
	if !intactValue(key, value) || value[0] != valueVersion {
		return s, errValue
	}
	d := wire.NewDecoder(value[valueHeader:])
	s.written, s.seq = d.UpTo(math.MaxUint32), d.Uvarint()
	counters.DecodeValue(d, &s.Record, algorithms.Now{Steady: s.written * 1e9})
	if d.Done("value") != nil {
		return s, errValue
	}
	s.Key = parseKey(key)
	return s, nil
}

func parseKey(b []byte) counters.Key { return counters.DecodeKey(wire.NewDecoder(b)) }
