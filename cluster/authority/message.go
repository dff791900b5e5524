package authority

import (
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

const (
	// Term is how long authority lasts, counted by its holder from when it sent the request: "A" in the docs.
	Term = 2 * time.Second
	// Wait is how long a leader waits until authority that it granted has run out for certain: the term and 1 %,
	// by which the clocks of two nodes may differ in pace.
	Wait = Term + Term/100
)

// Methods of the calls between nodes that belong to this package: 32 to 47. Messages are JSON.
const (
	MethodAsk       = 32 // Request → Reply
	MethodCommitted = 33 // nothing → the index that has to be applied
)

const (
	// maxReported bounds each of the lists of nodes in a request and in a reply; further ones are left out. They are hints.
	maxReported = 1024
	// maxText bounds the bytes of each text in a request.
	maxText = 255
)

// Request is one node's asking for authority, and what the leader has to know about the node.
type Request struct {
	Node        ring.NodeID   `json:"node"`
	Boot        uint64        `json:"boot"`                  // the process; never 0
	Generation  int64         `json:"generation"`            // of Node, as applied there
	Applied     uint64        `json:"applied"`               // Raft index
	Settled     int64         `json:"settled"`               // the epoch that the node has settled
	Unreachable []ring.NodeID `json:"unreachable,omitempty"` // the peers that it can't reach
	Relayed     []ring.NodeID `json:"relayed,omitempty"`     // those that it reaches only by way of another node
	Leaving     bool          `json:"leaving,omitempty"`     // it wants to leave the ring
	GivingUp    bool          `json:"giving_up,omitempty"`   // it gives its authority up, now, and this process asks for none again
	Stuck       bool          `json:"stuck,omitempty"`       // it applies nothing more, and is to have no authority
	// Without is for how long the process has had no authority; 0 while it has some.
	Without time.Duration `json:"without,omitempty"`

	// What the process knows: the newest feature level, and, for people, its release and the version of its time zones.
	Level   agreement.Level `json:"level"`
	Release string          `json:"release"`
	Zones   string          `json:"zones"`

	// Check is the hash of what the node has applied, as of an index.
	Check agreement.Check `json:"check"`
}

// Reply is the leader's answer.
type Reply struct {
	Granted bool   `json:"granted"`
	Why     string `json:"why,omitempty"` // of a refusal, in a few words
	// Differs, with a refusal: a majority has gone another way than the node by the index of its check.
	Differs bool `json:"differs,omitempty"`
	// Removed, with a refusal: an operator has removed this process from the cluster.
	Removed bool `json:"removed,omitempty"`
	// Index is, with a grant, what the leader had applied; with a refusal of a node that is behind, what that node
	// has to apply before it asks again; else 0.
	Index uint64 `json:"index,omitempty"`
	// Behind are the members of the ring that ask for authority and can't be given any.
	Behind []ring.NodeID `json:"behind,omitempty"`
}

// bounded says whether what came from another node is as small as what is sent.
func (q *Request) bounded() bool {
	return max(len(q.Unreachable), len(q.Relayed)) <= maxReported && max(len(q.Release), len(q.Zones)) <= maxText && q.Without >= 0
}

// reported is as much of a list as travels.
func reported(nodes []ring.NodeID) []ring.NodeID { return nodes[:min(len(nodes), maxReported)] }

// cut is as much of a text as travels.
func cut(text string) string { return text[:min(len(text), maxText)] }
