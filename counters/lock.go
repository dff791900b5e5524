package counters

import (
	"slices"

	"github.com/rlnode/rlnode/algorithms"
)

// lock locks the shard of k. It also returns the time by which to decide: the
// latest time that the shard has seen, now included, on the clock of k's
// partition. The caller must use that time instead of now.
func (t *Table) lock(now algorithms.Instant, k Key) (*shard, algorithms.Instant) {
	s := t.shardOf(k)
	s.mu.Lock()
	return s, s.timeIn(k.Partition(), s.advance(now))
}

// soleShard returns the shard that all of ops share, as in a check of one
// subject. It returns nil if ops is empty or spans several shards.
func (t *Table) soleShard(ops []Op) *shard {
	if len(ops) == 0 {
		return nil
	}
	n := t.shardIndex(ops[0].Key)
	for i := 1; i < len(ops); i++ {
		if t.shardIndex(ops[i].Key) != n {
			return nil
		}
	}
	return &t.shards[n]
}

// lockShards locks the shards of ops, in ascending order so that concurrent
// checks never deadlock. It appends their indexes to held, which must be empty,
// for unlockShards. It also returns the time of the check: the latest that any
// of these shards has seen.
func (t *Table) lockShards(now algorithms.Instant, ops []Op, held []int) ([]int, algorithms.Instant) {
	for i := range ops {
		n := t.shardIndex(ops[i].Key)
		if at, dup := slices.BinarySearch(held, n); !dup {
			held = slices.Insert(held, at, n)
		}
	}
	for _, n := range held {
		t.shards[n].mu.Lock()
		now = t.shards[n].advance(now)
	}

	// All of these shards move to the check's time, not just the one that had seen
	// it. Each is about to store counters as of this time, and must not decide a
	// later check by an earlier time.
	for _, n := range held {
		t.shards[n].latest = now
	}
	return held, now
}

func (t *Table) unlockShards(held []int) {
	for _, n := range held {
		t.shards[n].mu.Unlock()
	}
}
