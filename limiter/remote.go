package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// Codes of failed calls.
const (
	CodeMalformed peer.Code = 80 + iota // the message is invalid or its method unknown
	CodeBusy                            // the node can't answer now: too many questions are waiting, or the owner does not answer
)

// Responder receives the answer to a message, once. *peer.Call implements it.
type Responder interface {
	Reply(body []byte)
	Fail(code peer.Code, detail string)
}

// ownerRequest is work for the owner of a subject: a change of its counters, a
// reservation or its settlement, an acquire, or what happens to a slot.
type ownerRequest struct {
	subject uint64
	hops    int // how many times it was forwarded before it reached this node
	// here does the work on this node's counters. It fails with counters.ErrShut if
	// they have moved.
	here func() error
	// there asks another node to do the work. It fails with ErrNoOwner if that
	// node could not do it. doAtOwner then asks the next node.
	there func(to ring.NodeID) error
}

// doAtOwner has the owner of req's subject, which may be this node, do the
// work. It also asks the standby, which may just have become the owner, but no
// node may act as a standby. The error is ErrNoOwner if the owner can't be
// reached, and otherwise that of the work.
func (l *Limiter) doAtOwner(ctx context.Context, req *ownerRequest) error {
	cp := l.cluster

	// Only an owner may do the work. So the attempts to decide as a standby, here
	// and on another node, count as made.
	cands := candidates{keySubject: req.subject, triedAsStandby: true, standbyAsked: true}
	if cp == nil {
		return req.here()
	}

	for ; ctx.Err() == nil && cands.attempts < maxAttempts; cands.attempts++ {
		location := cands.locate(l)
		switch {
		case location == partitions.Here:
			if !cp.Authority() {
				return ErrNoOwner
			}
			if err := req.here(); !errors.Is(err, counters.ErrShut) {
				return err
			}
		case location == partitions.Pending && cp.Authority(): // without it, waiting is of no use
			cp.Ownership.WaitWhilePending(ctx, ring.PartitionOf(req.subject))
		default:
			state, to := cands.chooseNext(cp)
			if state != stateAskOwner && state != stateAskStandby || req.hops >= maxHops {
				return ErrNoOwner
			}
			cands.markTried(to)
			if err := req.there(to); !errors.Is(err, ErrNoOwner) {
				return err
			}
		}
	}

	return ErrNoOwner
}

// call calls another node and waits for the reply until the deadline of ctx,
// which must have one.
func (cp *clusterPart) call(
	ctx context.Context, to ring.NodeID, method peer.Method, body []byte,
) (reply []byte, err error) {
	deadline, _ := ctx.Deadline()
	done := make(chan struct{})
	cp.Peers.Go(to, method, body, max(time.Until(deadline), time.Millisecond), func(b []byte, e error) {
		// The body is valid only until the callback returns.
		reply, err = append([]byte(nil), b...), e
		close(done)
	})
	<-done // the call has a timeout
	return reply, err
}

// request sends message to another node and reads the reply, which begins with a
// status. The error is one of statusErrors, or ErrNoOwner if the other node did
// not do what was asked.
func (cp *clusterPart) request(ctx context.Context, to ring.NodeID, method peer.Method, message, reply wire.Message) error {
	body, err := cp.call(ctx, to, method, wire.Encode(nil, message))
	if err != nil || len(body) == 0 {
		return ErrNoOwner
	}
	if err := status(body[0]).err(); err != nil {
		return err
	}
	if err := wire.Decode(body[1:], reply, "reply"); err != nil {
		return fmt.Errorf("%w: %w", ErrNoOwner, err)
	}
	return nil
}

// serveForwarded decodes what another node sent into message, runs do in a
// goroutine of its own, and replies with its result.
func serveForwarded[R wire.Message](cp *clusterPart, to Responder, body []byte, message wire.Message, do func() (R, error)) {
	if !decodeOrFail(body, message, "request to an owner", to) {
		return
	}
	cp.serveInBackground(to, func() {
		reply, err := do()
		to.Reply(encodeResult(reply, err))
	})
}

// encodeResult returns what an owner replies: the status of err and, without an
// error, reply.
func encodeResult(reply wire.Message, err error) []byte {
	b := []byte{byte(statusOf(err))}
	if err == nil {
		b = wire.Encode(b, reply)
	}
	return b
}

// otherMembers returns the other members of the ring.
func (cp *clusterPart) otherMembers() []ring.NodeID {
	return slices.DeleteFunc(slices.Clone(cp.Ring().Members()), func(id ring.NodeID) bool { return id == cp.Self })
}

// gatherTimeout bounds how long a node waits for replies from all others.
const gatherTimeout = 500 * time.Millisecond

// gatherFrom sends body to all other nodes that can be reached, and calls take
// for each valid reply that arrives in time.
func gatherFrom[R any, M interface {
	*R
	wire.Message
}](cp *clusterPart, method peer.Method, body []byte, take func(from ring.NodeID, reply *R)) {
	gather(gatherTimeout,
		slices.DeleteFunc(cp.otherMembers(), func(id ring.NodeID) bool { return !cp.Peers.Reachable(id) }),
		func(id ring.NodeID, done func([]byte, error)) { cp.Peers.Go(id, method, body, gatherTimeout, done) },
		func(id ring.NodeID, answer []byte, err error) {
			reply := new(R)
			if err == nil && wire.Decode(answer, M(reply), "reply") == nil {
				take(id, reply)
			}
		})
}

// gather calls askOne for each ID in all. Then it calls take, one call after
// another, for each reply or error that arrives within the timeout.
func gather[ID any](
	timeout time.Duration, all []ID, askOne func(id ID, done func(reply []byte, err error)),
	take func(id ID, reply []byte, err error),
) {
	type answer struct {
		id   ID
		body []byte
		err  error
	}

	// There is room for all replies. A late one, which nobody takes any more, must
	// not hold up the reader of its connection.
	answers := make(chan answer, len(all))
	for _, id := range all {
		askOne(id, func(body []byte, err error) { answers <- answer{id, slices.Clone(body), err} })
	}

	over := time.After(timeout + replySlack)
	for range all {
		select {
		case a := <-answers:
			take(a.id, a.body, a.err)
		case <-over:
			return
		}
	}
}

// serveInBackground runs work in a goroutine of its own. work may wait, and
// then answers through to. If too many such goroutines are running,
// serveInBackground answers that this node is busy, and returns false.
func (cp *clusterPart) serveInBackground(to Responder, work func()) bool {
	if cp.background.Go(work) {
		return true
	}
	cp.counts.busy.Add(1)
	to.Fail(CodeBusy, "too many questions are waiting here")
	return false
}

// decodeOrFail reads a message, or answers that it is invalid. It then returns
// false.
func decodeOrFail(body []byte, msg wire.Message, what string, to Responder) bool {
	err := wire.Decode(body, msg, what)
	if err != nil {
		to.Fail(CodeMalformed, err.Error())
	}
	return err == nil
}
