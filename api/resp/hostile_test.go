package resp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/testca"
)

// rest reads until the connection ends, and returns what came.
func (c *client) rest() string {
	c.t.Helper()
	all, err := io.ReadAll(c.r)
	if os.IsTimeout(err) {
		c.t.Errorf("the connection does not end; it has sent %.200q", all)
	}
	return string(all)
}

// What is no command closes the connection; a page in a browser gets nothing
// through, not even an answer.
func TestHostile_Closes(t *testing.T) {
	t.Parallel()
	n, runs := startWatched(t, nil)
	throttle := words("CL.THROTTLE k 1 1 1")
	for _, test := range []struct{ send, want string }{
		{"POST / HTTP/1.1\r\nHost: example.org\r\n\r\n" + throttle, ""},
		{"GET /x\r\n" + throttle, ""},
		{"Host: example.org\r\n" + throttle, ""},
		{"PING\r\nfoo HTTP/1.1\r\n" + throttle, "+PONG\r\n"},
		{words("PING") + "POST / HTTP/1.1\r\n" + throttle, "+PONG\r\n-ERR Protocol error: expected '*', got 'P'\r\n"},
		{words("PING") + "PING\r\n" + throttle, "+PONG\r\n-ERR Protocol error: expected '*', got 'P'\r\n"},
		{"*1\r\n+PING\r\n" + throttle, "-ERR Protocol error: expected '$', got '+'\r\n"},
		{"*1025\r\n" + throttle, "-ERR Protocol error: invalid multibulk length\r\n"},
		{"*1\r\n$65537\r\n" + throttle, "-ERR Protocol error: invalid bulk length\r\n"},
		{"\x16\x03\x01\x00\n" + throttle, "-ERR Protocol error: a control character in an inline request\r\n"},
		{strings.Repeat("x", 2000) + "\n" + throttle, "-ERR Protocol error: too big inline request\r\n"},
		{words("QUIT") + throttle, "+OK\r\n"},
	} {
		c := dial(t, n)
		c.send(test.send)
		expect.Equal(t, c.rest(), test.want, "%.40q", test.send)
	}
	expect.Equal(t, runs.taken(), "[]", "checks were decided")
}

// A caller that gives its token up, as pools of connections do, has as long to
// show one again as after it connected. Others have not.
func TestHostile_TokensGivenUp(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	n := startNode(t, func(c *apitest.Config) { apitest.TheirTokens(c); c.Timeout = timeout })

	c, stranger := dial(t, n), dial(t, n)
	c.askAll(step{"AUTH " + apitest.SlotsToken, "+OK"})
	stranger.send(words("PING"))
	if got, want := stranger.rest(), "-NOAUTH Authentication required.\r\n"; got != want {
		t.Fatalf("a stranger: got %q, want %q", got, want)
	}

	// Pools of connections do this again and again.
	for range 2 * maxStrangerCommands {
		c.askAll(step{"RESET", "+RESET"}, step{"AUTH " + apitest.SlotsToken, "+OK"})
	}

	// The connection is older than what a stranger may be.
	c.askAll(
		step{"RESET", "+RESET"},
		step{"PING", "-NOAUTH Authentication required."},
		step{"AUTH " + apitest.SlotsToken, "+OK"},
		step{"PING", "+PONG"},
	)
}

// Without a valid token, there are 10 arguments, 16 KiB, 16 commands and 10
// seconds (here: two).
func TestHostile_Strangers(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { apitest.TheirTokens(c); c.Timeout = 2 * time.Second })
	const noAuth = "-NOAUTH Authentication required.\r\n"
	for _, test := range []struct{ send, want string }{
		{"*11\r\n", "-ERR Protocol error: unauthenticated multibulk length\r\n"},
		{"*2\r\n$16385\r\n", "-ERR Protocol error: unauthenticated bulk length\r\n"},
		{array("AUTH", strings.Repeat("x", 9000), strings.Repeat("x", 9000)),
			"-ERR Protocol error: unauthenticated bulk length\r\n"},
		{strings.Repeat(words("PING"), 100), strings.Repeat(noAuth, maxStrangerCommands)},
		{strings.Repeat("PING\n", 3), strings.Repeat(noAuth, 3)},
		{strings.Repeat(words("HELLO 9"), 100), strings.Repeat("-NOPROTO unsupported protocol version\r\n", maxStrangerCommands)},
		{strings.Repeat(words("AUTH a b c"), 100), strings.Repeat("-ERR syntax error\r\n", maxStrangerCommands)},
		{strings.Repeat("*0\r\n", 100) + words("PING"), ""},
		{"", ""},
		{"*1\r\n", ""},
	} {
		c := dial(t, n)
		c.send(test.send)
		expect.Equal(t, c.rest(), test.want, "%.40q", test.send)
	}

	c := dial(t, n)
	c.send(words("AUTH " + apitest.SlotsToken))
	c.send(array("ECHO", strings.Repeat("x", 20_000)))
	if got, want := c.reply()+c.reply(), `+OK"`+strings.Repeat("x", 20_000)+`"`; got != want {
		t.Errorf("with a token: got %.60s", got)
	}
	time.Sleep(2500 * time.Millisecond) // longer than a stranger may wait
	c.askAll(step{"PING", "+PONG"})
}

