package persist

import (
	"encoding/binary"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
)

// A counter file has one bucket of frames, keyed by number, big endian. A frame
// is about 64 kB of changed counters:
//
//	4 bytes     CRC32C of the number and of all that follows, little endian
//	8 bytes     wall-clock time of writing: Unix nanoseconds, big endian
//	8 bytes     how far, at most, a clock by which partitions counted their windows was ahead of that: nanoseconds, big endian
//	records     as counters.AppendRecord writes them at that time, back to back
//
// If a counter has several records, the one in the highest-numbered frame
// counts. A fresh record means that the counter was reset. The bucket's
// sequence is 0 while the file is incomplete (see base.go), and then the number
// of the newest frame.
const (
	frameHeader = 4 + 8 + 8
	// frameBytes is the size, in bytes, at which a frame is full. With the record
	// that fills it, the frame still fits into 16 pages of bbolt, unless that
	// record is a log.
	frameBytes = 63 << 10
)

// framesBucket is the name of the bucket of frames. Earlier versions, whose
// frames differ, named it frames-2 or frames.
var (
	framesBucket      = []byte("frames-3")
	olderFramesBucket = []byte("frames")
)

// appendFrame appends one frame with as many of the records as fit, leaving its
// checksum blank. taken is how many it has dealt with. It leaves out expired
// records: older copies of them in the file have expired as well, because an
// expiry never moves to an earlier time. Released slots are the exception, so
// appendFrame keeps those: an older copy may still be held.
func appendFrame(b []byte, records []counters.Record, now algorithms.Instant, lead int64) (frame []byte, taken int) {
	full := len(b) + frameBytes
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(now.Wall))
	b = binary.BigEndian.AppendUint64(b, uint64(lead))
	for taken < len(records) && len(b) < full {
		r := &records[taken]
		if r.ExpiresAt > now.Steady/1e9 || r.IsReleasedSlot() {
			b = counters.AppendRecord(b, r, now)
		}
		taken++
	}
	return b, taken
}

func addChecksum(number, frame []byte) {
	binary.LittleEndian.PutUint32(frame, frameSum(number, frame))
}

func frameSum(number, frame []byte) uint32 {
	return wire.Sum(0, number, frame[4:])
}

// readFrame calls each for every record of a frame, and returns false if the
// frame is damaged. Times are converted to this process's steady clock. wall is
// the latest reading, at the time of writing, of a clock by which the frame's
// windows were counted; size is the record's length in bytes. r is reused
// between calls.
//
// Counters age while the process is down. Slots don't, so that no step of the
// clock ends one too early. A frame that seems to be from the future counts as
// written now.
func readFrame(number, frame []byte, now algorithms.Instant, each func(r *counters.Record, wall int64, size int)) bool {
	if len(number) != 8 || len(frame) < frameHeader || binary.LittleEndian.Uint32(frame) != frameSum(number, frame) {
		return false
	}

	written := int64(binary.BigEndian.Uint64(frame[4:]))
	wall := written + int64(binary.BigEndian.Uint64(frame[12:]))

	age := max(0, now.Wall-written)
	writtenAt := now
	writtenAt.Wall -= age
	writtenAt.Steady -= age

	var r counters.Record
	var log []algorithms.Entry // reused
	for d := wire.NewDecoder(frame[frameHeader:]); d.More(); {
		before := d.Len()
		r.Log = log
		counters.DecodeRecord(d, &r, writtenAt)
		if d.Failed() {
			return false
		}
		if r.Log != nil {
			log = r.Log
		}

		r.ExtendSlot(age)
		each(&r, wall, before-d.Len())
	}
	return true
}
