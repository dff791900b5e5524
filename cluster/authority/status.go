package authority

import (
	"context"
	"slices"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// Status is what a leader knows of the nodes, for metrics and for people.
type Status struct {
	Leading bool // and its first entry has been applied
	Nodes   []NodeStatus
}

// NodeStatus is what a leader knows of one node. A duration is negative if what it tells of hasn't happened.
type NodeStatus struct {
	Node        ring.NodeID
	Boot        uint64        // that is registered
	Asked       time.Duration // since its last request
	Granted     time.Duration // since its last grant
	Unreachable int           // nodes that report that they can't reach it
	Settled     int64         // epoch
	Leaving     bool
	Ending      bool // it gets no authority, and will be ended when what it has has run out
}

// Status tells what the leader knows, nothing if this node follows. The nodes are sorted.
func (g *Giver) Status(ctx context.Context) Status {
	c := make(chan Status, 1)
	select {
	case g.statuses <- c:
		return <-c
	case <-ctx.Done():
	case <-g.ctx.Done():
	}
	return Status{}
}

// status belongs to run.
func (g *Giver) status() Status {
	if g.reign == nil || g.reign.book == nil {
		return Status{}
	}
	return g.reign.book.status(g.config.Now())
}

func (b *book) status(now time.Duration) Status {
	s := Status{Leading: true}
	ago := func(at time.Duration) time.Duration {
		if at == never {
			return -1
		}
		return now - at
	}
	against := make(map[ring.NodeID]int)
	for _, r := range b.records {
		for _, id := range slices.Compact(slices.SortedFunc(slices.Values(r.unreachable), ring.NodeID.Compare)) {
			against[id]++
		}
	}
	for _, id := range b.sorted() {
		r := b.records[id]
		s.Nodes = append(s.Nodes, NodeStatus{
			Node: id, Boot: r.boot, Asked: ago(r.asked), Granted: ago(r.granted), Unreachable: against[id],
			Settled: r.settled, Leaving: r.leaving, Ending: r.ending,
		})
	}
	return s
}
