package counters

import (
	"math/bits"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/ring"
)

// changedBatch is the number of records that DrainChanges collects before it
// yields them. A batch may exceed it by one shard's records.
const changedBatch = 16 << 10

// DrainChanges yields every counter and note that changed since the last call,
// in batches of about 16,000; it reuses the slice. A record with Fullness 0 and
// a zero State, or no Log, was reset. If yield fails, DrainChanges returns its
// error, and that batch and all that follows still count as changed. Calls must
// not overlap.
//
// The order of its steps matters:
//
//  1. Collect the notes that say which debts the counters include (debtors).
//  2. Yield the counters.
//  3. Yield the debtors, and after them all other notes.
//
// So the file never has a number of a debt without the debt. It may have a debt
// without its number. That debt is then debited twice, which costs quota, but
// creates none.
func (t *Table) DrainChanges(yield func([]Record) error) error {
	debtors := t.changedDebtors()

	var batch []Record
	for i := range t.shards {
		batch = t.shards[i].collectChanged(batch)
		if len(batch) < changedBatch && i < len(t.shards)-1 || len(batch) == 0 {
			continue
		}
		if err := yield(batch); err != nil {
			t.remarkBatch(batch, notes.Checkpoints)
			t.remarkBatch(debtors, notes.Checkpoints)
			return err
		}

		t.markResetsClean(batch)
		batch = batch[:0]
	}

	return t.drainNotes(debtors, batch, yield)
}

// collectChanged appends the shard's changed counters and marks them clean,
// except resets. A reset must stay in the table until it is written, so that
// remarkBatch can mark it again if the write fails. A clean reset could be
// swept before that. See markResetsClean.
func (s *shard) collectChanged(batch []Record) []Record {
	s.forEach(func(sub *subtable) { // forEach holds the lock, which guards unsaved
		if s.unsaved == 0 {
			return
		}

		for i := range sub.groups {
			g := &sub.groups[i]
			for m := g.dirtySlots(notes.Checkpoints); m != 0; m &= m - 1 {
				slot := bits.TrailingZeros64(m)
				r := g.recordAt(slot)
				batch = append(batch, r)

				// The counter is marked clean before it is written. If it changes while it is
				// being written, the next call yields it again.
				if !r.isFresh() {
					s.markClean(sub.locationAt(i*groupSize+slot), notes.Checkpoints)
				}
			}
		}

		for k, e := range sub.logs {
			if e.dirty&notes.Checkpoints != 0 {
				batch = append(batch, e.asRecord(k))
				if !e.log.Fresh() {
					s.markLogClean(e, notes.Checkpoints)
				}
			}
		}
	})
	return batch
}

// markResetsClean marks the resets in batch, which was written, as clean. A
// counter that was used since its reset stays marked. A counter that was used
// and reset again equals what was written.
func (t *Table) markResetsClean(batch []Record) {
	for i := range batch {
		r := &batch[i]
		if !r.isFresh() {
			continue
		}

		s := t.shardOf(r.Key)
		s.mu.Lock()

		if e := s.log(r.Key); e != nil && e.log.Fresh() {
			s.markLogClean(e, notes.Checkpoints)
		}
		if loc := s.find(r.Key); loc.found() && loc.state().Fresh() {
			s.markClean(loc, notes.Checkpoints)
		}
		s.mu.Unlock()
	}
}

// changedDebtors returns the changed notes that say which debts the counters
// include.
func (t *Table) changedDebtors() (list []Record) {
	for p := range ring.Partitions {
		list = recordsOf(t.notes.Changes(p, notes.Checkpoints, isDebtor, nil), list)
	}
	return list
}

// isDebtor reports whether notes of kind k say what the counters include.
func isDebtor(k notes.Kind) bool { return k == notes.Debtor }

// drainNotes is DrainChanges for notes: for debtors, which were collected
// before the counters, and for all others. It reuses buf.
func (t *Table) drainNotes(debtors, buf []Record, yield func([]Record) error) error {
	isOther := func(k notes.Kind) bool { return !isDebtor(k) }

	buf = append(buf[:0], debtors...)
	for p := range ring.Partitions {
		buf = recordsOf(t.notes.Changes(p, notes.Checkpoints, isOther, nil), buf)
		if len(buf) < changedBatch && p < ring.Partitions-1 || len(buf) == 0 {
			continue
		}
		if err := yield(buf); err != nil {
			t.remarkBatch(buf, notes.Checkpoints)
			return err
		}
		buf = buf[:0]
	}

	return nil
}

// remarkBatch marks the counters of batch as changed again, if they still
// exist.
func (t *Table) remarkBatch(batch []Record, readers notes.Readers) {
	for i := range batch {
		k := batch[i].Key
		if n := batch[i].Note; n != nil {
			t.notes.MarkChanged(n.Key, readers)
			continue
		}

		s := t.shardOf(k)
		s.mu.Lock()

		if e := s.log(k); e != nil {
			s.markLogDirty(k, e, readers)
		}
		if loc := s.find(k); loc.found() {
			s.markDirty(loc, readers)
		}
		s.mu.Unlock()
	}
}

// MarkPartsChanged marks at least n counters and notes as changed, if there are
// so many, so that DrainChanges yields them again. It goes by parts: first each
// shard, then the notes of each partition, numbered after the shards. It begins
// with the given part, and returns the part to continue with (0 after the last)
// and how many it marked.
func (t *Table) MarkPartsChanged(part, n int) (next, marked int) {
	for ; part < len(t.shards) && marked < n; part++ {
		s := &t.shards[part]
		s.forEach(func(sub *subtable) {
			for loc := range sub.locations() {
				s.markDirty(loc, notes.Checkpoints)
			}

			for k, e := range sub.logs {
				s.markLogDirty(k, e, notes.Checkpoints)
			}

			marked += sub.count()
		})
	}

	for ; part >= len(t.shards) && part < len(t.shards)+ring.Partitions && marked < n; part++ {
		marked += t.notes.MarkAllChanged(part - len(t.shards))
	}

	if part == len(t.shards)+ring.Partitions {
		part = 0
	}

	return part, marked
}

// Restore puts back records read from disk and marks them as unchanged. It
// skips counters and notes that the table already has, and records that have
// expired. So if a counter has several records, the first counts. Restore
// returns how many records it put back, and how many it dropped for lack of
// room.
func (t *Table) Restore(now algorithms.Instant, records []Record) (restored, noRoom int) {
	needed := make([]int32, len(t.shards)) // slots that each shard will need and has not grown for yet
	for i := range records {
		r := &records[i]
		if r.Kind != algorithms.SlidingLog && r.Note == nil && r.ExpiresAt > now.Steady/1e9 {
			needed[t.shardIndex(records[i].Key)]++
		}
	}

	for i := range records {
		r := &records[i]
		if r.ExpiresAt <= now.Steady/1e9 {
			continue
		}

		if r.Note != nil {
			if t.notes.Restore(r.Note, now.Steady) {
				restored++
			}
			continue
		}

		log := r.asLog()
		n := t.shardIndex(r.Key)
		s := &t.shards[n]
		s.mu.Lock()
		s.growFor(int(needed[n]))
		needed[n] = 0

		switch {
		case s.log(r.Key) != nil || s.find(r.Key).found():
		case t.putLocked(s, location{index: -1}, now, r, log, noReaders):
			restored++
		default:
			noRoom++
		}
		s.mu.Unlock()
	}

	return restored, noRoom
}
