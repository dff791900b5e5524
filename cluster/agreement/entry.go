package agreement

import (
	"time"

	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules/document"
)

// Bounds of an entry's content.
const (
	secretBytes = 32
	maxText     = 256 // bounds each text of a Member, and of a Departure, in bytes
)

// Entry is a value of one of the types in kinds, such as a Ring or an EndNode.
type Entry interface {
	// apply changes next, which is a copy of the state before the entry, with the
	// entry's index. If the result's error rejects the entry, next is unchanged.
	apply(next *State) Result
}

// FoundCluster founds a cluster. It is ignored if there already is one.
type FoundCluster struct {
	Cluster    ClusterID `json:"cluster"` // not zero
	SigningKey []byte    `json:"secret"`  // 32 bytes
	// Level is the feature level at which the cluster starts; 0 means 1. All of its
	// members must know it.
	Level Level `json:"level,omitempty"`
}

// Empty changes nothing but State.Index and the hashes. If it is committed, its
// leader still led after proposing it.
type Empty struct{}

// Ring begins the move to the canonical ring of these members. It is rejected
// unless the state is settled and Epoch is the next epoch. The first ring, and
// a ring that moves nothing, are settled from the start.
type Ring struct {
	Epoch    int64         `json:"epoch"`
	Members  []Member      `json:"members"` // they replace their entries in State.Members
	Settings ring.Settings `json:"settings"`
}

// Leave begins the move to a ring without Node, whose standbys take over its
// partitions. It is rejected unless the state is settled, Epoch is the next
// epoch, and Node is a member but not the only one.
type Leave struct {
	Epoch int64       `json:"epoch"`
	Node  ring.NodeID `json:"node"`
	// Reason is why the leader takes the node out, or "" if the node asked to
	// leave. When is the time, in Unix milliseconds, by the leader's clock.
	Reason Reason `json:"why,omitempty"`
	When   int64  `json:"when,omitempty"`
}

// SettleMove ends the move, because every member has reported Epoch as settled.
// It is rejected unless Epoch is the current one. Repeating it changes no ring,
// only the revision.
type SettleMove struct {
	Epoch int64 `json:"epoch"`
	// Revision is the revision that the members' reports refer to; 0 for any. If
	// another one is current, a node was ended or registered a new process in the
	// meantime. Then there may be more to move, and the entry is rejected.
	Revision uint64 `json:"revision,omitempty"`
}

// EndNode ends a node: it ends its authority and takes it out of the rings. It is
// rejected if Generation is not the node's current one, or if Reign is over.
type EndNode struct {
	Node       ring.NodeID `json:"node"`
	Generation int64       `json:"generation"`
	Reign      uint64      `json:"reign,omitempty"` // of the leader that decided to end the node; 0 for any
	Reason     Reason      `json:"why,omitempty"`
	When       int64       `json:"when,omitempty"` // Unix milliseconds, by the leader's clock
}

// Raise raises the feature level. It is rejected if Level is not above the
// current one, or if a member's process doesn't know Level. A node outside
// Members that doesn't know Level can't read the entry, and stops.
type Raise struct {
	Level Level `json:"level"`
}

// RegisterProcess makes a process the only one of its node that may have
// authority. Everything that the node's previous process held in memory is
// gone. The entry is rejected if the process is a former one or doesn't know the
// agreed feature level, or if Reign is over. Repeating it changes nothing.
type RegisterProcess struct {
	Node  ring.NodeID `json:"node"`
	Boot  uint64      `json:"boot"`            // not zero
	Reign uint64      `json:"reign,omitempty"` // of the leader that registers it; 0 for any
	// Level is the newest feature level that the process knows; 0 means 1.
	Level   Level  `json:"level,omitempty"`
	Release string `json:"release,omitempty"` // for people
	Zones   string `json:"zones,omitempty"`   // version of its time zone data, for people
}

// Forget removes a node from State.Members for good. It is rejected if the node
// isn't a member, or is in a ring.
type Forget struct {
	Node ring.NodeID `json:"node"`
}

// Skipped replaces an entry that no node could apply. An operator puts Skipped
// into the log of each stopped node. It changes nothing but State.Index and the
// hashes.
type Skipped struct {
	Hash []byte `json:"hash"` // SHA-256 of the replaced entry
}

// WriteRules is a write of rules. Repeating it with the same Request writes
// nothing and returns the first answer again, unless Request is zero. If the
// document had many mistakes, the repeated answer has only the first ones and
// the number of the others.
type WriteRules struct {
	Request   RequestID       `json:"request"`
	Change    document.Change `json:"change"`               // its body has at most document.MaxDocument bytes
	IfMatch   int64           `json:"if_match,omitempty"`   // the version that must be in force; 0 for any
	OnlyFirst bool            `json:"only_first,omitempty"` // write only if there is no version yet
	By        string          `json:"by,omitempty"`
	Message   string          `json:"message,omitempty"` // why
	Via       string          `json:"via,omitempty"`     // how it is written; see rules.ViaApply
	When      time.Time       `json:"when"`              // with a precision of 1 ms
}

// Member is the agreed description of a node.
type Member struct {
	ID      ring.NodeID `json:"id"`
	Name    string      `json:"name"`
	Address string      `json:"address"` // the host, without a port
	Region  string      `json:"region"`
	Zone    string      `json:"zone"`
}
