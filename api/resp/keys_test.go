package resp

import (
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

func TestIncrex_Errors(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	const syntax = "-ERR syntax error"
	refused := func(option string) string {
		return "-ERR bad-value INCREX takes no " + option + " here: see docs/redis.md"
	}
	c.askAll(
		step{"INCREX", "-ERR wrong number of arguments for 'increx' command"},
		step{"INCREX k", "-ERR bad-value INCREX needs UBOUND here: see docs/redis.md"},
		step{"INCREX k UBOUND", syntax},
		step{"INCREX k BYINT", syntax},
		step{"INCREX k FOO", syntax},
		step{"INCREX k UBOUND 5 EX 1 ENX ENX", syntax},
		step{"INCREX k UBOUND 5 UBOUND 6 EX 1 ENX", syntax},
		step{"INCREX k UBOUND 5 EX 1 PX 1 ENX", syntax},
		step{"INCREX k BYINT 1 BYFLOAT 2 UBOUND 6 EX 1 ENX", syntax},
		step{"INCREX k BYINT x UBOUND 5 EX 1 ENX", "-ERR Increment is not an integer or out of range"},
		step{"INCREX k BYINT -x UBOUND 5 EX 1 ENX", "-ERR Increment is not an integer or out of range"},
		step{"INCREX k BYINT 9223372036854775808 UBOUND 5 EX 1 ENX",
			"-ERR Increment is not an integer or out of range"},
		step{"INCREX k UBOUND x EX 1 ENX", "-ERR UBOUND is not an integer or out of range"},
		step{"INCREX k UBOUND 5 EX x ENX", "-ERR value is not an integer or out of range"},
		step{"INCREX k UBOUND 5 EX 0 ENX", "-ERR invalid expire time in 'increx' command"},
		step{"INCREX k UBOUND 5 PX -1 ENX", "-ERR invalid expire time in 'increx' command"},
		step{"INCREX k UBOUND 5 EX 9223372036854775807 ENX", "-ERR invalid expire time in 'increx' command"},
		step{"INCREX k UBOUND 5 ENX", "-ERR ENX flag requires an expiration"},
		step{"INCREX k ENX", "-ERR ENX flag requires an expiration"},
		step{"INCREX k LBOUND 7 UBOUND 5 EX 1 ENX", "-ERR LBOUND can't be greater than UBOUND"},
		step{"INCREX k UBOUND 5 EX 1", "-ERR bad-value INCREX needs ENX here: see docs/redis.md"},
		step{"INCREX k SATURATE EX 1 ENX", "-ERR bad-value INCREX needs UBOUND here: see docs/redis.md"},
		step{"INCREX k LBOUND 0 UBOUND 5 EX 1 ENX", refused("LBOUND")},
		step{"INCREX k BYFLOAT 1.5 UBOUND 5 EX 1 ENX", refused("BYFLOAT")},
		step{"INCREX k UBOUND 5 EXAT 1 ENX", refused("EXAT")},
		step{"INCREX k UBOUND 5 pxat 1 ENX", refused("PXAT")},
		step{"INCREX k UBOUND 5 PERSIST", refused("PERSIST")},
		step{"INCREX k UBOUND 5 NX EX 1 ENX", refused("NX")},
		step{"INCREX k UBOUND 5 XX EX 1 ENX", refused("XX")},
		step{"INCREX k UBOUND 5 PX 9 ENX", "-ERR bad-value the expiry must be from 10 milliseconds to 366 days"},
		step{"INCREX k UBOUND 5 EX 31622401 ENX", "-ERR bad-value the expiry must be from 10 milliseconds to 366 days"},
		step{"INCREX k UBOUND 9007199254740992 EX 1 ENX", "-ERR bad-value UBOUND must not exceed 9007199254740991"},
		step{"INCREX k BYINT 9007199254740992 UBOUND 1 EX 1 ENX",
			"-ERR bad-value BYINT must be a whole number from -9007199254740991 to 9007199254740991"},
		step{"INCREX k UBOUND 5 EX 31622400 ENX", "[1 1]"},
		step{"INCREX p UBOUND 5 PX 10 ENX", "[1 1]"},
	)
	long := strings.Repeat("x", 2000)
	c.send(array("INCREX", "k", long))
	expect.Equal(t, c.reply(), syntax, "a long word")
}

// A key is found by the same text, whatever bytes it has.
func TestKeys_OfAnyBytes(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	for _, key := range []string{"50%", "\xff\x00", strings.Repeat("long", 600)} {
		c.send(array("INCREX", key, "UBOUND", "9", "EX", "60", "ENX") + array("EXISTS", key) +
			array("DEL", key) + array("EXISTS", key))
		expect.Equal(t, c.reply()+c.reply()+c.reply()+c.reply(), "[1 1]110", "%.20q", key)
	}
}

// Commands in a pipeline are executed in order, checks or not.
func TestKeysInPipelines(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	var many strings.Builder
	for range 50 {
		for _, one := range []string{"INCREX k UBOUND 2 EX 60 ENX", "INCREX k UBOUND 2 EX 60 ENX",
			"INCREX k UBOUND 2 EX 60 ENX", "INCREX k BYINT -1 UBOUND 2 EX 60 ENX", "EXISTS k",
			"DEL k"} {
			many.WriteString(words(one))
		}
	}
	c.send(many.String())
	for i := range 50 {
		if have := c.reply() + c.reply() + c.reply() + c.reply() + c.reply() +
			c.reply(); have != "[1 1][2 1][2 0][1 -1]11" {
			t.Fatalf("round %d: have %s", i, have)
		}
	}
}

// Keys are read with the scope check, and changed with adjust, as over HTTP.
// Namespaces that the caller or the document does not allow hold nothing.
func TestKeyScopes(t *testing.T) {
	t.Parallel()
	file := apitest.TokensFile(t,
		apitest.TokenEntry("checks", "checks", "check"),
		apitest.TokenEntry("adjusts", "adjusts", "check, adjust"),
		apitest.ConfinedEntry("confined", "confined", "check, adjust", "increx"),
	)
	n := startNode(t, func(c *apitest.Config) { c.TokensFile = file })
	for token, steps := range map[string][]step{
		"checks": {
			{"INCREX a UBOUND 9 EX 60 ENX", "[1 1]"}, {"TTL a", "60"}, {"EXISTS a", "1"},
			{"INCREX a BYINT -1 UBOUND 9 EX 60 ENX",
				"-ERR forbidden this needs a token with the scope adjust; checks has check"},
			{"DEL a", "-ERR forbidden this needs a token with the scope adjust; checks has check"},
		},
		"adjusts": {
			{"INCREX b UBOUND 9 EX 60 ENX", "[1 1]"}, {"INCREX b BYINT -1 UBOUND 9 EX 60 ENX", "[0 -1]"},
			{"CL.THROTTLE b 1 1 60", "[0 2 1 -1 60]"}, {"DEL b", "1"},
		},
		"confined": {
			{"INCREX c UBOUND 9 EX 60 ENX", "[1 1]"}, {"EXISTS c", "1"}, {"DEL c", "1"},
		},
	} {
		c := dial(t, n)
		c.askAll(append([]step{{"AUTH " + token, "+OK"}}, steps...)...)
	}
	c := dial(t, n)
	c.askAll(step{"AUTH confined", "+OK"})
	if have := c.ask("CL.THROTTLE c 1 1 60"); !strings.HasPrefix(have, "-ERR forbidden-namespace") {
		t.Errorf("have %s", have)
	}

	none := startNode(t, nil)
	none.UseRules("version: 1\ninline: {namespaces: [other]}\nrules: []\n")
	c = dial(t, none)
	for _, command := range []string{"TTL k", "EXISTS k", "DEL k", "INCREX k UBOUND 1 EX 1 ENX",
		"INCREX k BYINT -1 UBOUND 1 EX 1 ENX"} {
		if have := c.ask(command); !strings.HasPrefix(have, "-ERR forbidden-namespace") {
			t.Errorf("%s: have %s", command, have)
		}
	}
	none.UseRules("version: 1\ninline: {namespaces: [cl]}\nrules: []\n")
	c.askAll(step{"CL.THROTTLE k 1 1 60", "[0 2 1 -1 60]"}, step{"TTL k", "60"}, step{"DEL k", "1"})
}

// A window from the first hit ends when PTTL says.
func TestIncrex_Ends(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	begun := time.Now()
	if have := c.ask("INCREX k UBOUND 1 PX 300 ENX"); have != "[1 1]" {
		t.Fatalf("have %s", have)
	}
	for {
		asked := time.Now()
		have := c.ask("INCREX k UBOUND 1 PX 300 ENX")
		switch {
		case have == "[1 0]" && asked.Sub(begun) < 10*time.Second:
		case have == "[1 1]" && time.Since(begun) >= 300*time.Millisecond:
			return
		default:
			t.Fatalf("after %v: have %s", time.Since(begun), have)
		}
	}
}
