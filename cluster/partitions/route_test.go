package partitions

import (
	"testing"
	"testing/synctest"

	"github.com/rlnode/rlnode/ring"
)

// Between the shutting of a gate and the change of phase, a partition counts as
// frozen: a check that finds the gate shut waits for the new phase instead of
// polling.
func TestRouteGoesByTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newThreeNodes(t)
		n := f.nodes[0]
		for p := range ring.Partitions {
			if n.keeper.Load().Route(p).Location != Here {
				continue
			}
			n.table.Load().Shut(p)
			if location := n.keeper.Load().Route(p).Location; location != Pending {
				t.Errorf("partition %d, shut: have location %d, want frozen", p, location)
			}
			n.table.Load().Open(p, 1)
			if location := n.keeper.Load().Route(p).Location; location != Here {
				t.Errorf("partition %d, open: have location %d, want here", p, location)
			}
			break
		}
		for _, n := range f.nodes {
			n.close()
		}
	})
}
