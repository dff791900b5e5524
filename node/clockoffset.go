package node

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/tick"
	"github.com/rlnode/rlnode/ring"
)

const (
	// wrongClock is the least offset of which a node warns. rightClock is the offset
	// below which its clock counts as right again.
	wrongClock = time.Second
	rightClock = 500 * time.Millisecond
	// clockInterval is how often a node looks at its offset.
	clockInterval = time.Second
)

// medianClock returns how far the median of all clocks is ahead of this node's
// own. Each node of this region has a clock, and each other region has one. If
// two clocks are in the middle, medianClock takes the one that is farther from
// this node's: if the clocks split into halves, nobody knows which half is
// right, and both should warn.
func medianClock(others []peer.Clock) time.Duration {
	ahead := []time.Duration{0} // this node's own
	regions := map[string][]time.Duration{}
	for _, clock := range others {
		if clock.Region == "" {
			ahead = append(ahead, clock.Ahead)
		} else {
			regions[clock.Region] = append(regions[clock.Region], clock.Ahead)
		}
	}
	for _, list := range regions {
		slices.Sort(list)
		ahead = append(ahead, list[len(list)/2])
	}

	slices.Sort(ahead)
	low, high := ahead[(len(ahead)-1)/2], ahead[len(ahead)/2]
	if low.Abs() > high.Abs() {
		return low
	}
	return high
}

// clockOffset returns how far this node's clock is ahead of the median of all;
// negative if it is behind.
func (n *Node) clockOffset() time.Duration { return -medianClock(n.peers.Clocks()) }

// clockOffsets returns, for each node of this region whose clock is known, how
// far that clock is ahead of the median.
func (n *Node) clockOffsets() map[ring.NodeID]time.Duration {
	others := n.peers.Clocks()
	median := medianClock(others)
	offsets := map[ring.NodeID]time.Duration{}
	for _, clock := range others {
		if clock.Region == "" {
			offsets[clock.Node] = clock.Ahead - median
		}
	}
	if len(others) > 0 {
		offsets[n.id] = -median
	}
	return offsets
}

// followClock logs when this node's clock begins to differ from the others', and when that ends.
func (n *Node) followClock() {
	isWrong := false

	for range tick.Every(n.ctx.Done(), clockInterval) {
		others := n.peers.Clocks()
		offset := -medianClock(others)

		switch {
		case !isWrong && offset.Abs() >= wrongClock:
			isWrong = true
			direction := "ahead of"
			if offset < 0 {
				direction = "behind"
			}
			n.log.Warn("this node's clock is "+direction+
				" those of the others: its windows begin and end at other times; look at NTP",
				"by", offset.Abs().Round(time.Millisecond), "nodes", len(others))
		case isWrong && offset.Abs() < rightClock && len(others) > 0:
			// Without others the offset is 0, which says nothing.
			isWrong = false
			n.log.Info("this node's clock agrees with those of the others again",
				"offset", offset.Round(time.Millisecond))
		}
	}
}

// countingClocks returns the range of the wall clocks by which this node
// decides windows, in Unix ms: its own clock is the earliest, and its
// partitions may follow clocks that are ahead.
func (n *Node) countingClocks() authority.Clocks {
	now := n.clock.Now()
	latest := now.Wall + n.table.MaxClockLead(now)
	return authority.Clocks{Earliest: now.Wall / 1e6, Latest: latest / 1e6}
}

// clockMetrics reports this node's offset.
func (n *Node) clockMetrics(s metrics.Sink) {
	s.Gauge("clock_offset_seconds",
		"How far this node's wall clock is ahead of the median of the nodes and regions that it reaches; negative if behind.",
		n.clockOffset().Seconds())
}

// offsetMillis returns an offset in whole milliseconds, if it is known.
func offsetMillis(offsets map[ring.NodeID]time.Duration, id ring.NodeID) *int64 {
	offset, known := offsets[id]
	if !known {
		return nil
	}
	ms := offset.Round(time.Millisecond).Milliseconds()
	return &ms
}
