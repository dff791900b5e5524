package resp

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// What clients send when they connect, and what they expect.
func TestConnect(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	for _, one := range []step{
		{"HELLO",
			`["server" "redis" "version" "7.4.0" "proto" 2 "id" 1 "mode" "standalone" "role" "master" "modules" []]`},
		{"HELLO 3",
			`{"server" "redis" "version" "7.4.0" "proto" 3 "id" 1 "mode" "standalone" "role" "master" "modules" []}`},
		{"CLIENT GETNAME", "nil"},
		{"HELLO 3 SETNAME worker-1",
			`{"server" "redis" "version" "7.4.0" "proto" 3 "id" 1 "mode" "standalone" "role" "master" "modules" []}`},
		{"CLIENT GETNAME", `"worker-1"`},
		{"HELLO",
			`{"server" "redis" "version" "7.4.0" "proto" 3 "id" 1 "mode" "standalone" "role" "master" "modules" []}`},
		{"CONFIG GET save", "{}"},
		{"HELLO 2",
			`["server" "redis" "version" "7.4.0" "proto" 2 "id" 1 "mode" "standalone" "role" "master" "modules" []]`},
		{"HELLO 4", "-NOPROTO unsupported protocol version"},
		{"HELLO x", "-ERR Protocol version is not an integer or out of range"},
		{"HELLO 3 NAME x", "-ERR Syntax error in HELLO option 'NAME'"},
		{"HELLO 3 AUTH x", "-ERR Syntax error in HELLO option 'AUTH'"},
		{"PING", "+PONG"},
		{"ping hello", `"hello"`},
		{"PING a b", "-ERR wrong number of arguments for 'ping' command"},
		{"ECHO x", `"x"`},
		{"ECHO", "-ERR wrong number of arguments for 'echo' command"},
		{"SELECT 0", "+OK"},
		{"SELECT 1", "-ERR DB index is out of range"},
		{"SELECT x", "-ERR value is not an integer or out of range"},
		{"CLIENT ID", "1"},
		{"CLIENT SETNAME a", "+OK"},
		{"CLIENT SETINFO LIB-NAME go-redis", "+OK"},
		{"CLIENT SETINFO lib-ver 9", "+OK"},
		{"CLIENT NO-EVICT on", "+OK"},
		{"CLIENT NO-TOUCH on", "+OK"},
		{"CLIENT REPLY ON", "+OK"},
		{"CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip",
			"-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."},
		{"CLIENT TRACKING ON", "-ERR unknown subcommand 'TRACKING'. Try CLIENT HELP."},
		{"CONFIG GET save", "[]"},
		{"CONFIG SET save x", "-ERR unknown subcommand 'SET'. Try CONFIG HELP."},
		{"READONLY", "+OK"},
		{"READWRITE", "+OK"},
		{"CLUSTER SLOTS", "-ERR This instance has cluster support disabled"},
		{"CLUSTER NODES", "-ERR This instance has cluster support disabled"},
		{"AUTH secret", "+OK"},
		{"AUTH default secret", "+OK"},
		{"AUTH a b c", "-ERR syntax error"},
		{"MULTI", "-ERR unknown command 'MULTI', rlnode limits rates: see docs/redis.md"},
		{"EVAL return 0", "-ERR unknown command 'EVAL', rlnode limits rates: see docs/redis.md"},
		{"SUBSCRIBE a", "-ERR unknown command 'SUBSCRIBE', rlnode limits rates: see docs/redis.md"},
		{"GET a", "-ERR unknown command 'GET', rlnode limits rates: see docs/redis.md"},
		{"COMMAND DOCS ping nope", `["ping" ["summary" "Answers PONG, or what it is given." "group" "rlnode"]]`},
		{"COMMAND INFO cl.throttle nope", `[["cl.throttle" -1 [+fast] 1 1 1 [] [] [] []] nil]`},
		{"RESET", "+RESET"},
		{"CLIENT GETNAME", "nil"},
		{"QUIT", "+OK"},
	} {
		c.askAll(one)
	}
	if !c.ended() {
		t.Error("the connection goes on after QUIT")
	}
}

// A token that nobody needs is taken, and the log says so, but not once for each connection.
func TestNeedlessToken(t *testing.T) {
	t.Parallel()
	var log strings.Builder // read after the replies, which come after its lines
	n := startNode(t, func(c *apitest.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for _, command := range []string{"AUTH secret", "AUTH anybody secret", "HELLO 3 AUTH default secret"} {
		c := dial(t, n)
		if got := c.ask(command); strings.HasPrefix(got, "-") {
			t.Errorf("%s: got %s", command, got)
		}
	}
	expect.Equal(t,
		strings.Count(log.String(), "a caller sends a password, but this node has no tokens"), 1,
		"lines in the log")
	expect.Equal(t, strings.Contains(log.String(), "secret"), false, "the log reveals the token")
}

func TestInfoAndCommand(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.Starting = true })
	c := dial(t, n)
	if got := c.ask("INFO"); !strings.Contains(got, `loading:1\r\n`) {
		t.Errorf("a node that starts: got %s", got)
	}
	c.askAll(step{"CL.THROTTLE k 1 1 1", "-ERR not-ready not ready: the node is starting"})
	n.Ready()
	for _, want := range []string{`redis_version:7.4.0\r\n`, `redis_mode:standalone\r\n`,
		`loading:0\r\n`, `role:master\r\n`, `rlnode_version:test\r\n`} {
		if got := c.ask("INFO server"); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s in it", got, want)
		}
	}
	count := c.ask("COMMAND COUNT")
	for _, command := range []string{"COMMAND", "COMMAND LIST", "COMMAND DOCS", "COMMAND INFO"} {
		if got := c.ask(command); !strings.Contains(got, `"cl.throttle"`) {
			t.Errorf("%s (of %s): got %s", command, count, got)
		}
	}
}

// An unknown name is repeated without control characters, and not at length.
func TestUnknownNames(t *testing.T) {
	t.Parallel()
	c := dial(t, startNode(t, nil))
	c.send(array("a\r\n-b\x00\xff"))
	expect.Equal(t, c.reply(), "-ERR unknown command 'a  -b ?', rlnode limits rates: see docs/redis.md", "c.reply()")
	c.send(array(strings.Repeat("é", 200)))
	expect.Equal(t, c.reply(),
		"-ERR unknown command '"+strings.Repeat("é", 64)+"', rlnode limits rates: see docs/redis.md",
		"c.reply()")
}
