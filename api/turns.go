package api

import (
	"runtime"

	"github.com/rlnode/rlnode/internal/rawconn"
)

// TurnRequests is how many requests of a connection are answered in a row
// before others get the processor. Only a caller that sends ahead has more:
// before a request of any other, the node waits.
const TurnRequests = 64

// A connection whose caller sends nothing ahead must have waited, as far as its
// reads can tell, before its turn ends.
const _ = uint(TurnRequests - 2*rawconn.TryInterval)

// turns lets connections whose callers have sent far ahead go on one after the
// other. If all went on at once, any other request would wait until each of
// them had used up the time that the scheduler gives a goroutine, 10 ms.
type turns chan struct{}

func newTurns() turns { return make(turns, 1) }

// pass returns when it is the caller's turn: after those who came before it,
// and after all else that can run has run once.
func (t turns) pass() {
	t <- struct{}{}
	runtime.Gosched()
	<-t
}

// ahead counts the requests that a connection has had answered without a wait
// for its caller. Only the goroutine that serves the connection uses it.
type ahead struct {
	requests int
	waits    uint64 // how often a read had waited when the count began
}

// TakeTurn must be called before c is served that many requests. It waits for
// c's turn if c has been served enough in a row.
func (c *Connection) TakeTurn(requests int) {
	if c.waiter != nil {
		// A read that waited means that the caller had sent nothing ahead. An input
		// that can't tell has all its requests counted.
		waits := c.waiter.Waits()
		if waits != c.ahead.waits {
			c.ahead = ahead{waits: waits}
		}
	}

	if c.ahead.requests >= TurnRequests {
		c.ahead.requests = 0
		c.owner.turnsTaken.Add(1)
		c.owner.turns.pass()
	}
	c.ahead.requests += requests
}
