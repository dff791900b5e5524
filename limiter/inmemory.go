package limiter

import (
	"github.com/rlnode/rlnode/peer"
	"github.com/rlnode/rlnode/ring"
)

// Answerer takes the answer to a message, once. *peer.Call is one.
type Answerer interface {
	Reply(body []byte)
	Fail(code peer.Code, detail string)
}

// ServeFor is Serve for a message that came over no connection: for networks in memory. body holds until it returns.
func (l *Limiter) ServeFor(from ring.NodeID, method peer.Method, body []byte, to Answerer) {
	l.serve(from, method, body, to)
}
