package counters

import "github.com/rlnode/rlnode/algorithms"

// changedBatch is how many records Changed collects before it hands them out; a batch may be longer by what
// one shard holds.
const changedBatch = 16 << 10

// Changed hands every counter that changed since the last call to yield, in batches of some ten thousand; the
// slice is reused. A record with Level 0 and a zero State, or no Log, was reset. When yield fails, its batch
// and the rest count as changed still, and the error is returned. Calls must not overlap.
func (t *Table) Changed(yield func([]Record) error) error {
	var batch []Record
	for i := range t.shards {
		batch = t.shards[i].collect(batch)
		if len(batch) < changedBatch && i < len(t.shards)-1 || len(batch) == 0 {
			continue
		}
		if err := yield(batch); err != nil {
			t.mark(batch)
			return err
		}
		batch = batch[:0]
	}
	return nil
}

// collect appends the shard's changed counters and marks them clean.
func (s *shard) collect(batch []Record) []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dirty == 0 {
		return batch
	}
	for i := range s.groups {
		g := &s.groups[i]
		if g.dirty == 0 {
			continue
		}
		for slot := range groupSlots {
			if g.dirty>>slot&1 != 0 {
				batch = append(batch, Record{
					Key: g.records[slot].key, Kind: g.marks[slot].kind(), State: g.records[slot].state,
					Level: g.marks[slot].publicLevel(), FreshAt: int64(g.freshAt[slot]),
				})
			}
		}
		g.dirty = 0
	}
	for k, e := range s.logs {
		if e.dirty {
			batch = append(batch, Record{
				Key: k, Kind: algorithms.SlidingLog, Log: e.log.Entries(),
				Level: e.mark.publicLevel(), FreshAt: int64(e.freshAt),
			})
			e.dirty = false
		}
	}
	s.dirty = 0
	return batch
}

// mark marks the counters of batch as changed again, as far as they are still there.
func (t *Table) mark(batch []Record) {
	for i := range batch {
		k := batch[i].Key
		s := t.shardOf(k)
		s.mu.Lock()
		if e := s.logs[k]; e != nil && !e.dirty {
			e.dirty = true
			s.dirty++
		}
		if p := s.find(k); p.found() {
			s.soil(&s.groups[p.group], p.slot)
		}
		s.mu.Unlock()
	}
}

// MarkAll marks every counter as changed: for a store that begins anew.
func (t *Table) MarkAll() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for j := range s.groups {
			for slot, tag := range s.groups[j].tags {
				if tag >= tagUsed {
					s.soil(&s.groups[j], slot)
				}
			}
		}
		for _, e := range s.logs {
			if !e.dirty {
				e.dirty = true
				s.dirty++
			}
		}
		s.mu.Unlock()
	}
}

// Restore puts back a record read from disk, as unchanged, unless the table already has that counter or the
// record has expired. It reports false when there was no room.
func (t *Table) Restore(now algorithms.Now, r Record) bool {
	if r.FreshAt <= now.Steady/1e9 {
		return true
	}
	s := t.shardOf(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logs[r.Key] != nil || s.find(r.Key).found() {
		return true
	}
	if !t.makeRoom(s, now.Steady, 0, nil) {
		return false
	}
	freshAt := uint32(min(r.FreshAt, 1<<32-1))
	if r.Kind == algorithms.SlidingLog {
		e := t.logSlot(s, r.Key)
		e.log, e.mark, e.freshAt = *algorithms.NewLog(r.Log), newMark(r.Kind, r.Level), freshAt
		t.logEntries.Add(int64(e.log.Len()))
		return true
	}
	p := s.insert(r.Key)
	g := &s.groups[p.group]
	g.records[p.slot].state, g.marks[p.slot], g.freshAt[p.slot] = r.State, newMark(r.Kind, r.Level), freshAt
	return true
}
