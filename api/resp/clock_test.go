package resp

import (
	"cmp"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules/document"
)

// clockNode is a node whose clock a test sets.
type clockNode struct {
	*node
	*client
	start time.Time
}

// startClockNode starts a node whose clock a test sets.
func startClockNode(t *testing.T) *clockNode {
	t.Helper()
	n := startNode(t, nil)
	return &clockNode{node: n, client: dial(t, n), start: time.Now().Truncate(10 * time.Second).Add(10 * time.Second)}
}

// at sets the clock to a time after the start, at which windows of 10 s begin.
func (n *clockNode) at(after time.Duration) { n.Clock.Set(n.start.Add(after).UnixNano()) }

// The vectors of the commands, at one node.
func TestVectors(t *testing.T) {
	t.Parallel()
	for _, v := range apitest.RedisVectors {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			n := startClockNode(t)
			n.UseRules(cmp.Or(v.Rules, apitest.Rules))
			v.Run(t, n.at, n.ask)
		})
	}
}

// If no counter can give way to a new key, the reply says so, and keys that are there count on.
func TestTooManyLimits(t *testing.T) {
	t.Parallel()
	table, clock := counters.New(1), limiter.NewClock()
	t.Cleanup(table.Close)
	t.Cleanup(func() { _ = clock.Close() })
	l := limiter.New(table, clock)
	doc, err := document.Parse([]byte(apitest.Rules))
	if err == nil {
		_, err = (&apitest.MemoryRules{Limiter: l}).Use(doc)
	}
	expect.NoError(t, err)
	c := dial(t, startNode(t, func(c *apitest.Config) { c.Decider = l }))
	c.askAll(
		step{"INCREX first UBOUND 1 EX 86400 ENX", "[1 1]"},
		step{"INCREX first UBOUND 1 EX 86400 ENX", "[1 0]"}, // it has refused, so it does not give way
	)
	for _, command := range []string{"INCREX second UBOUND 1 EX 60 ENX",
		"CL.THROTTLE second 4 5 60", "THROTTLE second 5 5 60", "RL.THROTTLE second 4 5 60"} {
		c.askAll(step{command, "-ERR too many limits"})
	}
	c.send(words("INCREX first UBOUND 1 EX 86400 ENX") + words("INCREX second UBOUND 1 EX 60 ENX") + words("PING"))
	expect.Equal(t, c.reply()+c.reply()+c.reply(), "[1 0]-ERR too many limits+PONG", "in a pipeline")
	c.askAll(step{"EXISTS second", "0"}, step{"EXISTS first", "1"})
}
