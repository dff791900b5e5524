package persist

import (
	"bytes"
	"encoding/binary"
	"math"

	bolt "go.etcd.io/bbolt"
)

// A file's frames are a base, which holds every counter, and a log of later changes. When the log outgrows the base, a new
// base is written: each checkpoint marks another part of the table as changed. Once all of the table is marked and written,
// every counter is in the new base's first frame or a later one, and all older frames are deleted. So a crash leaves either
// the old base or the new one whole, with everything written later. Expired counters disappear along with the frames that
// hold them.

const (
	// minLog is the log size, in bytes, from which a new base is worth writing.
	minLog = 8 << 20
	// baseStep is the least number of counters a checkpoint adds to the new base. It adds as many as changed, if that is
	// more.
	baseStep = 1 << 16
)

// base describes the frames of a file.
type base struct {
	size int64 // bytes of the base
	log  int64 // bytes of all other frames

	// The new base, while it is being written:
	first  uint64 // number of its first frame; zero if there is no new base
	part   int    // the part of the table to mark next
	whole  bool   // all parts are marked
	marked int64  // counters marked so far
	copied int64  // counters written since the new base began, including those that merely changed
	bytes  int64  // bytes written since the new base began

	changed int64 // counters written by the last checkpoint, not counting those it marked
}

// add records that n counters were written, as the given number of bytes.
func (b *base) add(bytes, n int64) {
	b.log += bytes
	b.copied += n
	b.bytes += bytes
}

// renew begins a new base.
func (c *Counters) renew() {
	b := &c.base
	b.first, b.part, b.whole, b.marked, b.copied, b.bytes = c.last+1, 0, false, 0, 0, 0
}

// renewAtOnce begins a new base that the next checkpoint writes in full.
func (c *Counters) renewAtOnce() {
	c.renew()
	_, marked := c.cfg.Source.Mark(0, math.MaxInt)
	c.base.marked, c.base.whole = int64(marked), true
}

// renewMore continues the new base, or begins one when it is due. It returns how many counters it marked.
func (c *Counters) renewMore() int64 {
	b := &c.base
	if b.first == 0 && b.log > max(b.size, c.minLog) {
		c.renew()
	}
	if b.first == 0 || b.whole {
		return 0
	}
	next, marked := c.cfg.Source.Mark(b.part, max(int(b.changed), c.baseStep))
	b.part, b.whole = next, next == 0
	b.marked += int64(marked)
	return int64(marked)
}

// renewed completes the new base once all of it is written, and deletes the older frames. Call it after a checkpoint that
// wrote everything marked.
func (c *Counters) renewed() error {
	b := &c.base
	if b.first == 0 || !b.whole {
		return nil
	}
	if err := c.dropBefore(b.first); err != nil {
		return err
	}
	size := b.bytes
	if b.copied > 0 {
		size = int64(float64(b.bytes) * min(1, float64(b.marked)/float64(b.copied)))
	}
	c.base = base{size: size, log: b.bytes - size, changed: b.changed}
	return nil
}

// dropBefore deletes all frames numbered below first.
func (c *Counters) dropBefore(first uint64) error {
	return c.file.update(func(tx *bolt.Tx) error {
		frames := tx.Bucket(framesBucket)
		if frames == nil {
			return nil
		}
		var old [][]byte
		end, cursor := binary.BigEndian.AppendUint64(nil, first), frames.Cursor()
		for number, _ := cursor.First(); number != nil && bytes.Compare(number, end) < 0; number, _ = cursor.Next() {
			old = append(old, number)
		}
		for _, number := range old {
			if err := frames.Delete(number); err != nil {
				return err
			}
		}
		return nil
	})
}
