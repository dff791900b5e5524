package node

import (
	"time"

	"github.com/rlnode/rlnode/internal/loads"
)

// followLoads has the limiter follow the loads that this node is told and measures.
func (n *Node) followLoads() {
	tick, measure := time.NewTicker(loads.Tick), time.NewTicker(loads.CPUInterval)
	defer tick.Stop()
	defer measure.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.loads.Changed():
		case <-tick.C:
		case <-measure.C:
			if n.world.cpu != nil {
				if load, ok := n.world.cpu(n.world.boottime()); ok {
					n.loads.Measure(load)
				}
			}
			continue // which has changed the loads, if so
		}
		n.limiter.Adapt()
	}
}
