package authority

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// Confirmations records which nodes still follow a leader: for each node, the
// newest of the leader's messages that it has answered, and the node's Raft
// term at that time. Messages are numbered, so that no clock is needed. The
// zero value is empty.
//
// A leader that a majority of the voters follows has not been replaced. Each
// later leader needs the vote of one of these voters, and a node that has voted
// for a later leader is in a later term. An answer may be late. So it proves
// only that the leader had not been replaced when it sent the message. Whatever
// is to be confirmed must have happened before that moment.
type Confirmations struct {
	sent atomic.Uint64

	mu           sync.Mutex // guards the fields below
	last         map[ring.NodeID]answer
	answerSignal chan struct{} // closed by the next answer; nil without waiters
}

// answer is the newest message that a node has answered.
type answer struct{ term, number uint64 }

// NextNumber returns the number for a message. The caller must send the message after the call.
func (c *Confirmations) NextNumber() uint64 { return c.sent.Add(1) }

// RecordAnswer records that a node in the given term has answered the message
// with the given number.
func (c *Confirmations) RecordAnswer(id ring.NodeID, term, number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = map[ring.NodeID]answer{}
	}

	last := c.last[id]
	if term < last.term || number <= last.number {
		return // an out-of-order answer
	}

	c.last[id] = answer{term, number}

	if c.answerSignal != nil {
		close(c.answerSignal)
		c.answerSignal = nil
	}
}

// LastAnswered returns the number of the newest message that the node has
// answered, or 0 if there is none.
func (c *Confirmations) LastAnswered(id ring.NodeID) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last[id].number
}

// Await waits until a majority of the voters has answered, in the given term,
// messages sent after the call to Await. self counts without an answer if it is
// a voter: the caller must check afterwards that it still leads in the term.
// Await asks for the voters anew before each count: after each answer, and
// every confirmInterval without one. So it never uses a set of voters from
// before the call, and never waits for a voter that has been removed. The error
// is the context's.
func (c *Confirmations) Await(ctx context.Context, self ring.NodeID, term uint64, voters func() []ring.NodeID) error {
	lastBefore := c.sent.Load() // messages with higher numbers were sent after the call

	for {
		// The channel is taken before the count: an answer that arrives meanwhile must
		// end the wait.
		answerSignal := c.nextAnswer()
		if c.hasMajority(self, term, lastBefore, voters()) {
			return nil
		}

		select {
		case <-answerSignal:
		case <-time.After(confirmInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// nextAnswer returns a channel that is closed by the next answer.
func (c *Confirmations) nextAnswer() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answerSignal == nil {
		c.answerSignal = make(chan struct{})
	}
	return c.answerSignal
}

// hasMajority reports whether a majority of the voters has answered, in the
// given term, messages with numbers above lastBefore.
func (c *Confirmations) hasMajority(self ring.NodeID, term, lastBefore uint64, voters []ring.NodeID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	missing := slices.DeleteFunc(slices.Clone(voters), func(id ring.NodeID) bool {
		a := c.last[id]
		return id == self || a.term == term && a.number > lastBefore
	})

	return 2*len(missing) < len(voters)
}
