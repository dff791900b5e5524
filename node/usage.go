package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/usage"
)

// openMeter opens the meter, which counts what rules with `usage: monthly`
// admit, unless that is turned off.
func (n *Node) openMeter() (err error) {
	c := n.config
	if c.UsageMonths == 0 {
		return nil
	}

	n.meter, err = usage.Open(usage.Config{
		Dir: n.dir, Self: n.id, Boot: n.boot, Name: c.Name,
		Now: func() int64 { return n.clock.Now().Wall }, Months: c.UsageMonths, Rows: c.UsageSubjects, Logger: n.log,
	})
	if err != nil {
		return err
	}

	n.closeOnRelease(n.meter)
	return nil
}

// openUsage makes what adds up the usage of all nodes, if this node counts any.
func (n *Node) openUsage() error {
	if n.meter != nil {
		n.usage = usage.NewTotals(n.meter, n.peers, n.countingMembers)
		n.closeOnRelease(n.usage) // it closes after the limiter, which counts until its end
	}
	return nil
}

// countingMembers returns the nodes that may have counted usage that no other
// node has: those that are alive, and members that have not left. Gossip lists
// a removed node a little longer; once that is dead, it is left out.
func (n *Node) countingMembers() (list []usage.Member) {
	for _, m := range n.cluster.View().Members {
		if m.State == gossip.Alive || m.Known && m.State != gossip.Left {
			list = append(list, usage.Member{
				ID: m.ID, Name: m.Name, Zone: m.Zone, Alive: m.State == gossip.Alive, InRing: m.InRing,
			})
		}
	}
	return list
}

// isLastMember reports whether there is no other node to hand usage over to. It
// does not matter whether this node itself is still a member.
func (n *Node) isLastMember() bool {
	return !slices.ContainsFunc(n.countingMembers(), func(m usage.Member) bool { return m.ID != n.id })
}

// handOverUsage hands the usage counted here over to another node, before this
// node leaves for good.
func (n *Node) handOverUsage(ctx context.Context) error {
	if n.usage == nil || n.isLastMember() {
		return nil
	}
	return n.usage.HandOver(ctx, false)
}

// handOverLateUsage hands over the usage counted since handOverUsage, when a
// node that has left for good stops.
func (n *Node) handOverLateUsage(ctx context.Context) error {
	if n.usage == nil || !n.left.Load() || n.isLastMember() {
		return nil
	}
	if err := n.usage.HandOver(ctx, true); err != nil {
		return fmt.Errorf("the cluster's usage lacks what this node counted since it left; keep the data directory: %w", err)
	}
	return nil
}
