package resp

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// clockNode is a node whose clock a test sets.
type clockNode struct {
	*client
	clock interface{ Set(at int64) }
	start time.Time
}

// startClockNode starts a node whose clock stands still.
func startClockNode(t *testing.T) *clockNode {
	t.Helper()
	n := startNode(t, nil)
	one := &clockNode{client: dial(t, n), clock: n.Clock, start: time.Now().Add(time.Second).Truncate(time.Second)}
	one.at(0)
	return one
}

// at sets the clock to a time after the start.
func (n *clockNode) at(after time.Duration) { n.clock.Set(n.start.Add(after).UnixNano()) }

// timedStep is a command at a time, and the reply that is wanted.
type timedStep struct {
	after   time.Duration
	command string
	want    string
}

func (n *clockNode) askAll(steps ...timedStep) {
	n.t.Helper()
	for _, one := range steps {
		n.at(one.after)
		expect.Equal(n.t, n.ask(one.command), one.want, "%v: %s", one.after, one.command)
	}
}

// What redis-cell 0.5.0 replies as time passes: five in 5 s, and the like in milliseconds, minutes and days.
func TestCellThrottle_VectorsInTime(t *testing.T) {
	t.Parallel()
	n := startClockNode(t)
	const ms = time.Millisecond
	n.askAll(
		timedStep{0, "CL.THROTTLE k 4 5 5 6", "[1 5 5 -1 0]"},
		timedStep{0, "CL.THROTTLE k 4 5 5", "[0 5 4 -1 1]"},
		timedStep{0, "CL.THROTTLE k 4 5 5", "[0 5 3 -1 2]"},
		timedStep{0, "CL.THROTTLE k 4 5 5", "[0 5 2 -1 3]"},
		timedStep{0, "CL.THROTTLE k 4 5 5", "[0 5 1 -1 4]"},
		timedStep{0, "CL.THROTTLE k 4 5 5", "[0 5 0 -1 5]"},
		timedStep{0, "CL.THROTTLE k 4 5 5", "[1 5 0 1 5]"},
		timedStep{3000 * ms, "CL.THROTTLE k 4 5 5", "[0 5 2 -1 3]"},
		timedStep{3100 * ms, "CL.THROTTLE k 4 5 5", "[0 5 1 -1 4]"},
		timedStep{4000 * ms, "CL.THROTTLE k 4 5 5", "[0 5 1 -1 4]"},
		timedStep{8000 * ms, "CL.THROTTLE k 4 5 5", "[0 5 4 -1 1]"},
		timedStep{9500 * ms, "CL.THROTTLE k 4 5 5", "[0 5 4 -1 1]"},
		timedStep{9500 * ms, "CL.THROTTLE k 4 5 5 0", "[0 5 4 -1 1]"},
		timedStep{9500 * ms, "CL.THROTTLE k 4 5 5 2", "[0 5 2 -1 3]"},
		timedStep{9500 * ms, "CL.THROTTLE k 4 5 5 5", "[1 5 2 3 3]"},

		timedStep{10 * time.Second, "CL.THROTTLE one 0 1 2", "[0 1 0 -1 2]"},
		timedStep{10 * time.Second, "CL.THROTTLE one 0 1 2", "[1 1 0 2 2]"},
		timedStep{11500 * ms, "CL.THROTTLE one 0 1 2", "[1 1 0 1 1]"},
		timedStep{12 * time.Second, "CL.THROTTLE one 0 1 2", "[0 1 0 -1 2]"},

		timedStep{13 * time.Second, "CL.THROTTLE seven 2 3 7", "[0 3 2 -1 3]"},
		timedStep{13 * time.Second, "CL.THROTTLE seven 2 3 7", "[0 3 1 -1 5]"},
		timedStep{13 * time.Second, "CL.THROTTLE seven 2 3 7", "[0 3 0 -1 7]"},
		timedStep{13 * time.Second, "CL.THROTTLE seven 2 3 7", "[1 3 0 3 7]"},

		timedStep{14 * time.Second, "CL.THROTTLE minute 15 30 60", "[0 16 15 -1 2]"},
		timedStep{14 * time.Second, "CL.THROTTLE minute 1000 1000 60", "[0 1001 999 -1 1]"}, // one key, one counter: one is used
		timedStep{14 * time.Second, "CL.THROTTLE many 1000 1000 60", "[0 1001 1000 -1 1]"},
		timedStep{14 * time.Second, "CL.THROTTLE many 1000 1000 60", "[0 1001 999 -1 1]"},
		timedStep{14 * time.Second, "CL.THROTTLE many 1000 1000 60", "[0 1001 998 -1 1]"},
		timedStep{14*time.Second + 180*ms, "CL.THROTTLE many 1000 1000 60", "[0 1001 1000 -1 1]"},

		timedStep{time.Minute, "CL.THROTTLE day 1 2 86400", "[0 2 1 -1 43200]"},
		timedStep{time.Minute, "CL.THROTTLE day 1 2 86400", "[0 2 0 -1 86400]"},
		timedStep{12 * time.Hour, "CL.THROTTLE day 1 2 86400", "[1 2 0 60 43260]"},
		timedStep{12*time.Hour + time.Minute, "CL.THROTTLE day 1 2 86400", "[0 2 0 -1 86400]"},
		timedStep{37*time.Hour + time.Minute, "CL.THROTTLE day 1 2 86400 0", "[0 2 2 -1 0]"},

		timedStep{38 * time.Hour, "CL.THROTTLE year 0 1 31622400", "[0 1 0 -1 31622400]"},
		timedStep{38*time.Hour + 365*24*time.Hour, "CL.THROTTLE year 0 1 31622400", "[1 1 0 86400 86400]"},
		timedStep{38*time.Hour + 366*24*time.Hour, "CL.THROTTLE year 0 1 31622400", "[0 1 0 -1 31622400]"},
	)
}

