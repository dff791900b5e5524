package api

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/rlnode/rlnode/internal/expect"
)

// counted is a connection that counts the reads that had to wait.
type counted struct {
	fakeConn
	waits uint64
}

func (c *counted) Waits() uint64 { return c.waits }

// A connection whose caller sends ahead is served a bounded number of requests,
// then others are, and then it goes on. One whose caller waits for each answer
// never waits for its turn.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns := NewConnections(ConnectionsConfig{Max: 8})
		served := make([]int, 4)
		serve := func(i, requests int, waits bool) {
			input := &counted{}
			c := &Connection{Conn: input, waitCounter: input, owner: conns}
			for range requests {
				if waits {
					input.waits++
				}
				c.TakeTurn(1)
				served[i]++
			}
		}

		conns.turns <- struct{}{} // somebody else has the turn
		go serve(0, TurnRequests+1, false)
		go serve(1, 3*TurnRequests, false)
		synctest.Wait()
		expect.Equal(t, served[0], TurnRequests, "requests in a row")
		expect.Equal(t, served[1], TurnRequests, "requests in a row")

		go serve(2, TurnRequests, false)
		go serve(3, 1000, true)
		synctest.Wait()
		if !slices.Equal(served[2:], []int{TurnRequests, 1000}) {
			t.Errorf("a newcomer and one that waits for its answers were served %v requests", served[2:])
		}

		<-conns.turns
		synctest.Wait()
		expect.Equal(t, served[0]+served[1], 4*TurnRequests+1, "requests in all")
		expect.Equal(t, conns.turnsTaken.Load(), int64(3), "turns")
	})
}
