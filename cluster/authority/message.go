package authority

import (
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

const (
	// Term is how long authority lasts, counted by its holder from when it sent the request: "A" in the docs.
	Term = 2 * time.Second
	// EndingWait is how long a leader waits until authority that it granted has certainly expired: the term plus 1 %, by which
	// two nodes' clocks may differ in pace.
	EndingWait = Term + Term/100
)

// Methods of this package's calls between nodes: 32 to 47. Messages are JSON.
const (
	MethodAsk       = 32 // Request → Reply
	MethodCommitted = 33 // nothing → the index that must be applied
)

const (
	// maxReported bounds each list of nodes in a request or reply. Further nodes are left out: the lists are hints.
	maxReported = 1024
	// maxText bounds each text in a request, in bytes.
	maxText = 255
)

// Request is a node's request for authority, and what the leader must know about the node.
type Request struct {
	Node        ring.NodeID   `json:"node"`
	Boot        uint64        `json:"boot"`                  // the process; never 0
	Generation  int64         `json:"generation"`            // of Node, as the node has applied it
	Applied     uint64        `json:"applied"`               // Raft index
	Settled     int64         `json:"settled"`               // the epoch that the node has settled
	Unreachable []ring.NodeID `json:"unreachable,omitempty"` // peers that it can't reach
	Relayed     []ring.NodeID `json:"relayed,omitempty"`     // peers that it reaches only through another node
	Leaving     bool          `json:"leaving,omitempty"`     // it wants to leave the ring
	GivingUp    bool          `json:"giving_up,omitempty"`   // it gives its authority up now, and this process never asks again
	Stuck       bool          `json:"stuck,omitempty"`       // it applies nothing more and must have no authority
	// StoreFails: it can't store entries, so it should not lead.
	StoreFails bool `json:"store_fails,omitempty"`
	// Without is how long the process has had no authority; 0 while it has some.
	Without time.Duration `json:"without,omitempty"`

	// Level is the newest feature level that the process knows. Release and Zones, its release and its time zone version,
	// are for people.
	Level   agreement.Level `json:"level"`
	Release string          `json:"release"`
	Zones   string          `json:"zones"`

	// Check is the hash of what the node has applied, as of an index.
	Check agreement.HashAt `json:"check"`
}

// Reply is the leader's answer.
type Reply struct {
	Granted bool   `json:"granted"`
	Why     string `json:"why,omitempty"` // of a refusal, in a few words
	// Differs, with a refusal: a majority's state differs from the node's at the index of its check.
	Differs bool `json:"differs,omitempty"`
	// Removed, with a refusal: an operator has removed this process from the cluster.
	Removed bool `json:"removed,omitempty"`
	// Index is, with a grant, what the leader had applied; with a refusal of a node that is behind, what the node must
	// apply before it asks again; otherwise 0.
	Index uint64 `json:"index,omitempty"`
	// Failing are the members of the ring that ask for authority and can't be granted any.
	Failing []ring.NodeID `json:"behind,omitempty"`
}

// withinBounds reports whether a request from another node respects the limits that senders do.
func (r *Request) withinBounds() bool {
	return max(len(r.Unreachable), len(r.Relayed)) <= maxReported && max(len(r.Release), len(r.Zones)) <= maxText && r.Without >= 0
}

// capped truncates a list to what is sent.
func capped(nodes []ring.NodeID) []ring.NodeID { return nodes[:min(len(nodes), maxReported)] }

// truncate truncates a text to what is sent.
func truncate(text string) string { return text[:min(len(text), maxText)] }
