package node

import (
	"time"

	"github.com/rlnode/rlnode/limiter/loads"
)

// followLoads keeps the limiter up to date with the loads that this node receives and measures.
func (n *Node) followLoads() {
	tick := time.NewTimer(loads.TickInterval)
	defer tick.Stop()
	measure := time.NewTicker(loads.CPUInterval)
	defer measure.Stop()

	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.loads.Changed():
		case <-tick.C:
		case <-measure.C:
			if n.env.cpu != nil {
				if load, ok := n.env.cpu(n.env.boottime()); ok {
					n.loads.Measure(load)
				}
			}
			continue // Measure signals Changed if the load changed
		}

		n.limiter.UpdateSteps()

		// While no load is followed, the timer stays off: an idle node has less to do.
		if n.loads.Followed() {
			tick.Reset(loads.TickInterval)
		}
	}
}