// A command whose end does not come is charged for while it waits, and ends in
// time; the rest of the door goes on.
func TestHostile_HalfSent(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.Timeout = 2 * time.Second })
	const half = 60_000
	var held []*client
	for range 20 {
		c := dial(t, n)
		c.send(fmt.Sprintf("*2\r\n$4\r\nECHO\r\n$%d\r\n", half+100) + strings.Repeat("x", half))
		held = append(held, c)
	}
	apitest.Until(t, "what has arrived is charged", func() bool { return n.Budget.Used() > 20*half })
	dial(t, n).askAll(step{"CL.THROTTLE k 1 1 3600", "[0 2 1 -1 3600]"})
	for _, c := range held {
		expect.Equal(t, c.rest(), "", "a command that has not arrived is answered by")
	}
	apitest.Until(t, "nothing is charged", func() bool { return n.Budget.Used() == 0 })
}

// When the budget is used up, half-sent commands of strangers end, and others' go on.
func TestHostile_HalfSentByMany(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { apitest.TheirTokens(c) })
	for i := range 600 {
		c := dialFrom(t, n, fmt.Sprintf("127.0.7.%d", i%8+1))
		// it may be closed already
		_, _ = io.WriteString(c, "*2\r\n$4\r\nAUTH\r\n$16000\r\n"+strings.Repeat("x", 15_000))
	}
	c := dial(t, n)
	c.askAll(step{"AUTH " + apitest.SlotsToken, "+OK"})
	c.send(array("ECHO", strings.Repeat("x", 50_000)))
	expect.Equal(t, c.reply(), `"`+strings.Repeat("x", 50_000)+`"`, "c.reply()")
	if used := n.Budget.Used(); used > 20<<20 {
		t.Errorf("%d bytes are charged", used)
	}
}

// A caller that does not read its replies is not read from, holds a bounded
// amount, and is cut off. Others don't wait.
func TestHostile_SlowReader(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	c := dial(t, n)
	sent := make(chan int, 1)
	go func() {
		command := []byte(strings.Repeat(array("ECHO", strings.Repeat("x", 1000)), 16))
		total := 0
		for {
			m, err := c.Write(command)
			if total += m; err != nil {
				sent <- total
				return
			}
		}
	}()
	apitest.Until(t, "the caller does not read", func() bool { return n.Budget.Used() > 0 })
	other := dial(t, n)
	for range 100 {
		other.askAll(step{"PING", "+PONG"})
	}
	if used := n.Budget.Used(); used > 1<<20 {
		t.Errorf("%d bytes are charged for one caller", used)
	}
	total := <-sent // it is cut off after 5 seconds
	if total > 32<<20 {
		t.Errorf("the node took %d bytes of a caller that reads nothing", total)
	}
	apitest.Until(t, "nothing is charged", func() bool { return n.Budget.Used() == 0 })
}

// Connections that come and go leave nothing behind.
func TestHostile_ManyConnections(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	count := 2000
	if *hostileCommands > 0 {
		count = 10_000
	}
	count = min(count, api.MaxFiles()/4)
	before := runtime.NumGoroutine()
	var all []*client
	for i := range count {
		c := dialFrom(t, n, fmt.Sprintf("127.0.8.%d", i%16+1))
		if i%3 == 0 {
			c.send(words("CL.THROTTLE k 999999 1 3600"))
		} else if i%3 == 1 {
			c.send("*3\r\n$1\r\n")
		}
		all = append(all, c)
	}
	dial(t, n).askAll(step{"PING", "+PONG"})
	for _, c := range all {
		_ = c.Close()
	}
	apitest.Until(t, "all connections and goroutines are gone", func() bool {
		open, _ := n.server.conns.Count()
		return open <= 1 && runtime.NumGoroutine() < before+100 && n.Budget.Used() == 0
	})
}

