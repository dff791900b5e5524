package counters

import (
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// copyBatch bounds the number of records that Copy yields at once.
const copyBatch = 4096

// Copy yields every counter and note of p, in batches of at most 4096; it
// reuses the slice. It holds no lock while it yields, so a batch may lack later
// changes. Replicate yields these changes, and must be called only after the
// batch was sent. Resets that some reader has not received yet are among the
// records. If yield fails, Copy returns its error.
func (t *Table) Copy(p int, yield func([]Record) error) error {
	// replicated is set before the first counter is read. A reset after that then
	// stays in the table until a replica has received it.
	t.replicated.Store(true)
	var batch []Record
	shards := t.shardsOf(p)
	for i := range shards {
		batch = shards[i].appendCopy(p, batch[:0])
		if err := yieldInBatches(batch, yield); err != nil {
			return err
		}
	}
	return yieldInBatches(recordsOf(t.notes.Copy(p), batch[:0]), yield)
}

func yieldInBatches(list []Record, yield func([]Record) error) error {
	for batch := range slices.Chunk(list, copyBatch) {
		if err := yield(batch); err != nil {
			return err
		}
	}
	return nil
}

// appendCopy appends the shard's counters of p.
func (s *shard) appendCopy(p int, batch []Record) []Record {
	s.forEach(func(sub *subtable) {
		for loc := range sub.locations() {
			if loc.key().Partition() == p {
				batch = append(batch, loc.group().recordAt(loc.slot()))
			}
		}

		for k, e := range sub.logs {
			if k.Partition() == p {
				batch = append(batch, e.asRecord(k))
			}
		}
	})
	return batch
}

// Put sets a counter or note of a standby's copy to r, as the owner has it. The
// counter then counts as changed for DrainChanges, but not for Replicate. A
// record that has expired or was reset makes the counter fresh. Put returns
// false if there was no room for the counter. It ignores the gate.
func (t *Table) Put(now algorithms.Instant, r Record) bool {
	if r.Note != nil {
		t.notes.Replace(r.Note, now.Steady)
		return true
	}

	expired := r.ExpiresAt <= now.Steady/1e9
	if expired {
		r.State = algorithms.State{}
		r.Log = nil
		r.Fullness = 0
	}
	log := r.asLog() // slow, so before taking the lock
	s := t.shardOf(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	loc := t.prepareLocation(s, r.Key, r.Kind)

	// An absent counter says as much as a fresh one.
	if expired && !loc.found() {
		return true
	}
	return t.putLocked(s, loc, now, &r, log, notes.Checkpoints)
}

// prepareLocation finds the counter of k for a state of the given kind. Logs are
// stored apart from other counters. If the algorithm has changed from or to a
// log, prepareLocation drops the old counter.
func (t *Table) prepareLocation(s *shard, k Key, kind algorithms.Kind) location {
	loc := s.find(k)
	e := s.log(k)
	if kind != algorithms.SlidingLog {
		if e != nil {
			t.dropLog(s, k)
		}
		return loc
	}
	if loc.found() {
		s.remove(loc)
	}
	return location{index: -1, log: e}
}

// putLocked stores r at loc, or in a new counter if loc was not found. log has
// the entries of r; it is nil if r is not a log. It returns false if there is
// no room. The caller must hold the shard.
func (t *Table) putLocked(
	s *shard, loc location, now algorithms.Instant, r *Record, log *algorithms.Log, readers notes.Readers,
) bool {
	if !loc.found() && !t.makeRoom(s, r.Key, now.Steady, 0, nil) {
		return false
	}

	expiresAt := uint32(min(max(r.ExpiresAt, 0), math.MaxUint32))
	if log != nil {
		e := t.ensureLog(s, r.Key)
		before := e.log.Len()
		// The expiry never goes back, as in group.set.
		e.log = *log
		e.kindFullness = packKindFullness(r.Kind, r.Fullness)
		e.expiresAt = max(e.expiresAt, expiresAt)
		t.fitLog(e, before, r)
		s.markLogDirty(r.Key, e, readers)
		return true
	}

	if !loc.found() {
		loc = s.insert(r.Key)
	}

	g := loc.group()
	g.entries[loc.slot()].state = r.State
	g.kindFullnesses[loc.slot()] = packKindFullness(r.Kind, r.Fullness)
	g.expiresAt[loc.slot()] = max(g.expiresAt[loc.slot()], expiresAt)
	s.markDirty(loc, readers)

	return true
}

// fitLog keeps a log that came as a record within the bounds. Coarsening needs
// the log's window, but a record does not have its limit. So fitLog takes the
// window to be the time from the log's last entry to its expiry, which is at
// least the true window. The log may become coarser than necessary; it then
// forgets late, never early.
func (t *Table) fitLog(e *storedLog, before int, r *Record) {
	var last int64
	for i := range r.Log {
		last = max(last, r.Log[i].At)
	}

	left := int64(algorithms.MaxWindow)
	seconds := int64(e.expiresAt) - last/1e9
	if seconds < left/1e9 {
		left = max(seconds*1e9, int64(algorithms.MinWindow))
	}

	l := &algorithms.Limit{Kind: algorithms.SlidingLog, Window: time.Duration(left)}
	if e.log.Len() > algorithms.MaxLogEntries {
		e.log.Coarsen(l, algorithms.MaxLogEntries/2)
	}

	t.updateEntryCount(r.Key.class(), e, before, l)
}

// Drop removes every counter and note of p. It reports them to no reader, and
// only counts in Drops. It also releases memory that is hardly used now.
func (t *Table) Drop(p int) {
	shards := t.shardsOf(p)
	found := t.notes.Drop(p)
	for i := range shards {
		found = t.dropFrom(&shards[i], p) || found
	}
	if found {
		t.dropCalls.Add(1)
	}
}

// Drops returns how many calls of Drop have removed counters or notes. Drop
// does not report what it removes, so the file still has it. If the partition
// comes back, the file may then hold outdated counters of it.
func (t *Table) Drops() int64 { return t.dropCalls.Load() }

// dropFrom removes p's counters from s and reports whether there were any.
func (t *Table) dropFrom(s *shard, p int) (found bool) {
	s.forEach(func(sub *subtable) {
		for loc := range sub.locations() {
			if loc.key().Partition() == p {
				s.remove(loc)
				found = true
			}
		}

		for k := range sub.logs {
			if k.Partition() == p {
				t.dropLog(s, k)
				found = true
			}
		}

		s.unfollow(p)
		sub.shrink()
	})
	t.returnSpare(s)
	return found
}
