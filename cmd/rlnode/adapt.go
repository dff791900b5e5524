package main

import (
	"time"

	"github.com/rlnode/rlnode/loads"
)

// adapt has the limiter follow the loads that this node is told and measures, until ctx ends.
func (m *mates) adapt() {
	w := &m.server.world
	m.loads = loads.New(loads.Config{Self: m.server.id, Now: w.boottime, Nodes: m.nodes})
	m.limiter.Follow(m.loads.Steps)
	m.done.Go(func() {
		tick, measure := time.NewTicker(loads.Tick), time.NewTicker(loads.CPUInterval)
		defer tick.Stop()
		defer measure.Stop()
		for {
			select {
			case <-m.ctx.Done():
				return
			case <-m.loads.Changed():
			case <-tick.C:
			case <-measure.C:
				if w.cpu != nil {
					if load, ok := w.cpu(w.boottime()); ok {
						m.loads.Measure(load)
					}
				}
				continue // which has changed the loads, if so
			}
			m.limiter.Adapt()
		}
	})
}

// nodes is how many nodes there are.
func (m *mates) nodes() int {
	if t := m.ring(); t != nil {
		return len(t.Members())
	}
	return 1
}
