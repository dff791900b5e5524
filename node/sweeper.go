package node

import (
	"time"

	"github.com/rlnode/rlnode/counters"
)

// Expired counters are dropped from a small part of each table at a time: all of it in under half a minute.
const (
	sweepInterval = 500 * time.Millisecond
	sweepPart     = 0.02
	// muchGarbage is how many log entries are dropped before their memory, unlike the table's on the heap, is given
	// back rather than left until an idle node's next collection.
	muchGarbage = 500_000
)

// sweep drops expired counters in the background.
func (n *Node) sweep() {
	dropped := int64(0) // log entries, since memory was given back
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-tick.C:
		}
		for _, table := range []*counters.Table{n.table, n.private} {
			before := table.Stats().LogEntries
			table.Sweep(n.clock.Now(), sweepPart)
			dropped += max(0, before-table.Stats().LogEntries)
		}
		if dropped > muchGarbage {
			n.config.FreeMemory()
			dropped = 0
		}
	}
}
