package localcache

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// minCounters is the least bound on the counters kept here.
const minCounters = 1000

// Counters are those that this node decides by itself. All methods may be called concurrently.
type Counters struct {
	table *counters.Table
}

// New returns counters beside a table of at most bound: an eighth of that many, and at least 1,000.
func New(bound int64) *Counters {
	return &Counters{table: counters.New(max(bound/8, minCounters))}
}

// Close frees the memory.
func (c *Counters) Close() { c.table.Close() }

// Take debits all of ops or none, as [counters.Table.Take] does, and reports which. Their limits are this node's
// shares.
func (c *Counters) Take(now algorithms.Now, ops []counters.Op) bool {
	return c.table.Take(now, ops) == counters.Admitted
}

// Peek is what Take would have answered.
func (c *Counters) Peek(now algorithms.Now, ops []counters.Op) bool {
	return c.table.Peek(now, ops) == counters.Admitted
}

// Give puts back what op took at from.
func (c *Counters) Give(now algorithms.Now, op *counters.Op, from algorithms.Taken) {
	// The gates of this table are always open, so that nothing can go wrong.
	_ = c.table.Give(now, op.Key, op.Limit, from, op.Cost)
}

// Table is where the counters lie: to sweep it and to keep it through a restart, so that a restart renews no share.
func (c *Counters) Table() *counters.Table { return c.table }
