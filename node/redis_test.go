package node

import (
	"bufio"
	"cmp"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// redisClient is a connection to a node's door for clients of Redis.
type redisClient struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func dialRedis(t *testing.T, n *Node) *redisClient {
	t.Helper()
	conn, err := net.Dial("tcp", n.RedisAddr().String())
	expect.NoError(t, err)
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return newRedisClient(t, conn)
}

func newRedisClient(t *testing.T, conn net.Conn) *redisClient {
	t.Cleanup(func() { _ = conn.Close() })
	return &redisClient{t: t, conn: conn, r: bufio.NewReader(conn)}
}

// send sends commands, whose words are separated by blanks.
func (c *redisClient) send(commands ...string) {
	c.t.Helper()
	var b strings.Builder
	for _, command := range commands {
		b.WriteString(apitest.RedisArray(strings.Fields(command)...))
	}
	if _, err := c.conn.Write([]byte(b.String())); err != nil {
		c.t.Error(err)
	}
}

// reply reads a reply as text; see [apitest.ReadRedisReply].
func (c *redisClient) reply() string {
	c.t.Helper()
	text, err := apitest.ReadRedisReply(c.r)
	if err != nil {
		c.t.Error(err)
	}
	return text
}

// ask sends a command and returns the reply.
func (c *redisClient) ask(command string) string {
	c.t.Helper()
	c.send(command)
	return c.reply()
}

// Whichever node of three each command goes to, the replies are those of one node, while time passes.
func TestRedisVectorsOverThreeNodes(t *testing.T) {
	t.Parallel()
	for _, v := range apitest.RedisVectors {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { runOverThreeNodes(t, &v) })
		})
	}
}

func runOverThreeNodes(t *testing.T, v *apitest.RedisVector) {
	space := newTestNetwork(t)
	space.net.Delay(0) // a reply belongs to the moment at which the command was sent
	p := space.newCluster("default", "default", 0)
	p.redis = true
	p.startNodes(3, cmp.Or(v.Rules, "version: 1\nrules: []\n"))
	p.awaitWhole()

	var clients []*redisClient
	for _, n := range p.nodes {
		conn, err := p.net.Host("10.0.9.9").Dial(t.Context(), n.settings.RedisAddr)
		expect.NoError(t, err)
		clients = append(clients, newRedisClient(t, conn))
	}

	// Whole nodes take too long for hours: their clocks are set then, and stand still from there on.
	start := time.Now().Truncate(10 * time.Second).Add(10 * time.Second)
	at := func(after time.Duration) {
		if after < time.Hour {
			time.Sleep(time.Until(start.Add(after)))
			return
		}
		for _, n := range p.nodes {
			n.node.clock.Set(start.Add(after).UnixNano())
		}
	}
	asked := 0
	v.Run(t, at, func(command string) string {
		asked++
		return clients[asked%len(clients)].ask(command)
	})

	p.checkOwnership()
	p.stopNodes()
}

// Over all nodes exactly as many calls pass as may.
func TestCellThrottle_OverThreeNodes(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t, 3, exactRules(3), func(_ int, c *Config) { c.RedisAddr = "127.0.0.1:0" })
	clients := make([]*redisClient, len(nodes))
	for i, n := range nodes {
		clients[i] = dialRedis(t, n)
	}

	const calls, allowed = 300, 500
	var passed atomic.Int64
	var wait sync.WaitGroup
	for _, c := range clients {
		wait.Go(func() {
			var commands []string
			for range calls {
				commands = append(commands, fmt.Sprintf("CL.THROTTLE shared %d 1 1000000", allowed-1))
			}
			c.send(commands...)
			for range calls {
				if strings.HasPrefix(c.reply(), "[0 ") {
					passed.Add(1)
				}
			}
		})
	}
	wait.Wait()
	if got := passed.Load(); got != allowed {
		t.Errorf("%d of %d pipelined calls passed, want %d", got, len(clients)*calls, allowed)
	}
}
