package partitions

import (
	"time"

	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/ring"
)

// Stats are a keeper's current metrics.
type Stats struct {
	Owned         int           // partitions whose tokens are here
	Copies        int           // partitions with a complete copy here; also those in doubt or handed over
	Frozen        time.Duration // total time that partitions were frozen for hand-offs, since the process began
	HandOffs      int64         // tokens handed over
	LineagesBegun int64
	PushedBytes   int64
	Unacked       int64 // bytes that copy targets have not acknowledged
	Uncopied      int   // owned partitions that some copy target has no complete copy of
	Unresponsive  int   // copy targets that can be reached but do not answer this node's messages
	Debts         int   // counters with costs that their owners have not acknowledged
	// DebtsDropped are the limits of checks decided in fallback whose cost is never
	// reported, because there was no room for more debts.
	DebtsDropped int64
}

// Metrics reports the current metrics to s.
func (k *Keeper) Metrics(s metrics.Sink) {
	stats := k.Stats()

	const here = "Partitions whose counters are here, as their owner or as a standby."
	s.Level("partitions", here, stats.Owned, "as", "owner")
	s.Level("partitions", here, stats.Copies, "as", "standby")

	s.Level("partitions_behind", "Owned partitions that some standby has no complete copy of.", stats.Uncopied)
	s.Level("standbys_lagging",
		"Nodes that can be reached but have answered none of this node's copies for five seconds.",
		stats.Unresponsive)
	s.Count("replica_bytes_total", "Bytes of counters sent to standbys.", stats.PushedBytes)
	s.Gauge("replica_unacked_bytes", "Bytes of counters that standbys have not acknowledged.", float64(stats.Unacked))

	s.Count("handoffs_total", "Partitions handed over.", stats.HandOffs)
	s.Summary("handoff_seconds", "Time for which partitions were frozen during hand-over.",
		stats.HandOffs, stats.Frozen.Seconds())
	s.Count("lineages_begun_total",
		"Partitions taken over without a hand-off: their counters continue from the newest copy found, if there is one.",
		stats.LineagesBegun)

	s.Level("standby_debts", "Counters with admitted costs that are not yet reported to their owners.", stats.Debts)
	s.Count("debts_dropped_total",
		"Limits of checks decided in fallback whose costs are never reported to owners, because too many counters have debts already.",
		stats.DebtsDropped)
}

// Stats returns the current metrics.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()

	state := k.adopted.Load()
	stats := k.stats
	stats.Debts = k.debts.total

	for p := range k.parts {
		pt := &k.parts[p]
		if pt.phase == owning {
			stats.Owned++
			if k.isUncopied(state, p) {
				stats.Uncopied++
			}
		}

		if pt.copyComplete {
			stats.Copies++
		}
	}

	for _, t := range k.targets.nodes {
		stats.Unacked += int64(t.unacked)
	}

	unresponsive, _ := k.findUnresponsive()
	stats.Unresponsive = len(unresponsive)

	return stats
}

// isUncopied reports whether some copy target of p has no complete copy. The
// caller must hold mu.
func (k *Keeper) isUncopied(state *adoptedState, p int) bool {
	var buf [3]ring.NodeID
	for _, node := range state.copyTargetsOf(k.config.Self, p, buf[:0]) {
		if !k.targets.hasCopy(p, node) {
			return true
		}
	}
	return false
}
