package httpd

import (
	"flag"
	"net"
	"os"
	"testing"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// TestMain lets more tests go on at once than there are processors: most of the time they wait.
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "8")
	os.Exit(apitest.Main(m, apitest.DataCodes...))
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
	n.Node = apitest.Start(t, change, func(d *api.Doors, c apitest.Config) (_ apitest.DataPlane, err error) {
		n.server, err = Open(d, Config{Addr: "127.0.0.1:0", ReadTimeout: c.ReadTimeout, Tracer: c.Tracer})
		return n.server, err
	})
	return n
}

// open returns how many connections of the data plane are open.
func (n *node) open() int {
	open, _ := n.server.conns.Count()
	return open
}

// single is a listener that accepts one connection.
type single struct {
	net.Listener
	conn net.Conn
}

func (s single) Accept() (net.Conn, error) { return s.conn, nil }

// track adds c to conns.
func track(t testing.TB, conns *api.Connections, c net.Conn) *api.Connection {
	t.Helper()
	one, err := conns.Listen(single{conn: c}).Accept()
	expect.NoError(t, err)
	return one.(*api.Connection)
}
