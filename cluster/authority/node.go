package authority

import "github.com/rlnode/rlnode/cluster/agreement"

// Presence is what gossip says of a node.
type Presence uint8

// The presences that matter here. Gossip's suspicion is Doubtful: such a node is neither taken into the ring nor
// taken for failed.
const (
	Doubtful Presence = iota
	Alive
	Failed
	Left
)

// Node is a node as gossip knows it.
type Node struct {
	agreement.Member
	Boot     uint64
	Presence Presence
	// Removed: an operator removes this process, alive or not.
	Removed bool
	// Supports: the node can compute a ring with this build's ring.DefaultSettings.
	Supports bool
}
