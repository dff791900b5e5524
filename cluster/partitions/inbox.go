package partitions

import (
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
			k.receiving.Lock()
			k.handleMessage(m.Call, m.arrived)
			// The message counts until it is handled. Otherwise enqueue could
			// let a push overtake it before this goroutine has the lock.
			k.waiting.Add(-1)
			k.receiving.Unlock()
		}
	}
}

// Handle registers this Keeper with p for the messages of other keepers.
func (k *Keeper) Handle(p *peer.Peers) {
	for m := MethodPush; m <= MethodDebts; m++ {
		p.Handle(m, peer.Near, k.enqueue)
	}
}

// maxPromptPush is the size in bytes up to which a push is handled where it was
// read: a few changes, which somebody waits for.
const maxPromptPush = 4 << 10

// enqueue queues a message from another keeper, or handles it at once if that
// takes no time and none is in front of it. It does not block.
func (k *Keeper) enqueue(c *peer.Call) {
	c.CopyBody()

	if c.Method == MethodPush && len(c.Body) <= maxPromptPush && k.receiving.TryLock() {
		prompt := k.waiting.Load() == 0 && k.hasRevisionOf(c.Body)
		if prompt {
			k.handleMessage(c, time.Now())
		}

		k.receiving.Unlock()
		if prompt {
			return
		}
	}

	k.waiting.Add(1)
	select {
	case k.inbox <- message{c, time.Now()}:
	default:
		k.waiting.Add(-1)
		c.Fail(codeBusy, "too many messages are waiting")
	}
}

// hasRevisionOf reports whether this node has applied the state of a message's
// sender, so nothing need be waited for.
func (k *Keeper) hasRevisionOf(body []byte) bool {
	return k.adopted.Load().Revision >= wire.NewDecoder(body).Uvarint()
}