// INCREX counts from its first hit until its window ends, and TTL says when that is.
func TestIncrex_VectorsInTime(t *testing.T) {
	t.Parallel()
	n := startClockNode(t)
	const ms = time.Millisecond
	n.askAll(
		timedStep{300 * ms, "INCREX k UBOUND 2 EX 60 ENX", "[1 1]"},
		timedStep{1300 * ms, "TTL k", "59"},
		timedStep{1300 * ms, "PTTL k", "59000"},
		timedStep{30 * time.Second, "INCREX k UBOUND 2 EX 60 ENX", "[2 1]"},
		timedStep{30 * time.Second, "INCREX k UBOUND 2 EX 60 ENX", "[2 0]"},
		timedStep{60299 * ms, "INCREX k UBOUND 2 EX 60 ENX", "[2 0]"},
		timedStep{60299 * ms, "PTTL k", "1"},
		timedStep{60300 * ms, "TTL k", "-2"},
		timedStep{60300 * ms, "INCREX k UBOUND 2 EX 60 ENX", "[1 1]"},

		timedStep{61 * time.Second, "INCREX short UBOUND 1 PX 10 ENX", "[1 1]"},
		timedStep{61009 * ms, "INCREX short UBOUND 1 PX 10 ENX", "[1 0]"},
		timedStep{61010 * ms, "INCREX short UBOUND 1 PX 10 ENX", "[1 1]"},

		timedStep{2 * time.Minute, "INCREX day UBOUND 5 EX 86400 ENX", "[1 1]"},
		timedStep{24*time.Hour + 119*time.Second, "INCREX day UBOUND 5 BYINT 4 EX 86400 ENX", "[5 4]"},
		timedStep{24*time.Hour + 2*time.Minute, "INCREX day UBOUND 5 EX 86400 ENX", "[1 1]"},
	)
}

// If no counter can give way to a new key, the reply says so, and keys that are there count on.
func TestTooManyLimits(t *testing.T) {
	t.Parallel()
	table, clock := counters.New(1), limiter.NewClock()
	t.Cleanup(table.Close)
	t.Cleanup(func() { _ = clock.Close() })
	l := limiter.New(table, clock)
	doc, err := rules.Parse([]byte(apitest.Rules))
	if err == nil {
		_, err = (&apitest.MemoryRules{Limiter: l}).Use(doc)
	}
	expect.NoError(t, err)
	c := dial(t, startNode(t, func(c *apitest.Config) { c.Decider = l }))
	c.askAll(
		step{"INCREX first UBOUND 1 EX 86400 ENX", "[1 1]"},
		step{"INCREX first UBOUND 1 EX 86400 ENX", "[1 0]"}, // it has refused, so it does not give way
	)
	for _, command := range []string{"INCREX second UBOUND 1 EX 60 ENX", "CL.THROTTLE second 4 5 60", "THROTTLE second 5 5 60", "RL.THROTTLE second 4 5 60"} {
		c.askAll(step{command, "-ERR too many limits"})
	}
	c.send(words("INCREX first UBOUND 1 EX 86400 ENX") + words("INCREX second UBOUND 1 EX 60 ENX") + words("PING"))
	expect.Equal(t, c.reply()+c.reply()+c.reply(), "[1 0]-ERR too many limits+PONG", "in a pipeline")
	c.askAll(step{"EXISTS second", "0"}, step{"EXISTS first", "1"})
}
