package partitions

import (
	"context"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// Calls sends a Keeper's messages to other nodes. *peer.Peers implements it.
type Calls interface {
	// Go calls a node without waiting. done runs exactly once, perhaps before Go
	// returns. It must not block, and reply is valid only during done. body may be
	// reused after Go returns.
	Go(to ring.NodeID, m peer.Method, body []byte, timeout time.Duration, done func(reply []byte, err error))
	Call(ctx context.Context, to ring.NodeID, m peer.Method, body []byte) ([]byte, error)
	Reachable(to ring.NodeID) bool
}

// callKey is a kind of message to a node, of which at most one is in
// flight. For MethodTokens it covers only questions.
type callKey struct {
	node   ring.NodeID
	method peer.Method
}

// isPullingFrom reports whether this node is asking node for copies.
func (k *Keeper) isPullingFrom(node ring.NodeID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.callsInFlight[callKey{node, MethodPull}]
}

// canSendTo reports whether this node may send to node now. The caller must hold mu.
func (k *Keeper) canSendTo(node ring.NodeID) bool {
	return k.config.Calls.Reachable(node) && !time.Now().Before(k.backoffUntil[node])
}

// backOff records that a call to node failed: nothing is sent to it for an
// interval. The caller must hold mu.
func (k *Keeper) backOff(node ring.NodeID) { k.backoffUntil[node] = time.Now().Add(k.config.Interval) }
