package partitions

import (
	"time"

	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/ring"
)

// Stats are a keeper's current metrics.
type Stats struct {
	Owned       int           // partitions whose tokens are here
	Copies      int           // partitions with a complete copy here
	Frozen      time.Duration // total time that partitions were frozen for hand-offs, since the process began
	HandOffs    int64         // tokens handed over
	Begun       int64         // lineages started
	PushedBytes int64
	Unacked     int64 // bytes that copy targets have not acknowledged
	Behind      int   // owned partitions that some copy target has no complete copy of
	Lagging     int   // copy targets that can be reached but do not answer this node's messages
	Debts       int   // counters with costs that their owners have not acknowledged
	Dropped     int64 // limits of checks decided in fallback whose cost is never reported, because there was no room for more debts
}

// Metrics reports the current metrics to s.
func (k *Keeper) Metrics(s metrics.Sink) {
	stats := k.Stats()

	const here = "Partitions whose counters are here, as their owner or as a standby."
	s.Level("partitions", here, stats.Owned, "as", "owner")
	s.Level("partitions", here, stats.Copies, "as", "standby")

	s.Level("partitions_behind", "Owned partitions that some standby has no complete copy of.", stats.Behind)
	s.Level("standbys_lagging",
		"Nodes that can be reached but have answered none of this node's copies for five seconds.",
		stats.Lagging)
	s.Count("replica_bytes_total", "Bytes of counters sent to standbys.", stats.PushedBytes)
	s.Gauge("replica_unacked_bytes", "Bytes of counters that standbys have not acknowledged.", float64(stats.Unacked))

	s.Count("handoffs_total", "Partitions handed over.", stats.HandOffs)
	s.Summary("handoff_seconds", "Time for which partitions were frozen during hand-over.",
		stats.HandOffs, stats.Frozen.Seconds())
	s.Count("lineages_begun_total",
		"Partitions taken over without a hand-off: their counters continue from the newest copy found, if there is one.",
		stats.Begun)

	s.Level("standby_debts", "Counters with admitted costs that are not yet reported to their owners.", stats.Debts)
	s.Count("debts_dropped_total",
		"Checks decided in fallback that are never reported to owners, because too many counters have debts already.",
		stats.Dropped)
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
			if k.isBehind(state, p) {
				stats.Behind++
			}
		}

		if pt.complete {
			stats.Copies++
		}
	}

	for _, t := range k.targets.nodes {
		stats.Unacked += int64(t.unacked)
	}

	lagging, _ := k.findLagging()
	stats.Lagging = len(lagging)

	return stats
}

// isBehind reports whether some copy target of p has no complete copy. The
// caller must hold mu.
func (k *Keeper) isBehind(state *adoptedState, p int) bool {
	var buf [3]ring.NodeID
	for _, node := range state.copyTargetsOf(k.config.Self, p, buf[:0]) {
		if !k.targets.isSynced(p, node) {
			return true
		}
	}
	return false
}
