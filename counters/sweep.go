package counters

import (
	"math"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// Sweep drops expired counters and notes from the next fraction (0…1) of the
// table, and tidies the table's memory. Ten calls with 0.1 visit all shards,
// and all partitions' notes but a few. Sweep locks one shard or partition at a
// time.
func (t *Table) Sweep(now algorithms.Instant, fraction float64) {
	n := len(t.shards)
	visit := min(n, int(math.Ceil(fraction*float64(n))))
	for range visit {
		i := int(uint64(t.sweepCursor.Add(1)) % uint64(n))
		t.sweepShard(&t.shards[i], now.Steady/1e9, t.activeReaders())
	}
	t.notes.Sweep(now.Steady, fraction, t.IsOpen)
	t.memory.tidy()
}

func (t *Table) sweepShard(s *shard, second int64, readers notes.Readers) {
	s.forEach(func(sub *subtable) {
		before := sub.count()

		for i := range sub.groups {
			g := &sub.groups[i]
			for slot, tag := range g.tags {
				if tag < tagUsed {
					continue
				}

				// Once all readers have received a reset, its record is no longer needed.
				received := g.dirty&bitsOf(slot, readers) == 0
				if int64(g.expiresAt[slot]) <= second || received && g.entries[slot].state.Fresh() {
					s.remove(sub.locationAt(i*groupSize + slot))
				}
			}
		}

		for k, e := range sub.logs {
			if int64(e.expiresAt) <= second || e.dirty&readers == 0 && e.log.Fresh() {
				t.dropLog(s, k)
			}
		}

		s.expired += int64(before - sub.count())
		sub.shrink()
	})
	t.returnSpare(s)
}

// returnSpare joins a shard's subtables if they are small, and returns spare room to the budget.
func (t *Table) returnSpare(s *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joinSubtables()

	// Some room stays, so that the next counter need not draw on the budget again.
	if more := s.room - t.drawSize; more > t.drawSize {
		s.room -= more
		t.budget.Add(int64(more))
	}
}
