package partitions

import (
	"testing"
	"testing/synctest"

	"github.com/rlnode/rlnode/ring"
)

// Every check asks for the route of its subject.
func TestRouteAllocatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		keeper, p := f.nodes[0].keeper.Load(), 0
		synctest.Wait() // no other goroutine runs while no time passes
		if n := testing.AllocsPerRun(1000, func() {
			p = (p + 1) % ring.Partitions
			if r := keeper.Route(p); r.Owner.IsZero() || r.Location == Here && f.nodes[0].table.Load().Lineage(p) == 0 {
				t.Errorf("partition %d: have %+v", p, r)
			}
		}); n != 0 {
			t.Errorf("have %v allocations, want 0", n)
		}
		for _, n := range f.nodes {
			n.close()
		}
	})
}
