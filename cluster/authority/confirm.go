package authority

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rlnode/rlnode/ring"
)

// Confirmations is what a leader knows about who still follows it: for each node, the newest of the leader's messages that
// it has answered, and the node's Raft term then. Messages have numbers, so that no clock matters. The zero value is empty.
//
// A leader that a majority of the voters follows has not been replaced: each later leader needs the vote of one of them, and
// a node that has voted for a later leader is in a later term. The answer may be late, so it proves this only for the moment
// at which the message was sent. Whatever is to be confirmed must have happened before that moment.
type Confirmations struct {
	sent atomic.Uint64

	mu       sync.Mutex // guards the fields below
	answered map[ring.NodeID]answered
	news     chan struct{} // closed by the next answer; nil if nobody waits
}

// answered is the newest message that a node has answered.
type answered struct{ term, number uint64 }

// Number returns the number for a message. The message must be sent after the call.
func (c *Confirmations) Number() uint64 { return c.sent.Add(1) }

// Answered records that a node in that term has answered the message with that number.
func (c *Confirmations) Answered(id ring.NodeID, term, number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answered == nil {
		c.answered = map[ring.NodeID]answered{}
	}
	if last := c.answered[id]; term < last.term || number <= last.number {
		return // an answer that another one has overtaken
	}
	c.answered[id] = answered{term, number}
	if c.news != nil {
		close(c.news)
		c.news = nil
	}
}

// Last returns the number of the newest message that the node has answered; 0 if there is none.
func (c *Confirmations) Last(id ring.NodeID) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered[id].number
}

// Await waits until a majority of the voters has answered, in that term, messages that were sent after the call. self needs
// no answer, if it is a voter: the caller checks afterwards that it still leads in that term. voters is called again and
// again, so that none of its results is from before the call. The error is the context's.
func (c *Confirmations) Await(ctx context.Context, self ring.NodeID, term uint64, voters func() []ring.NodeID) error {
	after := c.sent.Load()
	for {
		news := c.nextNews()
		if c.majority(self, term, after, voters()) {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// nextNews returns a channel that the next answer closes.
func (c *Confirmations) nextNews() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.news == nil {
		c.news = make(chan struct{})
	}
	return c.news
}

// majority reports whether a majority of the voters has answered, in that term, messages with numbers above after.
func (c *Confirmations) majority(self ring.NodeID, term, after uint64, voters []ring.NodeID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(voters), func(id ring.NodeID) bool {
		a := c.answered[id]
		return id == self || a.term == term && a.number > after
	})
	return 2*len(others) < len(voters)
}
