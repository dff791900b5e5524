package node

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	t.Cleanup(func() { _ = conn.Close() })
	return &redisClient{t: t, conn: conn, r: bufio.NewReader(conn)}
}

// send sends commands, whose words are separated by blanks.
func (c *redisClient) send(commands ...string) {
	c.t.Helper()
	var b strings.Builder
	for _, command := range commands {
		words := strings.Fields(command)
		fmt.Fprintf(&b, "*%d\r\n", len(words))
		for _, word := range words {
			fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
		}
	}
	if _, err := c.conn.Write([]byte(b.String())); err != nil {
		c.t.Error(err)
	}
}

// numbers reads a reply of five numbers, as text.
func (c *redisClient) numbers() string {
	c.t.Helper()
	var list []string
	for range 6 {
		line, err := c.r.ReadString('\n')
		if err != nil {
			c.t.Error(err)
			return ""
		}
		list = append(list, strings.Trim(line, ":\r\n"))
	}
	return strings.Join(list[1:], " ")
}

// The vectors of CL.THROTTLE are the same whichever node each command goes to, and over all nodes exactly as many pass as may.
func TestCellThrottle_OverThreeNodes(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t, 3, exactRules(3), func(_ int, c *Config) { c.RedisAddr = "127.0.0.1:0" })
	clients := make([]*redisClient, len(nodes))
	for i, n := range nodes {
		clients[i] = dialRedis(t, n)
	}
	vectors := []struct{ command, want string }{
		{"4 5 18000 6", "1 5 5 -1 0"},
		{"4 5 18000", "0 5 4 -1 3600"},
		{"4 5 18000", "0 5 3 -1 7200"},
		{"4 5 18000 1", "0 5 2 -1 10800"},
		{"4 5 18000", "0 5 1 -1 14400"},
		{"4 5 18000 0", "0 5 1 -1 14400"},
		{"4 5 18000", "0 5 0 -1 18000"},
		{"4 5 18000", "1 5 0 3600 18000"},
	}
	for key := range 30 { // so that each node owns some
		for i, v := range vectors {
			c := clients[(key+i)%len(clients)]
			c.send(fmt.Sprintf("CL.THROTTLE key%d %s", key, v.command))
			expect.Equal(t, c.numbers(), v.want, "key %d, command %d (%s)", key, i, v.command)
		}
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
				if strings.HasPrefix(c.numbers(), "0 ") {
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
