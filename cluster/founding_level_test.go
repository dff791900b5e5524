package cluster

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/expect"
)

// TestFoundersBeginAtWhatAllKnow: a new cluster begins at the highest level
// that all its founders know.
func TestFoundersBeginAtWhatAllKnow(t *testing.T) {
	for name, levels := range map[string][3]agreement.Level{"alike": {newLevel, newLevel, newLevel},
		"mixed": {newLevel, oldLevel, newLevel}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				nodes := w.several(3, 3)
				for i, n := range nodes {
					n.release(levels[i], "r"+n.name)
					n.run()
				}
				w.oneCluster(nodes...)
				w.inRing(nodes...)
				time.Sleep(time.Second)
				expect.Equal(t, nodes[0].level(), min(levels[0], levels[1], levels[2]), "it begins at level")
			})
		})
	}
}