// The door shares its places with the data plane: who is too much may only learn that.
func TestHostile_Places(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.MaxConnections = 64; apitest.TheirTokens(c) })
	var held []*client
	for i := range 63 {
		c := dialFrom(t, n, fmt.Sprintf("127.0.1.%d", i%2+1))
		c.askAll(step{"AUTH " + apitest.SlotsToken, "+OK"})
		held = append(held, c)
	}
	c := dial(t, n)
	c.send(words("PING"))
	expect.Equal(t, c.rest(), "-ERR max number of clients reached\r\n", "one too many")
	for _, c := range held {
		c.askAll(step{"PING", "+PONG"})
	}
	_ = held[0].Close()
	apitest.Until(t, "a place is free", func() bool {
		c := dial(t, n)
		defer c.Close()
		c.send(words("AUTH " + apitest.SlotsToken))
		got, err := readReply(c.r)
		return err == nil && got == "+OK"
	})
}

// Strangers that hold all places give way to callers with a token.
func TestHostile_StrangersGiveWay(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.MaxConnections = 64; apitest.TheirTokens(c) })
	for i := range 200 {
		dialFrom(t, n, fmt.Sprintf("127.0.4.%d", i%4+1))
	}
	for i := range 20 {
		c := dialFrom(t, n, fmt.Sprintf("127.0.5.%d", i+1))
		c.askAll(step{"AUTH " + apitest.SlotsToken, "+OK"}, step{"PING", "+PONG"})
	}
}

// When the node stops, commands in progress are answered, idle connections end,
// and nothing is decided without an answer.
func TestDrain(t *testing.T) {
	t.Parallel()
	n, runs := startWatched(t, nil)
	idle := dial(t, n)
	idle.askAll(step{"PING", "+PONG"})
	silent := dial(t, n)
	busy := dial(t, n)
	busy.askAll(step{"PING", "+PONG"})
	runs.mu.Lock()
	runs.hold = make(chan struct{})
	runs.mu.Unlock()
	busy.send(words("CL.THROTTLE k 1 1 3600"))
	apitest.Until(t, "the check is being decided", func() bool {
		runs.mu.Lock()
		defer runs.mu.Unlock()
		return len(runs.runs) == 1
	})

	closed := make(chan error, 1)
	go func() { closed <- n.Close(t.Context()) }()
	if !idle.ended() || !silent.ended() {
		t.Error("idle connections stay open")
	}
	select {
	case err := <-closed:
		t.Errorf("the node closed (%v) before it had answered", err)
	default:
	}
	close(runs.hold)
	expect.Equal(t, busy.reply(), "[0 2 1 -1 3600]", "a check in progress")
	if !busy.ended() {
		t.Error("the connection stays open after the last reply")
	}
	_ = busy.Close()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// A panic in a handler closes its connection with an error that reveals nothing.
func TestPanic(t *testing.T) {
	t.Parallel()
	n, runs := startWatched(t, nil)
	runs.Decider = nil
	c := dial(t, n)
	c.send(words("CL.THROTTLE k 1 1 1") + words("PING"))
	if got, want := c.rest(), "-ERR internal something went wrong; the node's log says what\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	expect.Equal(t, n.Panics.Load(), 1, "panics are counted")
}

// With a certificate, the door speaks TLS, and nothing else.
func TestTLS(t *testing.T) {
	t.Parallel()
	certificate, key := testca.WritePair(t, t.TempDir(), "one")
	n := startNode(t, func(c *apitest.Config) { c.CertFile, c.KeyFile = certificate, key })
	pem, err := os.ReadFile(certificate)
	expect.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	c := dialTLS(t, n, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"})
	c.askAll(step{"PING", "+PONG"}, step{"CL.THROTTLE k 1 1 3600", "[0 2 1 -1 3600]"})
	text := strings.Repeat("x", 50_000)
	c.send(array("ECHO", text) + words("PING") + strings.Repeat(words("CL.THROTTLE k2 999 1 3600"), 500))
	expect.Equal(t, c.reply()+c.reply(), `"`+text+`"+PONG`, "a long command")
	for range 500 {
		if got := c.reply(); !strings.HasPrefix(got, "[0 1000 ") {
			t.Fatalf("got %s", got)
		}
	}
	plain := dial(t, n)
	plain.send(words("PING"))
	if _, err := readReply(plain.r); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("without TLS: got %v", err)
	}
}
