package partitions

import (
	"context"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
)

// inboxSize bounds the queue of messages from other keepers. When it is full,
// senders get codeBusy and try again.
const inboxSize = 256

// message is a message from another keeper.
type message struct {
	*peer.Call
	arrived time.Time
}

// receive handles the messages in the inbox, in order.
func (k *Keeper) receive() {
	for {
		select {
		case <-k.ctx.Done():
			return
		case m := <-k.inbox:
			k.receiveMu.Lock()
			k.handleMessage(m.Call, m.arrived)
			// The message counts until it is handled. Otherwise enqueue could
			// let a push overtake it before this goroutine has the lock.
			k.queued.Add(-1)
			k.receiveMu.Unlock()
		}
	}
}

// Handle registers this Keeper with p for the messages of other keepers.
func (k *Keeper) Handle(p *peer.Peers) {
	for m := MethodPush; m <= MethodDebts; m++ {
		p.Handle(m, peer.Near, k.enqueue)
	}
}

// maxPromptPush is the size in bytes up to which the goroutine that has read a
// push may handle it: such a push has few changes, and a caller may wait for
// their confirmation.
const maxPromptPush = 4 << 10

// enqueue queues a message from another keeper, or handles it at once if it is
// a short push and no other message is in front of it. It does not block.
func (k *Keeper) enqueue(c *peer.Call) {
	c.CopyBody()

	if c.Method == MethodPush && len(c.Body) <= maxPromptPush && k.receiveMu.TryLock() {
		prompt := k.queued.Load() == 0 && k.hasRevisionOf(c.Body)
		if prompt {
			k.handleMessage(c, time.Now())
		}

		k.receiveMu.Unlock()
		if prompt {
			return
		}
	}

	k.queued.Add(1)
	select {
	case k.inbox <- message{c, time.Now()}:
	default:
		k.queued.Add(-1)
		c.Fail(codeBusy, "too many messages are waiting")
	}
}

// hasRevisionOf reports whether this node has applied the state of a message's
// sender, so the message can be handled without a wait.
func (k *Keeper) hasRevisionOf(body []byte) bool {
	return k.adopted.Load().Revision >= wire.NewDecoder(body).Uvarint()
}

// catchUpTimeout bounds how long a message waits until its receiver has applied
// the sender's agreed state. It counts from the message's arrival, so queued
// messages wait at the same time, and none waits longer.
const catchUpTimeout = 50 * time.Millisecond

// handleMessage handles one message.
func (k *Keeper) handleMessage(c *peer.Call, arrived time.Time) {
	d := wire.NewDecoder(c.Body)
	h := header{revision: d.Uvarint(), generation: int64(d.Uvarint()), seq: d.Uvarint()}

	if d.Failed() {
		c.Fail(codeMalformed, d.Err().Error())
		return
	}

	ended := wantsCopies(c) && d.Bool() // the sender knows that this node was ended; this node may not
	state := k.adopted.Load()
	hasRevision := true
	if !ended {
		state, hasRevision = k.awaitRevision(h.revision, arrived)
	}

	// An ended node's copies are final, so it answers whatever state either node has
	// applied.
	if !ended {
		code, why := k.refusal(state, c, h.generation, hasRevision)
		if code != 0 {
			c.Fail(code, why)
			return
		}
	}

	switch c.Method {
	case MethodPush:
		// A copy that is here goes on, even if this node is behind for as long as its
		// disk is full: the owner may have no other standby.
		k.acceptPush(state, c, h, d, !hasRevision)
	case MethodTokens:
		k.acceptTokenMessage(state, c, d)
	case MethodCopyInfo, MethodPull:
		k.answerCopyRequest(state, c, ended, d)
	case MethodCopies:
		k.acceptCopies(c, d)
	case MethodDebts:
		k.acceptDebts(c, d)
	default:
		c.Fail(codeMalformed, "unknown method")
	}
}

// wantsCopies reports whether a message asks for copies, or about them.
func wantsCopies(c *peer.Call) bool { return c.Method == MethodCopyInfo || c.Method == MethodPull }

// refusal returns why the message of a sender in a generation is not handled; 0
// if it is. hasRevision means that this node has applied the sender's state.
func (k *Keeper) refusal(state *adoptedState, c *peer.Call, generation int64, hasRevision bool) (peer.Code, string) {
	bringsCounters := c.Method == MethodCopies || c.Method == MethodDebts

	switch {
	case !hasRevision && wantsCopies(c):
		// The sender may be the new process of an owner. This node may not apply its
		// registration for a long time, for example while its disk is full. Still, the
		// copies here are final: the owner's last process lost its authority before the
		// new one was registered.
		return 0, ""
	case !hasRevision && c.Method != MethodPush:
		return codeBehind, "this node has not applied the sender's state yet"
	case state.isCurrent(c.From, generation):
		return 0, ""
	case bringsCounters && k.isPullingFrom(c.From.Node):
		return 0, "" // even from an ended node
	}
	return codeRefused, "the sender was ended, or is another process"
}

// awaitRevision waits for a state with revision until arrived+catchUpTimeout.
// It returns the newest state, and whether it has the revision.
func (k *Keeper) awaitRevision(revision uint64, arrived time.Time) (state *adoptedState, ok bool) {
	ctx, cancel := context.WithDeadline(k.ctx, arrived.Add(catchUpTimeout))
	defer cancel()
	k.waitUntil(ctx, func() bool {
		state = k.adopted.Load()
		return state.Revision >= revision
	})
	return state, state.Revision >= revision
}
