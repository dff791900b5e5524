package limiter

import (
	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/ring"
)

// Top lists subjects in order of o.By, and the nodes whose counts are included,
// this one first; its ID is zero without a cluster. In a cluster, Top adds up
// the counts of all nodes that answer within half a second. Each node has
// counted since its process started.
func (l *Limiter) Top(o top.Options) ([]top.Subject, []ring.NodeID) {
	all := l.topHere(o.By)
	nodes := make([]ring.NodeID, 1)
	if l.cluster != nil {
		nodes[0] = l.cluster.Self
		gatherFrom(l.cluster, MethodTop, []byte{byte(o.By)}, func(from ring.NodeID, other *top.Part) {
			all, nodes = append(all, other.Subjects...), append(nodes, from)
		})
		all = top.Merge(all)
	}
	return top.Rank(all, o), nodes
}

// topHere returns this node's part of a list, in no particular order.
func (l *Limiter) topHere(by top.By) []top.Subject {
	switch {
	case by == top.Near:
		return l.nearLimits.Subjects(l.clock.Now().Wall)
	case by < top.EventKinds:
		return l.tops[by].Subjects()
	}
	return nil
}
