package simulation

import (
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// agreed is the state that the cluster has agreed on. It is immutable except for ownedLists. A partition is at its owner
// in from or, while the cluster moves to another ring, perhaps at its owner in to.
type agreed struct {
	revision   int64
	epoch      int64
	from, to   *ring.Table // equal when settled
	generation []int       // by node: the number of times it was ended
	boots      []int       // by node: its latest registered process
	region     int

	ownedLists [][]int // by node: the partitions that it owns in from or to; built on first use
}

func newAgreed(t *ring.Table, region, nodes int) *agreed {
	a := &agreed{revision: 1, epoch: 1, from: t, to: t, region: region, generation: make([]int, nodes), boots: make([]int, nodes)}
	for i := range a.boots {
		a.boots[i] = 1
	}
	return a
}

func (a *agreed) successor() *agreed {
	n := *a
	n.revision++
	n.ownedLists = nil
	n.generation, n.boots = slices.Clone(a.generation), slices.Clone(a.boots)
	return &n
}

// ownedBy lists the partitions that a node owns in from or to. The caller holds the world's mutex.
func (a *agreed) ownedBy(node int) []int {
	if a.ownedLists == nil {
		a.ownedLists = make([][]int, len(a.boots))
		for q := range ring.Partitions {
			from, to := indexOf(a.from.Owner(q)), indexOf(a.to.Owner(q))
			a.ownedLists[from] = append(a.ownedLists[from], q)
			if to != from {
				a.ownedLists[to] = append(a.ownedLists[to], q)
			}
		}
	}
	return a.ownedLists[node]
}

// withoutNode returns the successor of a in which a node is ended.
func (a *agreed) withoutNode(node int) *agreed {
	n := a.successor()
	n.generation[node]++
	id := idIn(a.region, node)
	n.from = a.from.Without(id)
	if n.to = n.from; a.to != a.from {
		n.to = a.to.Without(id)
	}
	return n
}

// newRing builds the ring of a region's n nodes without one of them, or of all if without is −1.
func newRing(region, n, without int) (*ring.Table, error) {
	var members []ring.NodeID
	for i := range n {
		if i != without {
			members = append(members, idIn(region, i))
		}
	}
	t, err := ring.New(members, ring.DefaultSettings())
	if err != nil {
		return nil, fmt.Errorf("build a ring: %w", err)
	}
	return t, nil
}
