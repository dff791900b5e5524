package resp

import (
	"bufio"
	"crypto/tls"
	"flag"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// TestMain lets more tests go on at once than there are processors: most of the time they wait.
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "8")
	os.Exit(apitest.Main(m))
}

// node is a node under test.
type node struct {
	*apitest.Node
	server *Server
}

// startNode starts a node on free ports. It is ready unless change, which may
// be nil, says otherwise.
func startNode(t testing.TB, change func(*apitest.Config)) *node {
	t.Helper()
	n := &node{}
	n.Node = apitest.Start(t, change, func(d *api.Doors, config apitest.Config) (_ apitest.DataPlane, err error) {
		n.server, err = Open(d, Config{Addr: "127.0.0.1:0", Tracer: config.Tracer})
		return n.server, err
	})
	return n
}

// client is a connection to the door.
type client struct {
	net.Conn
	t testing.TB
	r *bufio.Reader
}

// dial connects to n.
func dial(t testing.TB, n *node) *client {
	t.Helper()
	return dialFrom(t, n, "127.0.0.1")
}

// dialFrom connects to n from an address.
func dialFrom(t testing.TB, n *node, from string) *client {
	t.Helper()
	return newClient(t, apitest.DialFrom(t, from, n.server.Addr().String()))
}

func newClient(t testing.TB, conn net.Conn) *client {
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return &client{Conn: conn, t: t, r: bufio.NewReader(conn)}
}

// dialTLS connects to n over TLS.
func dialTLS(t testing.TB, n *node, config *tls.Config) *client {
	t.Helper()
	conn, err := tls.Dial("tcp", n.server.Addr().String(), config)
	expect.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return newClient(t, conn)
}

var array, readReply = apitest.RedisArray, apitest.ReadRedisReply

// words splits a command at its blanks.
func words(command string) string { return array(strings.Fields(command)...) }

// send sends text.
func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatalf("send %.60q: %v", text, err)
	}
}

// ask sends a command, whose words are separated by blanks, and returns the reply as text.
func (c *client) ask(command string) string {
	c.t.Helper()
	c.send(words(command))
	return c.reply()
}

// reply reads a reply and returns it as text; see [apitest.ReadRedisReply].
func (c *client) reply() string {
	c.t.Helper()
	text, err := readReply(c.r)
	if err != nil {
		c.t.Fatalf("read a reply: %v", err)
	}
	return text
}

// ended reports whether the connection has ended without another reply.
func (c *client) ended() bool {
	_, err := c.r.ReadByte()
	return err != nil && !os.IsTimeout(err)
}
