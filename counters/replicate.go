package counters

import (
	"math/bits"

	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/ring"
)

// disposition is what Replicate does with a change.
type disposition uint8

const (
	discardChange disposition = iota // mark it clean without yielding it, as no replica wants it
	emitChange                       // yield it and mark it clean
	keepChange                       // keep it for another call
)

// Replicate yields every counter and note of the wanted partitions that changed
// since it was last yielded for replicas. It calls yield once for each
// partition with changes and passes all of them at once. It reuses the slice,
// and holds no lock meanwhile. It discards changes in unwanted partitions: a
// new standby gets its copy from Copy. A record with a zero State, or no Log,
// was reset. If yield fails, Replicate returns its error, and those records and
// all later ones still count as changed.
//
// A partition's notes are collected after its counters. So in an open partition,
// a note may be newer than the counters that it is about. If the owner then dies,
// the debits that belong to the note are lost with it. That is safe: the next
// owner begins a new lineage, so nothing comes back for the note.
//
// The answers of wanted must not change during the call. Calls of Replicate and
// ReplicatePartition must not overlap each other. Do not call them while a Copy
// is being sent: a change could be lost or overtake the Copy.
func (t *Table) Replicate(wanted func(p int) bool, yield func(p int, records []Record) error) error {
	t.replicated.Store(true)
	dispositionOf := func(p int) disposition {
		if wanted(p) {
			return emitChange
		}
		return discardChange
	}
	var sorted sorter
	var batch []Record

	step := max(1, len(t.shards)/ring.Partitions) // shards per partition, or one shard that holds several partitions
	for first := 0; first < len(t.shards); first += step {
		batch = batch[:0]
		for i := first; i < first+step; i++ {
			batch = t.shards[i].replicate(batch, dispositionOf)
		}

		rest := batch
		firstPartition := first * ring.Partitions / len(t.shards)

		// With fewer shards than partitions, a shard has several partitions, and
		// their records are mixed.
		if len(t.shards) < ring.Partitions {
			rest = sorted.sort(batch, firstPartition, ring.Partitions/len(t.shards))
		}

		for p := firstPartition; p < firstPartition+max(1, ring.Partitions/len(t.shards)); p++ {
			n := 0
			for n < len(rest) && rest[n].Key.Partition() == p {
				n++
			}

			// The slice's capacity ends with this partition's counters. So appending its
			// notes does not overwrite the next partition's counters.
			changes := recordsOf(t.notes.Changes(p, notes.Replicas, nil, nil), rest[:n:n])
			rest = rest[n:]
			if len(changes) == 0 || !wanted(p) {
				continue
			}

			if err := yield(p, changes); err != nil {
				t.remarkBatch(changes, notes.Replicas)
				t.remarkBatch(rest, notes.Replicas)
				return err
			}
		}
	}

	return nil
}

// ReplicatePartition appends what Replicate would yield for p to buf[:0], marks
// it as yielded and returns it. If the caller has shut p, these are the last
// changes.
func (t *Table) ReplicatePartition(p int, buf []Record) []Record {
	t.replicated.Store(true)
	buf = buf[:0]
	shards := t.shardsOf(p)
	for i := range shards {
		buf = shards[i].replicate(buf, func(q int) disposition {
			if q == p {
				return emitChange
			}
			return keepChange
		})
	}
	return recordsOf(t.notes.Changes(p, notes.Replicas, nil, nil), buf)
}

// replicate appends the shard's changed counters whose disposition is emitChange.
func (s *shard) replicate(batch []Record, dispositionOf func(p int) disposition) []Record {
	s.forEach(func(sub *subtable) { batch = s.replicateSubtable(batch, sub, dispositionOf) })
	return batch
}

// replicateSubtable is replicate for one subtable. The caller must hold the shard.
func (s *shard) replicateSubtable(batch []Record, sub *subtable, dispositionOf func(p int) disposition) []Record {
	previous := sub.unsentList

	// The new list uses the old one's memory. Entries that stay are written behind
	// the position that is being read.
	sub.unsentList = dirtyList{groups: previous.groups[:0], logs: previous.logs[:0]}

	if s.unsent == 0 {
		return batch
	}

	if previous.incomplete {
		for i := range sub.groups {
			batch = s.replicateGroup(batch, sub, i, dispositionOf)
		}
		for k, e := range sub.logs {
			batch = s.replicateLog(batch, sub, k, e, dispositionOf)
		}
		return batch
	}

	for _, i := range previous.groups {
		batch = s.replicateGroup(batch, sub, int(i), dispositionOf)
	}

	for _, k := range previous.logs {
		if e := sub.logs[k]; e != nil {
			batch = s.replicateLog(batch, sub, k, e, dispositionOf)
		}
	}

	return batch
}

func (s *shard) replicateGroup(batch []Record, sub *subtable, i int, dispositionOf func(p int) disposition) []Record {
	g := &sub.groups[i]
	for m := g.dirtySlots(notes.Replicas); m != 0; m &= m - 1 {
		slot := bits.TrailingZeros64(m)
		f := dispositionOf(g.entries[slot].key.Partition())
		if f == keepChange {
			continue
		}
		if f == emitChange {
			batch = append(batch, g.recordAt(slot))
		}
		s.markClean(sub.locationAt(i*groupSize+slot), notes.Replicas)
	}

	if g.dirty&replicasByte != 0 {
		sub.unsentList.addGroup(i, len(sub.groups))
	}

	return batch
}

func (s *shard) replicateLog(
	batch []Record, sub *subtable, k Key, e *storedLog, dispositionOf func(p int) disposition,
) []Record {
	if e.dirty&notes.Replicas == 0 {
		return batch
	}
	switch dispositionOf(k.Partition()) {
	case keepChange:
		sub.unsentList.addLog(k)
		return batch
	case emitChange:
		batch = append(batch, e.asRecord(k))
	}
	s.markLogClean(e, notes.Replicas)
	return batch
}

// sorter sorts the records of a shard by partition.
type sorter struct {
	ends   []int
	sorted []Record
}

// sort returns records sorted by partition. They belong to n partitions, starting with first.
func (s *sorter) sort(records []Record, first, n int) []Record {
	if len(records) == 0 {
		return nil
	}

	s.ends = append(s.ends[:0], make([]int, n)...)
	for i := range records {
		s.ends[records[i].Key.Partition()-first]++
	}

	sum := 0
	for i := range s.ends {
		s.ends[i], sum = sum, sum+s.ends[i]
	}

	if cap(s.sorted) < len(records) {
		s.sorted = make([]Record, 2*len(records))
	}

	s.sorted = s.sorted[:len(records)]
	for i := range records {
		at := &s.ends[records[i].Key.Partition()-first]
		s.sorted[*at] = records[i]
		*at++
	}

	return s.sorted
}
