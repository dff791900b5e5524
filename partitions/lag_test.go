package partitions

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// A node that can be reached and takes no copies lags after five seconds, for each owner that it follows, also for those where
// nothing changes. One that does not know yet what was agreed does not lag.
func TestD3_WhoTakesNoCopiesLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := three(t)
		defer f.closeAll()
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		lagging := func(n *node, want ...*node) {
			t.Helper()
			var ids []ring.NodeID
			for _, w := range want {
				ids = append(ids, w.id)
			}
			if have := n.keeper.Lagging(); !slices.Equal(have, ids) {
				t.Errorf("%s: have %v, want %v", n.ip, have, ids)
			}
		}
		time.Sleep(10 * time.Second)
		lagging(a)
		c.mute.Store(true)
		time.Sleep(4 * time.Second)
		lagging(a)
		time.Sleep(3 * time.Second)
		lagging(a, c)
		lagging(b, c)
		if !a.peers.Reachable(c.id) {
			t.Error("it can't be reached")
		}
		b.mute.Store(true)
		time.Sleep(7 * time.Second)
		lagging(a) // it is the fault of a, as far as a can tell
		b.mute.Store(false)
		c.mute.Store(false)
		time.Sleep(3 * time.Second)
		lagging(a)
		lagging(b)
		c.lag.Store(int64(time.Minute))
		f.ring(a, b, c) // a revision that c hears of late
		time.Sleep(8 * time.Second)
		lagging(a)
	})
}
