package resp

import (
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// step is a command and the reply that is wanted.
type step struct{ command, want string }

// askAll sends commands in turn and compares the replies.
func (c *client) askAll(steps ...step) {
	c.t.Helper()
	for _, one := range steps {
		expect.Equal(c.t, c.ask(one.command), one.want, "%s", one.command)
	}
}

// What redis-cell 0.5.0 replies within one moment. Periods are hours, so that a slow machine replies the same.
func TestCellThrottle_Vectors(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	c.askAll(
		step{"CL.THROTTLE k 4 5 18000 6", "[1 5 5 -1 0]"},
		step{"CL.THROTTLE k 4 5 18000", "[0 5 4 -1 3600]"},
		step{"cl.throttle k 4 5 18000 1", "[0 5 3 -1 7200]"},
		step{"Cl.Throttle k 4 5 18000", "[0 5 2 -1 10800]"},
		step{"CL.THROTTLE k 4 5 18000", "[0 5 1 -1 14400]"},
		step{"CL.THROTTLE k 4 5 18000", "[0 5 0 -1 18000]"},
		step{"CL.THROTTLE k 4 5 18000", "[1 5 0 3600 18000]"},
		step{"CL.THROTTLE k 4 5 18000 0", "[0 5 0 -1 18000]"},
		step{"CL.THROTTLE peek 4 5 18000 0", "[0 5 5 -1 0]"},
		step{"CL.THROTTLE a 15 30 60", "[0 16 15 -1 2]"},
		step{"CL.THROTTLE b 1000 60 60", "[0 1001 1000 -1 1]"},
		step{"CL.THROTTLE d 1000 1000 60", "[0 1001 1000 -1 1]"},
		step{"CL.THROTTLE e 2 3 25200", "[0 3 2 -1 8400]"},
		step{"CL.THROTTLE e 2 3 25200", "[0 3 1 -1 16800]"},
		step{"CL.THROTTLE e 2 3 25200", "[0 3 0 -1 25200]"},
		step{"CL.THROTTLE e 2 3 25200", "[1 3 0 8400 25200]"},
		step{"CL.THROTTLE none -1 5 5", "[1 0 0 -1 0]"},
		step{"CL.THROTTLE none -1 5 5 0", "[0 0 0 -1 0]"},
	)
	for i := range 6000 {
		if got := c.ask("CL.THROTTLE fast 5999 6000 6000"); !strings.HasPrefix(got, "[0 6000 ") {
			t.Fatalf("6,000 in 6,000 s, call %d: got %s", i, got)
		}
	}
}

// A rate of more than 1,000 a second is limited, which redis-cell does not do.
func TestCellThrottle_LimitsHighRates(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	c.send(strings.Repeat(words("CL.THROTTLE fast 1 1000000 31536000 1"), 3)) // 31 s each
	got := c.reply() + c.reply() + c.reply()
	if want := "[0 2 1 -1 32][0 2 0 -1 64][1 2 0 32 64]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	c.send(strings.Repeat(words("CL.THROTTLE k 0 6000 1 1"), 2000))
	limited := 0
	for range 2000 {
		if strings.HasPrefix(c.reply(), "[1 ") {
			limited++
		}
	}
	if limited == 0 {
		t.Error("none of 2,000 calls at once was limited to 6,000 a second with a burst of 1")
	}
}

// As time passes, the bucket fills: the vectors of a bucket of 5 that gets one a second, with the node's clock read around each call.
func TestCellThrottle_Refills(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	start := time.Now()
	c.askAll(step{"CL.THROTTLE k 0 1 2", "[0 1 0 -1 2]"})
	limited := c.ask("CL.THROTTLE k 0 1 2")
	if took := time.Since(start); took < time.Second && limited != "[1 1 0 2 2]" {
		t.Errorf("at once: got %s", limited)
	}
	time.Sleep(time.Until(start.Add(1500 * time.Millisecond)))
	limited = c.ask("CL.THROTTLE k 0 1 2")
	if time.Since(start) < 1900*time.Millisecond && limited != "[1 1 0 1 1]" {
		t.Errorf("after 1.5 s: got %s", limited)
	}
	time.Sleep(time.Until(start.Add(2500 * time.Millisecond)))
	c.askAll(step{"CL.THROTTLE k 0 1 2", "[0 1 0 -1 2]"})
}

func TestCellThrottle_Errors(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	usage := "-Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]"
	c.askAll(
		step{"CL.THROTTLE", usage},
		step{"CL.THROTTLE k 1 2", usage},
		step{"CL.THROTTLE k 1 2 3 4 5", usage},
		step{"CL.THROTTLE k abc 2 3", "-Cell error: Store error: Couldn't parse as integer: abc"},
		step{"CL.THROTTLE k 1 2 9223372036854775808", "-Cell error: Store error: Couldn't parse as integer: 9223372036854775808"},
		step{"CL.THROTTLE k 1 0 3", "-Cell error: Store error: Zero rates are not supported"},
		step{"CL.THROTTLE k 1 2 0", "-Cell error: Store error: Zero rates are not supported"},
		step{"CL.THROTTLE k 1 2 3 -1", "-ERR bad-value quantity must be a whole number from 0 to 9007199254740991"},
		step{"CL.THROTTLE k -2 2 3", "-ERR bad-value max_burst must be a whole number from -1 to 9007199254740990"},
		step{"CL.THROTTLE k 1 -2 3", "-ERR bad-value count_per_period must be a whole number from 1 to 9007199254740991"},
		step{"CL.THROTTLE k 1 2 31622401", "-ERR bad-value period must be a whole number from 1 to 31622400"},
		step{"CL.THROTTLE k 1 2 -3", "-ERR bad-value period must be a whole number from 1 to 31622400"},
		step{"CL.THROTTLE k +1 02 3600", "[0 2 1 -1 1800]"},
	)
	c.send(array("CL.THROTTLE", "k", strings.Repeat("x", 200)+"\r\n+OK", "2", "3"))
	expect.Equal(t, c.reply(), "-Cell error: Store error: Couldn't parse as integer: "+strings.Repeat("x", 128), "a long word")
	c.send(array("CL.THROTTLE", "k", "1\r\n+OK", "2", "3"))
	expect.Equal(t, c.reply(), "-Cell error: Store error: Couldn't parse as integer: 1  +OK", "control characters")
	c.askAll(step{"PING", "+PONG"})
}

func TestThrottle_OfThrottlecrab(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	c.askAll(
		step{"THROTTLE k 2 1 3600", "[1 2 1 3600 0]"},
		step{"THROTTLE k 2 1 3600 1", "[1 2 0 7200 0]"},
		step{"THROTTLE k 2 1 3600", "[0 2 0 7200 3600]"},
		step{"THROTTLE k 2 1 3600 3", "[0 2 0 7200 -1]"},
		step{"THROTTLE k 0 1 3600", "-ERR bad-value max_burst must be a whole number from 1 to 9007199254740990"},
		step{"THROTTLE k x 1 3600", "-ERR invalid max_burst"},
		step{"THROTTLE k 2 1", "-ERR wrong number of arguments for 'throttle' command"},
		step{"THROTTLE k 2 1 3600 1 1", "-ERR wrong number of arguments for 'throttle' command"},
		// Another namespace than that of CL.THROTTLE:
		step{"CL.THROTTLE k 1 1 3600", "[0 2 1 -1 3600]"},
	)
}

// RL.THROTTLE follows the proposal for Valkey, which is CL.THROTTLE by another name: it is the same bucket.
func TestRLThrottle(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	c.askAll(
		step{"RL.THROTTLE k 1 1 3600", "[0 2 1 -1 3600]"},
		step{"CL.THROTTLE k 1 1 3600", "[0 2 0 -1 7200]"},
		step{"RL.THROTTLE k 1 1 3600", "[1 2 0 3600 7200]"},
		step{"RL.THROTTLE k x 1 3600", "-ERR value is not an integer or out of range"},
		step{"RL.THROTTLE k 1 1", "-ERR wrong number of arguments for 'rl.throttle' command"},
		step{"RL.THROTTLE k 1 1 1 1 1", "-ERR wrong number of arguments for 'rl.throttle' command"},
	)
}
