package agreement

import (
	"time"

	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// Bounds of an entry's content.
const (
	secretBytes = 32
	maxText     = 256 // bounds a member's name, address, region and zone, in bytes
)

// Entry is one of Found, Empty, Reign, Ring, Leave, Settled, Ended, Boot, Forget, Rules, Primary, Region, Mark,
// Adopt, Raise and Skipped.
type Entry interface {
	// apply changes next, which is the state before the entry with the entry's index. The result's error says why the entry
	// is rejected.
	apply(next *State) Result
}

// Found starts a cluster. It is ignored if there already is one.
type Found struct {
	Cluster ClusterID `json:"cluster"` // not zero
	Secret  []byte    `json:"secret"`  // 32 bytes
	// Level is the feature level that the cluster starts at, 0 for 1: all of its members must know it.
	Level Level `json:"level,omitempty"`
}

// Empty changes nothing but State.Index. Its commit proves that the leader still led after proposing it.
type Empty struct{}

// Ring begins the move to the canonical ring of these members. It is rejected unless the state is settled and Epoch is the
// next one. The first ring, and a ring that moves nothing, is settled from the start.
type Ring struct {
	Epoch    int64         `json:"epoch"`
	Members  []Member      `json:"members"` // they replace their entries in State.Members
	Settings ring.Settings `json:"settings"`
}

// Leave begins the move to a ring without Node, whose standbys take over its partitions. It is rejected unless the state is
// settled, Epoch is the next one, and Node is a member but not the only one.
type Leave struct {
	Epoch int64       `json:"epoch"`
	Node  ring.NodeID `json:"node"`
	// Why and When say why and when, in Unix milliseconds, the leader took the node out. Why is "" if the node asked to
	// leave.
	Why  Reason `json:"why,omitempty"`
	When int64  `json:"when,omitempty"`
}

// Settled ends the move: every member has settled Epoch. It is rejected unless Epoch is the current one. Repeating it moves
// nothing.
type Settled struct {
	Epoch int64 `json:"epoch"`
	// Revision is the revision that the members' reports refer to; 0 for any. If it is not the current one, the entry is
	// rejected: a node was ended or booted meanwhile, and there is more to move.
	Revision uint64 `json:"revision,omitempty"`
}

// Ended ends the authority of Node. It is rejected if Generation is not the node's current one, or if Reign is over.
type Ended struct {
	Node       ring.NodeID `json:"node"`
	Generation int64       `json:"generation"`
	Reign      uint64      `json:"reign,omitempty"` // of the leader that decided it; 0 for any
	Why        Reason      `json:"why,omitempty"`
	When       int64       `json:"when,omitempty"` // Unix milliseconds, by the leader's clock
}

// Raise sets the feature level. It is rejected if Level is not above the current one, or if a member's process knows less.
// A node that knows less and is not in Members can't read the entry, and stops.
type Raise struct {
	Level Level `json:"level"`
}

// Boot names the process of a node that may have authority. Whatever its predecessor held in memory is gone. It is rejected
// if too many nodes are known, if the node has replaced that process before, or if Reign is over. Repeating it changes
// nothing.
type Boot struct {
	Node  ring.NodeID `json:"node"`
	Boot  uint64      `json:"boot"`            // not zero
	Reign uint64      `json:"reign,omitempty"` // of the leader that decided it; 0 for any
	// Level is the newest feature level that the process knows, 0 for 1. The entry is rejected if it is below the agreed
	// one.
	Level   Level  `json:"level,omitempty"`
	Release string `json:"release,omitempty"` // for people
	Zones   string `json:"zones,omitempty"`   // version of its time zones, for people
}

// Forget removes a node from State.Members for good. It is rejected if the node isn't there, or is in a ring.
type Forget struct {
	Node ring.NodeID `json:"node"`
}

// Skipped replaces an entry that no node could apply, and that an operator took out of the log of a stopped node. It
// changes nothing.
type Skipped struct {
	Hash []byte `json:"hash"` // SHA-256 of the replaced entry
}

// Rules is a write of rules. A repeat with the same Request gets the answer of the first time, and nothing is written. Of
// many mistakes in one document, that answer has only the first ones and the number of the others. A zero Request is not
// remembered.
type Rules struct {
	Request   RequestID    `json:"request"`
	Change    rules.Change `json:"change"`               // its body has at most rules.MaxDocument bytes
	IfMatch   int64        `json:"if_match,omitempty"`   // the version that the change was made for; 0 for any
	OnlyFirst bool         `json:"only_first,omitempty"` // only if there is no version yet
	By        string       `json:"by,omitempty"`
	When      time.Time    `json:"when"` // kept to the millisecond
}

// Member is what is agreed on about a node.
type Member struct {
	ID      ring.NodeID `json:"id"`
	Name    string      `json:"name"`
	Address string      `json:"address"` // its host's, without a port
	Region  string      `json:"region"`
	Zone    string      `json:"zone"`
}
