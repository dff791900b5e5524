package agreement

import (
	"time"

	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// Bounds of what an entry may say.
const (
	secretBytes = 32
	maxText     = 256 // bytes of a member's name, address, region and zone
)

// Entry is one of Found, Empty, Reign, Ring, Leave, Settled, Ended, Boot, Forget, Rules, Primary, Region, Mark,
// Adopt, Raise and Skipped.
type Entry interface {
	// apply returns the state after the entry, made from next, which is the one before with the entry's index. Why an
	// entry is rejected is what the error says.
	apply(next *State) Result
}

// Found begins a cluster. It is ignored if there is one already.
type Found struct {
	Cluster ClusterID `json:"cluster"` // not zero
	Secret  []byte    `json:"secret"`  // 32 bytes
	// Level is the feature level that the cluster begins at, 0 for 1: all of its members have to know it.
	Level Level `json:"level,omitempty"`
}

// Empty changes nothing but State.Index. Its commit proves that the leader was the leader after it was proposed.
type Empty struct{}

// Ring begins the move to the canonical ring of these members. It is rejected unless the state is settled and Epoch is
// the next one. The first ring, and one that moves nothing, is settled from the start.
type Ring struct {
	Epoch    int64         `json:"epoch"`
	Members  []Member      `json:"members"` // they replace what State.Members says of them
	Settings ring.Settings `json:"settings"`
}

// Leave begins the move to a ring without Node, in which its standbys take its partitions over. It is rejected unless
// the state is settled, Epoch is the next one, and Node is a member, but not the only one.
type Leave struct {
	Epoch int64       `json:"epoch"`
	Node  ring.NodeID `json:"node"`
	// Why the leader takes the node out, and when, in Unix milliseconds; "" if the node wants to go.
	Why  Reason `json:"why,omitempty"`
	When int64  `json:"when,omitempty"`
}

// Settled ends the move: every member has settled Epoch. It is rejected unless Epoch is the present one; said again, it
// changes nothing.
type Settled struct {
	Epoch int64 `json:"epoch"`
	// Revision is the one that the members' reports are of; 0 for whatever it is. With another one the entry is rejected:
	// somebody was ended meanwhile, and there is more to move.
	Revision uint64 `json:"revision,omitempty"`
}

// Ended ends the authority of Node. It is rejected unless Generation is the node's present one, or if Reign is over.
type Ended struct {
	Node       ring.NodeID `json:"node"`
	Generation int64       `json:"generation"`
	Reign      uint64      `json:"reign,omitempty"` // whose leader decided it; 0 for any
	Why        Reason      `json:"why,omitempty"`
	When       int64       `json:"when,omitempty"` // Unix milliseconds, by the leader's clock
}

// Raise makes Level the feature level. It is rejected unless that is higher than the present one, and if a member's process
// knows less. A node that knows less and is not in Members can't read the entry, and stops.
type Raise struct {
	Level Level `json:"level"`
}

// Boot names the process of a node that may have authority. What the one before it held in memory is gone. It is
// rejected if too many nodes are known, if the process was the node's before, or if Reign is over; said again, it
// changes nothing.
type Boot struct {
	Node  ring.NodeID `json:"node"`
	Boot  uint64      `json:"boot"`            // not zero
	Reign uint64      `json:"reign,omitempty"` // whose leader decided it; 0 for any
	// What the process knows. It is rejected if Level, where 0 stands for 1, is below the agreed one.
	Level   Level  `json:"level,omitempty"`
	Release string `json:"release,omitempty"` // for people
	Zones   string `json:"zones,omitempty"`   // version of its time zones
}

// Forget removes a node from State.Members for good. It is rejected if the node isn't there, or is in a ring.
type Forget struct {
	Node ring.NodeID `json:"node"`
}

// Skipped stands where an entry was that nobody could apply and that an operator took out of the log of a node that didn't
// run. It changes nothing.
type Skipped struct {
	Hash []byte `json:"hash"` // SHA-256 of the entry that was there
}

// Rules is a write of rules. Repeated with the same Request it is answered as the first time, and nothing is written;
// of many mistakes in one document only the first ones and the number of the others are repeated. A Request of zero is
// none: it is not remembered.
type Rules struct {
	Request   RequestID    `json:"request"`
	Change    rules.Change `json:"change"`               // a body of at most rules.MaxDocument bytes
	IfMatch   int64        `json:"if_match,omitempty"`   // the version that the change was made for; 0 for any
	OnlyFirst bool         `json:"only_first,omitempty"` // only if there is no version yet
	By        string       `json:"by,omitempty"`
	When      time.Time    `json:"when"` // kept to the millisecond
}

// Member is what is agreed about a node.
type Member struct {
	ID      ring.NodeID `json:"id"`
	Name    string      `json:"name"`
	Address string      `json:"address"` // of its host, without a port
	Region  string      `json:"region"`
	Zone    string      `json:"zone"`
}
