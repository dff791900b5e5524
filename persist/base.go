package persist

import (
	"bytes"
	"encoding/binary"
	"math"

	bolt "go.etcd.io/bbolt"
)

// The frames of a file are a base, in which all counters are, and a log of what changed since. When the log is longer than the
// base, a new base is written: each checkpoint marks some more of the table as changed. When all of it was marked, and written,
// every counter is in a frame that is newer than the first of the new base, and all older frames go. So a crash finds the old
// base or the new one whole, with all that came later, and counters that have expired go with the frames that they are in.

const (
	// leastLog is the length of the log from which on a new base is worth it.
	leastLog = 8 << 20
	// baseStep is how many counters a checkpoint adds to the new base at least. It adds as many as changed, if those are more.
	baseStep = 1 << 16
)

// base is what the frames of a file are.
type base struct {
	size int64 // bytes of the base
	log  int64 // bytes of all other frames

	// Of the new base that is being written:
	first  uint64 // number of its first frame; 0: there is none
	part   int    // of the table, that comes next
	whole  bool   // all parts are marked
	marked int64  // counters
	copied int64  // counters written since it began, among them those that merely changed
	bytes  int64  // and of how many bytes

	changed int64 // counters written by the last checkpoint, without those it marked
}

// add notes that n counters were written.
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

// renewAtOnce begins a new base that the next checkpoint writes whole.
func (c *Counters) renewAtOnce() {
	c.renew()
	_, marked := c.cfg.Source.Mark(0, math.MaxInt)
	c.base.marked, c.base.whole = int64(marked), true
}

// renewMore goes on with the new base, or begins one when it is time. It returns how many counters it marked.
func (c *Counters) renewMore() int64 {
	b := &c.base
	if b.first == 0 && b.log > max(b.size, c.leastLog) {
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

// renewed ends the new base, if all of it is written: what is older goes. It comes after a checkpoint that wrote all that was
// marked.
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

// dropBefore deletes the frames before number first.
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
