package limiter

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// The owner of its first slots decides an acquire with a request id. This owner
// decides one attempt at a time. Once all owners have admitted an attempt and
// its slots are confirmed, the owner marks the slot as granted. A repetition gets
// the granted slot. If no slot was granted, the repetition is decided anew: it
// takes over the slots that an earlier attempt has left, and pays.

// acquireRequest is an acquire with a request id, as sent to the owner of its
// first slots.
type acquireRequest struct {
	query   *Query
	ticket  *ticket
	version int64 // of the asker's rules
	hops    int
}

// Code implements wire.Message.
func (req *acquireRequest) Code(c *wire.Coder) {
	if c.Reads() {
		req.ticket = &ticket{}
		req.query = &Query{}
	}

	req.ticket.Code(c)
	wire.Number(c, &req.hops, maxHops)
	wire.Number(c, &req.version, maxVersion)
	req.query.codeSlots(c)
	req.query.code(c)
	c.Require(req.hops > 0)
}

// hashContent hashes what the request asks for, without Who.
func (req *acquireRequest) hashContent() uint64 {
	sorted := req.query.sorted()
	sorted.Who = ""
	return hashContent(wire.Encode(nil, &acquireRequest{query: sorted, ticket: &ticket{}}))
}

type acquireReply struct {
	expires      time.Duration
	isRepetition bool
	answer       keptAnswer // its id is the slot's
}

// Code implements wire.Message.
func (r *acquireReply) Code(c *wire.Coder) {
	c.Millis(&r.expires, MaxSlotTTL)
	c.Bool(&r.isRepetition)
	r.answer.Code(c)
}

// acquireOnce is acquire for a q with a RequestID: a repetition of q gets the
// slot that is held already. a must be prepared for q.
func (l *Limiter) acquireOnce(q *Query, a *Answer) (Slot, error) {
	req := &acquireRequest{query: q}
	req.ticket = ticketOf(q.RequestID, req.hashContent(), 0)

	// Both attempts together take as long as one check may.
	until := time.Now().Add(checkTimeout - replySlack)
	restore := a.addOptions(func(o *options) { o.deadline = until })
	defer restore()

	ctx, cancel := context.WithTimeout(context.Background(), ownerTimeout)
	slot, err := l.acquireAtHome(ctx, req, a)
	cancel()
	if !errors.Is(err, ErrNoOwner) {
		return slot, err
	}

	// The failed attempt may have written its answer into a.
	done, err := l.prepare(l.clock.Now(), q, a)
	if err != nil {
		return Slot{}, err
	}

	// The owner may have granted a slot to an earlier attempt. What follows
	// acquires a slot with an id of its own: if it fails, it must not release the
	// slot that was granted.
	return l.acquire(q, a, a.newAcquisition(q), done)
}

// firstSlots returns the index of the op whose owner decides an acquire, or −1.
func (a *Answer) firstSlots() int {
	acquires := func(op counters.Op) bool {
		return op.Limit.Kind == algorithms.Concurrency && op.Mode == counters.CheckMode && op.Cost > 0
	}

	// A shadow limit is the last choice: its owner may admit the acquire without
	// storing slots, and a repetition would find none.
	first := slices.IndexFunc(a.scratch.ops, func(op counters.Op) bool { return acquires(op) && !op.Shadow })
	if first < 0 {
		first = slices.IndexFunc(a.scratch.ops, acquires)
	}
	return first
}

// acquireAtHome has the owner of req's first slots, which may be this node,
// decide req. a must be prepared for req. The error is ErrNoOwner if req could
// not be decided this way.
func (l *Limiter) acquireAtHome(ctx context.Context, req *acquireRequest, a *Answer) (slot Slot, err error) {
	first := a.firstSlots()
	if first < 0 {
		return Slot{}, ErrNoOwner
	}

	subject := a.scratch.ops[first].Key.Subject
	err = l.doAtOwner(ctx, &ownerRequest{subject: subject, hops: req.hops, here: func() (err error) {
		slot, err = l.acquireHere(ctx, req, subject, a)
		return err
	}, there: func(to ring.NodeID) (err error) {
		slot, err = l.askToAcquire(ctx, to, req, a)
		return err
	}})
	return slot, err
}

