package persist

import (
	"encoding/binary"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
)

// A counter file has one bucket of frames, by number, big endian. A frame is some 64 kB of counters that changed:
//
//	4 bytes     CRC32C of the number and of all that follows, little endian
//	8 bytes     when it was written, by the wall clock: Unix nanoseconds, big endian
//	records     as counters.AppendRecord writes them at that time, one after the other
//
// Of several records of one counter the one in the frame with the highest number counts. A fresh record stands for a counter
// that was reset.
const (
	frameHeader = 4 + 8
	// frameBytes is when a frame is full. With its last record it fills 16 pages of bbolt, unless that is a log.
	frameBytes = 63 << 10
)

var framesBucket = []byte("frames")

// appendFrame appends a frame with as many of the records as it takes to fill one, without its checksum. What has expired is
// left out: so have its older copies, since no counter's expiry moves to an earlier time.
func appendFrame(b []byte, records []counters.Record, now algorithms.Now) (frame []byte, taken int) {
	full := len(b) + frameBytes
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(now.Wall))
	for taken < len(records) && len(b) < full {
		if r := &records[taken]; r.FreshAt > now.Steady/1e9 {
			b = counters.AppendRecord(b, r, now)
		}
		taken++
	}
	return b, taken
}

// sealFrame writes the checksum into a frame.
func sealFrame(number, frame []byte) {
	binary.LittleEndian.PutUint32(frame, frameSum(number, frame))
}

func frameSum(number, frame []byte) uint32 {
	return wire.Sum(0, number, frame[4:])
}

// readFrame calls each for the records of a frame, with times of this process's steady clock. The frame counts as written at
// the latest now: if the clock was ahead, or is behind, its counters expire as much earlier. It reports false for a damaged
// frame. The record is reused.
func readFrame(number, frame []byte, now algorithms.Now, each func(r *counters.Record, size int)) bool {
	if len(number) != 8 || len(frame) < frameHeader || binary.LittleEndian.Uint32(frame) != frameSum(number, frame) {
		return false
	}
	if age := now.Wall - int64(binary.BigEndian.Uint64(frame[4:])); age > 0 {
		now.Wall, now.Steady = now.Wall-age, now.Steady-age
	}
	var r counters.Record
	var log []algorithms.Entry // reused
	for d := wire.NewDecoder(frame[frameHeader:]); d.More(); {
		before := d.Len()
		r.Log = log
		if counters.DecodeRecord(d, &r, now); d.Failed() {
			return false
		}
		if r.Log != nil {
			log = r.Log
		}
		each(&r, before-d.Len())
	}
	return true
}
