package counters

import (
	"math"

	"github.com/rlnode/rlnode/algorithms"
)

// Sweep drops expired counters from the next part (0…1) of the table; ten calls with 0.1 visit all of it. It locks one shard
// at a time.
func (t *Table) Sweep(now algorithms.Now, part float64) {
	n := len(t.shards)
	visit := min(n, int(math.Ceil(part*float64(n))))
	for range visit {
		i := int(uint64(t.cursor.Add(1)) % uint64(n))
		t.sweepShard(&t.shards[i], now.Steady/1e9, t.unread())
	}
}

func (t *Table) sweepShard(s *shard, second int64, unread readers) {
	s.visit(func(r *records) {
		before := r.count()
		for i := range r.groups {
			g := &r.groups[i]
			for slot, tag := range g.tags {
				if tag < tagUsed {
					continue
				}
				told := g.dirty>>slot&uint64(unread) == 0
				if int64(g.freshAt[slot]) <= second || told && g.records[slot].state.Fresh() {
					s.remove(r.at(i, slot))
				}
			}
		}
		for k, e := range r.logs {
			if int64(e.freshAt) <= second || e.dirty&unread == 0 && e.log.Fresh() {
				t.dropLog(s, k)
			}
		}
		s.expired += int64(before - r.count())
		r.shrink()
	})
	t.returnSpare(s)
}

// returnSpare joins a shard's tables if they are small, and returns spare room to the budget.
func (t *Table) returnSpare(s *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.join()
	if more := s.room - t.step; more > t.step {
		s.room -= more
		t.budget.Add(int64(more))
	}
}
