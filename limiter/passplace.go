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

// This file is about places in queues that their callers have left. First,
// those that wait behind them at the same node move up; see waitingroom.go.
// That frees the node's last places, which then go from node to node: each node
// lets its own callers move up, and sends on the places that this frees. The
// last node gives back what nobody needs. A lost message loses places, and
// makes none.

const (
	// maxPassed bounds the places in one message.
	maxPassed = 256
	// maxPassNodes bounds the nodes that such a message may still go to.
	maxPassNodes = 4096
	// passTimeout bounds how long a node waits to learn that the next one does not
	// know the message.
	passTimeout = time.Second
)

// passedPlaces are places on their way from node to node.
type passedPlaces struct {
	places []*QueuePlace
	next   []ring.NodeID // nodes that have not seen them
}

// Code implements wire.Message.
func (p *passedPlaces) Code(c *wire.Coder) {
	wire.List(c, &p.places, maxPassed, 3, func(one **QueuePlace) {
		if c.Reads() {
			*one = &QueuePlace{}
		}
		(*one).code(c)
	})
	wire.List(c, &p.next, maxPassNodes, len(ring.NodeID{}), func(id *ring.NodeID) { c.Raw(id[:]) })
}

// code writes or reads p. Times travel as how long they are from now.
func (p *QueuePlace) code(c *wire.Coder) {
	goesOn := min(max(0, time.Until(p.GoesOn)), algorithms.LongestDelay)
	life := min(max(0, time.Until(p.until)), maxDebitAge)
	wire.Number(c, &goesOn, int64(algorithms.LongestDelay))
	wire.Number(c, &life, int64(maxDebitAge))
	if c.Reads() {
		p.GoesOn, p.until = time.Now().Add(goesOn), time.Now().Add(life)
	}
	wire.List(c, &p.taken, maxSubjectOps, minRefundBytes, func(r *refund) { r.codeWhole(c) })
	c.Require(len(p.taken) > 0)
}

// startPassing gives places, for which nobody waits at this node, to those that
// wait behind them at others, and gives back the rest.
func (l *Limiter) startPassing(places []*QueuePlace) {
	for some := range slices.Chunk(places, maxPassed) {
		p := passedPlaces{places: some}
		if l.membership != nil {
			p.next = l.membership.otherMembers()
		}
		l.passOn(&p)
	}
}

// passOn sends p to the next node that can be reached from here, or gives its
// places back if there is none.
func (l *Limiter) passOn(p *passedPlaces) {
	if len(p.places) == 0 {
		return
	}
	m := l.membership
	i := slices.IndexFunc(p.next, func(id ring.NodeID) bool { return m.Peers.Reachable(id) })
	if i < 0 {
		for _, place := range p.places {
			place.giveBack()
		}
		return
	}

	to := p.next[i]
	p.next = slices.Delete(p.next, i, i+1)
	m.Peers.Go(to, MethodPass, wire.Encode(nil, p), passTimeout, func(_ []byte, err error) {
		if _, refused := errors.AsType[*peer.RemoteError](err); refused {
			l.passOn(p) // that node has not taken them; after any other error, it may have
		}
	})
}

// servePassed lets callers that wait at this node take places, and passes on the rest.
func (l *Limiter) servePassed(p *passedPlaces) {
	for _, place := range p.places {
		place.limiter = l
		place.kind = place.kindOfTaken()
	}

	r := &l.waitingRoom
	r.mu.Lock()
	p.places = r.fill(p.places)
	r.mu.Unlock()
	l.passOn(p)
}
