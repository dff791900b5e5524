package node

import (
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/tick"
)

// Each sweep drops expired counters from a small part of each table, so that a
// whole table takes under half a minute.
const (
	sweepInterval = 500 * time.Millisecond
	sweepFraction = 0.02
	// freeMemoryAfter is how many log entries sweeps drop before they call
	// FreeMemory. Unlike the table, log entries are on the heap, and an idle node's
	// next garbage collection may be far off.
	freeMemoryAfter = 500_000
)

// sweep drops expired counters in the background. It also watches the clocks: a
// loop of their own would wake an idle node more often.
func (n *Node) sweep() {
	dropped := int64(0) // log entries, since the last FreeMemory
	var clocks clockWatch
	for range tick.Every(n.ctx.Done(), sweepInterval) {
		n.watchClocks(&clocks, sweepInterval)

		for _, table := range []*counters.Table{n.table, n.fallback} {
			before := table.Stats().LogEntries
			table.Sweep(n.clock.Now(), sweepFraction)
			dropped += max(0, before-table.Stats().LogEntries)
		}

		if dropped > freeMemoryAfter {
			n.config.FreeMemory()
			dropped = 0
		}
	}
}
