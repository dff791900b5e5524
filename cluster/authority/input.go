package authority

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

// Node is a node as gossip knows it. A member that gossip has not seen since
// this node started is neither Alive nor Gone for a while: it is not added to
// the ring, and does not count as failed.
type Node struct {
	agreement.Member
	Boot uint64
	// Alive means that gossip sees the node run.
	Alive bool
	// Gone means that the node does not run, as far as gossip knows: it has failed,
	// left, or is being taken out of the cluster.
	Gone bool
	// Removed means that an operator is removing this process, alive or not.
	Removed bool
	// SupportsRing means that the node can compute a ring with this build's ring.DefaultSettings.
	SupportsRing bool
}

// decisionInput is the input of a decision, besides the reignState.
type decisionInput struct {
	now        time.Duration
	wallClock  time.Time
	state      *agreement.State
	rulesIndex uint64 // a node that has applied this index uses the newest rules
	nodes      map[ring.NodeID]Node
	// members are the members of From and To, sorted.
	members []ring.NodeID
}

func newDecisionInput(
	now time.Duration, wallClock time.Time, s *agreement.State, rulesIndex uint64, nodes []Node,
) *decisionInput {
	in := &decisionInput{now: now, wallClock: wallClock, state: s, rulesIndex: rulesIndex,
		nodes: make(map[ring.NodeID]Node, len(nodes))}
	for _, n := range nodes {
		in.nodes[n.ID] = n
	}

	in.members = append(slices.Clone(s.From.Members()), s.To.Members()...)
	slices.SortFunc(in.members, ring.NodeID.Compare)
	in.members = slices.Compact(in.members)
	return in
}

// isGone reports whether gossip says that id is not running.
func (in *decisionInput) isGone(id ring.NodeID) bool {
	return in.nodes[id].Gone
}
