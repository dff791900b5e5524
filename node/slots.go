package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/limiter"
)

// Acquire takes a slot, which renews itself until Close; see client.Client.
// Config.OnError decides while the node decides nothing. Closing the node
// releases all slots.
func (n *Node) Acquire(ctx context.Context, q client.Request, ttl time.Duration) (*client.Slot, error) {
	return client.WaitForSlot(ctx, q.Wait, func() (*client.Slot, error) { return n.acquire(ctx, &q, ttl) })
}

// acquire makes one attempt.
func (n *Node) acquire(ctx context.Context, q *client.Request, ttl time.Duration) (*client.Slot, error) {
	// The time is read before the call, so that the slot never seems to last longer
	// than it does at its owner.
	sent := time.Now()
	d, slot, err := n.decideSlot(ctx, q, ttl)
	switch {
	case !d.Allowed:
		return nil, client.NewRefused(d, err)
	case err != nil:
		// Config.OnError lets the caller go on, without a slot that anybody knows of.
		s, _ := client.NewSlot(ctx, n, d, "", time.Time{})
		s.Err = err
		return s, nil
	}

	s, err := client.NewSlot(ctx, n, d, slot.ID, sent.Add(slot.Expires))
	if err != nil {
		return nil, client.NewRefused(client.Decision{DecidedBy: client.ByError}, err)
	}

	return s, nil
}

// decideSlot decides q. If it returns an error, Config.OnError has decided.
func (n *Node) decideSlot(
	ctx context.Context, q *client.Request, ttl time.Duration,
) (client.Decision, limiter.Slot, error) {
	fail := func(err error) (client.Decision, limiter.Slot, error) {
		return n.decisionOnError(q, err), limiter.Slot{}, err
	}
	if err := n.ensureOpen(ctx); err != nil {
		return fail(err)
	}
	if err := cmp.Or(q.ValidateAcquire(ttl), checkRequestID(q), checkSlotTTL(ttl)); err != nil {
		return fail(err)
	}
	if q.Slots > limiter.MaxSlots {
		return fail(fmt.Errorf("%w: Slots is %d; it must not be above %d", client.ErrRequest,
			q.Slots, limiter.MaxSlots))
	}

	var i inquiry
	if err := i.read(q); err != nil {
		return fail(err)
	}

	i.AwaitsLoan = true
	i.Slots = q.Slots
	i.SlotTTL = ttl
	i.Who = cmp.Or(q.Who, n.config.Name[:min(len(n.config.Name), limiter.MaxWho)])
	i.RequestID = cmp.Or(q.RequestID, rand.Text())

	slot, err := n.limiter.Acquire(&i.Query, &i.answer)
	if err != nil {
		return fail(n.toClientError(err))
	}

	var d client.Decision
	n.setDecision(&d, q, &i.answer)
	return d, slot, nil
}

// checkSlotTTL bounds the time for which a slot is held; 0 is as long as its limits say.
func checkSlotTTL(ttl time.Duration) error {
	if ttl != 0 && (ttl < algorithms.MinWindow || ttl > limiter.MaxSlotTTL) {
		return fmt.Errorf("%w: ttl is %v; it must be 0, or %v to %v", client.ErrRequest, ttl,
			algorithms.MinWindow, limiter.MaxSlotTTL)
	}
	return nil
}

// RenewSlot holds a slot for longer; see client.Client. Slots call it by
// themselves.
func (n *Node) RenewSlot(ctx context.Context, id string) (until time.Time, err error) {
	if err := n.ensureOpen(ctx); err != nil {
		return time.Time{}, err
	}

	sent := time.Now()
	expires, err := n.limiter.RenewSlot(id, 0)
	if err != nil {
		return time.Time{}, n.toClientError(err)
	}
	return sent.Add(expires), nil
}

// ReleaseSlot gives a slot back; see client.Client. Slot.Close calls it.
func (n *Node) ReleaseSlot(_ context.Context, id string) error {
	if _, err := n.limiter.ReleaseSlot(id); err != nil {
		return n.toClientError(err)
	}
	return nil
}

// Slots implements client.SlotKeeper.
func (n *Node) Slots() *client.SlotSet { return &n.slots }

// Go implements client.SlotKeeper.
func (n *Node) Go(f func()) bool {
	return !n.closed.Load() && n.loops.Go(f)
}
