package authority

import (
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

const (
	// Validity is how long authority lasts. Its holder counts from when it sent the
	// request.
	Validity = 2 * time.Second
	// EndingWait is how long a leader waits until authority that it granted has
	// certainly expired: Validity plus 1 %, the maximum by which two nodes' clocks
	// may differ in pace. docs/guarantees.md calls it A.
	EndingWait = Validity + Validity/100
)

// Methods of this package's calls between nodes: 32 to 47. Messages are JSON.
const (
	MethodAsk       = 32 // Request → Reply
	MethodCommitted = 33 // nothing → the index up to which entries are agreed on
)

const (
	// maxReported bounds each list of nodes in a request or reply. The sender omits
	// further nodes: the lists are hints.
	maxReported = 1024
	// maxText bounds each text in a request, in bytes. Holders send less: see truncateText.
	maxText = 255
)

// Request is a node's request for authority. It also reports everything that
// the leader must know about the node.
type Request struct {
	Node         ring.NodeID   `json:"node"`
	Boot         uint64        `json:"boot"`                  // the process; never 0
	Generation   int64         `json:"generation"`            // the node's generation in the state that it has applied
	Applied      uint64        `json:"applied"`               // Raft index
	Clocks       Clocks        `json:"clocks"`                // as of a moment after Applied
	SettledEpoch int64         `json:"settled"`               // the last epoch that the node has settled
	Unreachable  []ring.NodeID `json:"unreachable,omitempty"` // peers that the node can't reach
	Relayed      []ring.NodeID `json:"relayed,omitempty"`     // peers that the node reaches only through another node
	Leaving      bool          `json:"leaving,omitempty"`     // the node wants to leave the ring
	// GivingUp means that the process has given up its authority, and will never ask
	// again.
	GivingUp bool `json:"giving_up,omitempty"`
	// Stuck means that the node no longer applies entries and must have no authority.
	Stuck bool `json:"stuck,omitempty"`
	// StoreFails means that the node can't store entries, so it should not lead.
	StoreFails bool `json:"store_fails,omitempty"`
	// NoAuthorityFor is how long the process has been without authority; 0 while
	// it has authority.
	NoAuthorityFor time.Duration `json:"without,omitempty"`

	// Level is the newest feature level that the process knows. Release and Zones,
	// its release and the version of its time zone data, are for people.
	Level   agreement.Level `json:"level"`
	Release string          `json:"release"`
	Zones   string          `json:"zones"`

	// StateHash is the hash of the node's state as of an index.
	StateHash agreement.HashAt `json:"check"`
}

// Clocks is the range of the wall clocks by which nodes decide windows, in Unix
// ms. The zero Clocks are unknown.
type Clocks struct {
	Earliest int64 `json:"earliest"`
	Latest   int64 `json:"latest"` // 0 only if Earliest is; never before it
}

// Reply is the leader's answer.
type Reply struct {
	Granted bool   `json:"granted"`
	Reason  string `json:"why,omitempty"` // the reason for a refusal, in a few words
	// Differs, in a refusal, means that a majority's state differs from the node's
	// at the index of its StateHash.
	Differs bool `json:"differs,omitempty"`
	// Removed, in a refusal, means that an operator has removed this process from the cluster.
	Removed bool `json:"removed,omitempty"`
	// Index is, in a grant, the index that the leader has applied. In a refusal of
	// a node that is behind, it is the index that the node must apply before it
	// asks again. Otherwise it is 0.
	Index uint64 `json:"index,omitempty"`
	// Ungranted are the nodes that ask for authority without success.
	Ungranted []ring.NodeID `json:"behind,omitempty"`
}

// hasRecorded reports whether a leader has recorded what the request says: the
// reply is not from a node that does not lead, may not lead or has no room, nor
// about the node's state alone.
func (reply *Reply) hasRecorded() bool {
	switch reply.Reason {
	case reasonNotLeading, reasonNoAnswer, reasonBusy, reasonFull:
		return false
	}
	return !reply.Differs
}

// areValid reports whether c is a range of clocks, or unknown.
func (c Clocks) areValid() bool {
	return c == Clocks{} || 0 < c.Earliest && c.Earliest <= c.Latest
}

// withinBounds reports whether a request respects the bounds that every Holder respects.
func (req *Request) withinBounds() bool {
	return max(len(req.Unreachable), len(req.Relayed)) <= maxReported &&
		max(len(req.Release), len(req.Zones)) <= maxText && req.NoAuthorityFor >= 0 &&
		req.Clocks.areValid()
}

// truncateList truncates a list to its bound in messages.
func truncateList(nodes []ring.NodeID) []ring.NodeID { return nodes[:min(len(nodes), maxReported)] }

// truncateText truncates a text to what can be registered.
func truncateText(text string) string { return text[:min(len(text), agreement.MaxRelease)] }