// acquireHere decides req, for which a is prepared, on this node, which owns
// the first slots, those of subject. The error is counters.ErrShut if they have
// moved away; a is then prepared anew.
func (l *Limiter) acquireHere(ctx context.Context, req *acquireRequest, subject uint64, a *Answer) (Slot, error) {
	first := a.firstSlots()
	if first < 0 || a.scratch.ops[first].Key.Subject != subject {
		return Slot{}, ErrNoOwner // newer rules came while the partition moved, and have other first slots
	}

	acq := a.newAcquisition(req.query)
	acq.id = req.ticket.id
	acq.nonce = counters.NewNonce(req.ticket.contentHash)
	acq.isAtHome = true
	part := acq.partOf(&a.scratch.ops[first])

	// A repetition waits here while an earlier attempt is being decided. It then
	// finds the slot that was granted to that attempt, or none.
	unlock, ok := l.requests.lock(ctx, notes.Key{Subject: part.Key.Subject, ID: acq.id, Kind: notes.Slot})
	if !ok {
		return Slot{}, ErrTryAgain
	}
	defer unlock()

	// Waiting for the lock may have taken time.
	a.Now = l.clock.Now()
	earlier, held, err := l.table.AdoptGrantedSlot(a.Now, part.Key, acq.id, acq.nonce)
	switch {
	case errors.Is(err, counters.ErrRequestIDReused):
		return Slot{}, ErrRequestIDReused
	case err != nil:
		return Slot{}, err
	case held:
		acq.adoptEarlierAttempt(earlier, a)
		l.requests.repeated.Add(1)
	}

	slot, err := l.acquire(req.query, a, acq, false)
	if err == nil && a.Allowed && !acq.isRepetition {
		l.table.MarkSlotGranted(l.clock.Now(), part.Key, acq.id, acq.nonce)
	}
	if !errors.Is(err, errUnconfirmed) || l.table.IsOpen(part.Key.Partition()) {
		return slot, err
	}

	// The slots have moved, so the next owner decides. That may be this node again,
	// and the failed attempt has written its answer into a.
	isDecided, err := l.prepare(l.clock.Now(), req.query, a)
	switch {
	case err != nil:
		return Slot{}, err
	case isDecided:
		return Slot{}, ErrNoOwner
	}
	return Slot{}, counters.ErrShut
}

// adoptEarlierAttempt turns acq into the acquisition of the earlier attempt
// with that nonce, which holds the slots.
func (acq *acquisition) adoptEarlierAttempt(nonce uint64, a *Answer) {
	acq.nonce = nonce
	acq.isRepetition = true
	a.dropPaidCosts()
}

// dropPaidCosts sets the costs of a's check to 0 at all limits but those of
// slots: an earlier attempt has paid them.
func (a *Answer) dropPaidCosts() {
	for i := range a.scratch.ops {
		op := &a.scratch.ops[i]
		if op.Limit.Kind != algorithms.Concurrency {
			op.Cost = 0
		}
	}
}

// askToAcquire has another node decide req. The error is ErrNoOwner if that
// node could not decide it.
func (l *Limiter) askToAcquire(ctx context.Context, to ring.NodeID, req *acquireRequest, a *Answer) (Slot, error) {
	next := *req
	next.hops++
	next.version = a.versionToAsk(req.query, req.version)

	var reply acquireReply
	err := l.cluster.request(ctx, to, MethodAcquire, &next, &reply)
	if err != nil {
		return Slot{}, err
	}

	id, err := l.restoreReply(ctx, req.query, a, &reply.answer)
	return Slot{ID: id, Expires: reply.expires, isRepetition: reply.isRepetition}, err
}

// serveAcquire decides req for another node.
func (l *Limiter) serveAcquire(req *acquireRequest) (*acquireReply, error) {
	ctx, cancel := context.WithTimeout(l.cluster.ctx, ownerTimeout)
	defer cancel()

	a, err := l.prepareForAsker(ctx, req.query, req.version, true)
	if err != nil {
		return nil, err
	}
	if err := a.validateSlots(req.query); err != nil {
		return nil, ErrNoOwner // the asker decides by its own rules
	}

	slot, err := l.acquireAtHome(ctx, req, a)
	if err != nil {
		return nil, err
	}
	return &acquireReply{expires: slot.Expires, isRepetition: slot.isRepetition, answer: *a.pack(slot.ID)}, nil
}
