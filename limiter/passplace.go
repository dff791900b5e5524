package limiter

import (
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// A caller that gives up leaves its place in a queue. The callers behind it at
// the same node move up first; see waitingroom.go. Then the node's last place
// is free. This file sends such places from node to node. Each node lets its
// own callers move up, and sends on the places that become free there. The last
// node gives back the places that nobody needs. A lost message loses places,
// but never makes any.

const (
	// maxPassed bounds the places in one message.
	maxPassed = 256
	// maxPassNodes bounds the nodes that a message may still go to.
	maxPassNodes = 4096
	// passTimeout bounds how long a node waits to see whether the next one refuses
	// the message.
	passTimeout = time.Second
)

// passedPlaces are places on their way from node to node.
type passedPlaces struct {
	places []*QueuePlace
	next   []ring.NodeID // nodes that have not seen the places
}

// Code implements wire.Message.
func (pp *passedPlaces) Code(c *wire.Coder) {
	wire.List(c, &pp.places, maxPassed, 3, func(place **QueuePlace) {
		if c.Reads() {
			*place = &QueuePlace{}
		}
		(*place).code(c)
	})
	wire.List(c, &pp.next, maxPassNodes, len(ring.NodeID{}), func(id *ring.NodeID) { c.Raw(id[:]) })
}

// code writes or reads the place. Times are sent as durations from now.
func (qp *QueuePlace) code(c *wire.Coder) {
	waitLeft := min(max(0, time.Until(qp.ProceedAt)), algorithms.LongestDelay)
	life := min(max(0, time.Until(qp.until)), maxTakenAge)
	wire.Number(c, &waitLeft, int64(algorithms.LongestDelay))
	wire.Number(c, &life, int64(maxTakenAge))
	if c.Reads() {
		qp.ProceedAt, qp.until = time.Now().Add(waitLeft), time.Now().Add(life)
	}
	wire.List(c, &qp.taken, maxSubjectOps, minRefundBytes, func(rf *refund) { rf.codeWhole(c) })
	c.Require(len(qp.taken) > 0)
}

// startPassing offers places for which nobody waits at this node to callers at
// other nodes, who wait behind them. Places that nobody needs are given back,
// and so are those of checks with so many subjects that no message has room for
// them.
func (l *Limiter) startPassing(places []*QueuePlace) {
	places = slices.DeleteFunc(places, func(place *QueuePlace) bool {
		tooLarge := len(place.taken) > maxSubjectOps
		if tooLarge {
			place.giveBack()
		}
		return tooLarge
	})

	for chunk := range slices.Chunk(places, maxPassed) {
		pp := passedPlaces{places: chunk}
		if l.cluster != nil {
			pp.next = l.cluster.otherMembers()
		}
		l.passOn(&pp)
	}
}

// passOn sends the places to the next node that can be reached from here. If
// there is none, it gives the places back.
func (l *Limiter) passOn(pp *passedPlaces) {
	if len(pp.places) == 0 {
		return
	}
	cp := l.cluster
	i := slices.IndexFunc(pp.next, func(id ring.NodeID) bool { return cp.Peers.Reachable(id) })
	if i < 0 {
		for _, place := range pp.places {
			place.giveBack()
		}
		return
	}

	to := pp.next[i]
	pp.next = slices.Delete(pp.next, i, i+1)
	cp.Peers.Go(to, MethodPassPlaces, wire.Encode(nil, pp), passTimeout, func(_ []byte, err error) {
		if _, refused := errors.AsType[*peer.RemoteError](err); refused {
			l.passOn(pp) // that node has not taken them; after any other error, it may have
		}
	})
}
