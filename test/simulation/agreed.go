package simulation

import (
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// agreed is what the cluster has agreed on, immutable but for lists. A partition is at its owner in from, or, while the cluster moves
// to another ring, at the one in to.
type agreed struct {
	revision   int64
	epoch      int64
	from, to   *ring.Table // the same one when settled
	generation []int       // by node: how often it was ended
	boots      []int       // by node: its last process that was heard of
	region     int

	ownedLists [][]int // by node: the partitions that have it as an owner; made when first asked for
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

// ownedBy lists the partitions that a node is an owner of. It is called under the world's mutex.
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

// withoutNode is a without a node.
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

// newRing is the table of the n nodes of a region without one of them; −1: all.
func newRing(region, n, without int) (*ring.Table, error) {
	var members []ring.NodeID
	for i := range n {
		if i != without {
			members = append(members, idIn(region, i))
		}
	}
	t, err := ring.New(members, ring.DefaultSettings())
	if err != nil {
		return nil, fmt.Errorf("make a ring: %w", err)
	}
	return t, nil
}
