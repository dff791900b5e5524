package persist

import (
	"bytes"
	"encoding/binary"
	"math"

	bolt "go.etcd.io/bbolt"
)

// A file's frames are a base, which holds every counter, and a log of later
// changes. When the log outgrows the base, or counters were dropped with their
// partition, a new base is written. Each checkpoint then marks another part of
// the table as changed. Once the whole table is marked and written, every
// counter is in the new base's first frame or a later one, and all older frames
// are deleted. So a crash leaves either the old base or the new one complete,
// with everything written later. Expired and dropped counters disappear along
// with the frames that hold them.
//
// A new file is incomplete until its first base is whole. If the process dies
// before that, the next process must know that the file may lack counters.

const (
	// minLogSize is the log size, in bytes, from which a new base is worth writing.
	minLogSize = 8 << 20
	// minBaseStep is the minimum number of counters that a checkpoint adds to the
	// new base. It adds more if more counters than that changed before the last
	// checkpoint: as many as changed.
	minBaseStep = 1 << 16
)

// base describes the frames of a file.
type base struct {
	size    int64 // bytes of the base
	logSize int64 // bytes of all other frames

	// The new base, while it is being written:
	firstFrame      uint64 // number of its first frame; zero if no new base is being written
	nextPart        int    // where to continue marking the table
	allMarked       bool   // the whole table is marked
	markedCounters  int64  // counters marked so far
	writtenCounters int64  // counters written since the new base began, whether marked or changed
	writtenBytes    int64  // bytes written since the new base began
	dropsSeen       int64  // Source.Drops when the last new base began

	lastChanged int64 // counters written by the last checkpoint, not counting those it marked
}

// add records that n counters were written, in that many bytes.
func (b *base) add(bytes, n int64) {
	b.logSize += bytes
	b.writtenCounters += n
	b.writtenBytes += bytes
}

func (cf *CounterFile) beginBase() {
	b := &cf.base
	b.firstFrame = cf.lastFrame + 1
	b.nextPart = 0
	b.allMarked = false
	b.markedCounters = 0
	b.writtenCounters = 0
	b.writtenBytes = 0
	b.dropsSeen = cf.config.Source.Drops()
}

// beginFullBase begins a new base that the checkpoint in progress writes in full.
func (cf *CounterFile) beginFullBase() {
	cf.beginBase()
	_, marked := cf.config.Source.MarkPartsChanged(0, math.MaxInt)
	cf.base.markedCounters = int64(marked)
	cf.base.allMarked = true
}

// continueBase continues the new base, or begins one when it is due. It returns
// how many counters it marked.
func (cf *CounterFile) continueBase() int64 {
	b := &cf.base
	if b.firstFrame == 0 && (b.logSize > max(b.size, cf.minLogSize) || b.dropsSeen != cf.config.Source.Drops()) {
		cf.beginBase()
	}
	if b.firstFrame == 0 || b.allMarked {
		return 0
	}

	next, marked := cf.config.Source.MarkPartsChanged(b.nextPart, max(int(b.lastChanged), cf.minBaseStep))
	b.nextPart = next
	b.allMarked = next == 0
	b.markedCounters += int64(marked)
	return int64(marked)
}

// completeBase deletes the older frames if all of the new base is written. Call
// it after a checkpoint that wrote everything marked.
func (cf *CounterFile) completeBase() error {
	b := &cf.base
	if b.firstFrame == 0 || !b.allMarked {
		return nil
	}

	if err := cf.deleteFramesBefore(b.firstFrame); err != nil {
		return err
	}
	cf.complete = true

	// Besides the marked counters, the frames have those that changed meanwhile.
	// Their share of the bytes counts as log, and the rest as base.
	size := b.writtenBytes
	if b.writtenCounters > 0 {
		size = int64(float64(b.writtenBytes) * min(1, float64(b.markedCounters)/float64(b.writtenCounters)))
	}

	cf.base = base{size: size, logSize: b.writtenBytes - size, dropsSeen: b.dropsSeen, lastChanged: b.lastChanged}
	return nil
}

// deleteFramesBefore deletes all frames numbered below first. In the same
// transaction, it marks the file as complete: the bucket's sequence is above
// zero from now on.
func (cf *CounterFile) deleteFramesBefore(first uint64) error {
	return cf.file.update(func(tx *bolt.Tx) error {
		frames, err := tx.CreateBucketIfNotExists(framesBucket)
		if err != nil {
			return err
		}

		// A bucket must not change while a cursor walks it.
		var old [][]byte
		end := binary.BigEndian.AppendUint64(nil, first)
		cursor := frames.Cursor()
		for number, _ := cursor.First(); number != nil && bytes.Compare(number, end) < 0; number, _ = cursor.Next() {
			old = append(old, number)
		}

		for _, number := range old {
			if err := frames.Delete(number); err != nil {
				return err
			}
		}
		return frames.SetSequence(max(cf.lastFrame, first))
	})
}
