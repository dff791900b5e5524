package resp

import (
	"strings"
	"testing"

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

func TestCellThrottle_Errors(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	usage := "-Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]"
	c.askAll(
		step{"CL.THROTTLE", usage},
		step{"CL.THROTTLE k 1 2", usage},
		step{"CL.THROTTLE k 1 2 3 4 5", usage},
		step{"CL.THROTTLE k abc 2 3", "-Cell error: Store error: Couldn't parse as integer: abc"},
		step{"CL.THROTTLE k 1 2 9223372036854775808",
			"-Cell error: Store error: Couldn't parse as integer: 9223372036854775808"},
		step{"CL.THROTTLE k 1 0 3", "-Cell error: Store error: Zero rates are not supported"},
		step{"CL.THROTTLE k 1 2 0", "-Cell error: Store error: Zero rates are not supported"},
		step{"CL.THROTTLE k 1 2 3 -1", "-ERR bad-value quantity must be a whole number from 0 to 9007199254740991"},
		step{"CL.THROTTLE k -2 2 3", "-ERR bad-value max_burst must be a whole number from -1 to 9007199254740990"},
		step{"CL.THROTTLE k 1 -2 3",
			"-ERR bad-value count_per_period must be a whole number from 1 to 9007199254740991"},
		step{"CL.THROTTLE k 1 2 31622401", "-ERR bad-value period must be a whole number from 1 to 31622400"},
		step{"CL.THROTTLE k 1 2 -3", "-ERR bad-value period must be a whole number from 1 to 31622400"},
		step{"CL.THROTTLE k +1 02 3600", "[0 2 1 -1 1800]"},
	)
	c.send(array("CL.THROTTLE", "k", strings.Repeat("x", 200)+"\r\n+OK", "2", "3"))
	expect.Equal(t, c.reply(),
		"-Cell error: Store error: Couldn't parse as integer: "+strings.Repeat("x", 128),
		"a long word")
	c.send(array("CL.THROTTLE", "k", "1\r\n+OK", "2", "3"))
	expect.Equal(t, c.reply(), "-Cell error: Store error: Couldn't parse as integer: 1  +OK", "control characters")
	c.askAll(step{"PING", "+PONG"})
}
