package cluster

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// A reachable node that accepts no copies from most of the other nodes is
// ended, so that another node replaces it as a standby. Reports by fewer nodes
// do not end it.
func TestD3_WhoTakesNoCopiesIsEnded(t *testing.T) {
	for _, voices := range []int{2, 3} {
		bubble(t, func(t *testing.T, w *world) {
			var lags atomic.Bool
			nodes := w.several(5, 5)
			victim := nodes[4]
			for i, n := range nodes {
				n.adjust = func(config *Config) {
					config.UnresponsiveNodes = func() []ring.NodeID {
						if lags.Load() && i < voices {
							return []ring.NodeID{victim.id}
						}
						return nil
					}
				}
				n.run()
			}
			w.oneCluster(nodes...)
			w.inRing(nodes...)
			ended := func() bool { return w.aLeader().c.Load().State().Generation(victim.id) > 0 }
			lags.Store(true)
			if voices == 2 {
				time.Sleep(20 * time.Second)
				if ended() {
					t.Error("ended, though most say that it takes copies")
				}
				return
			}
			w.until(10*time.Second, "it is ended", ended)
			lags.Store(false)
			w.inRing(nodes...) // and it comes back
		})
	}
}
