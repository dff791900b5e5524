package api

import (
	"runtime"

	"github.com/rlnode/rlnode/internal/rawconn"
)

// TurnRequests is how many requests of a connection are answered in a row
// before others get the processor. Only a caller that sends ahead has as many
// in a row: for any other, the node waits before each request.
const TurnRequests = 64

// TurnRequests must be at least twice TryInterval. Reads look for a wait only
// once in TryInterval inputs, and must have found one before the turn of a
// caller that sends nothing ahead ends.
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

// TakeTurn must be called before that many requests of c are served. It waits
// for c's turn if enough of them were served in a row.
func (c *Connection) TakeTurn(requests int) {
	if c.waitCounter != nil {
		// If a read has waited, the caller had sent nothing ahead. If c can't tell,
		// all its requests are counted.
		waits := c.waitCounter.Waits()
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
