package cluster

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestThreeNodesFoundAClusterAndAgreeOnAWrite(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.several(3, 3)
		for _, n := range nodes {
			n.run()
		}
		begun := time.Now()
		w.ready(nodes...)
		t.Logf("ready after %s", time.Since(begun))
		w.inRing(nodes...)
		t.Logf("one ring after %s", time.Since(begun))
		expect.Equal(t, nodes[2].mustWrite(7), 2, "version")
		for _, n := range nodes {
			if !n.c.Load().AwaitRevision(t.Context(), 1, 2) || n.rules.Load().Version != 2 {
				t.Errorf("%s has not version 2 in force", n.name)
			}
			if !n.c.Load().Authority() {
				t.Errorf("%s has no authority", n.name)
			}
		}
	})
}
