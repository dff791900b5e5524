package node

import (
	"bufio"
	"cmp"
	"fmt"
	"net"
	"strconv"
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

// Whichever node of three each command goes to, the replies are those of one
// node, while time passes.
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
	p := newRedisCluster(t, v.Rules)
	clients := p.dialRedis()

	// Whole nodes take too long for hours: their clocks are set then, and stand
	// still from there on.
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
}

// newRedisCluster starts three nodes that speak the Redis protocol. Messages
// take no time, so a reply belongs to the moment at which its command was sent.
func newRedisCluster(t *testing.T, rules string) *testCluster {
	space := newTestNetwork(t)
	space.net.Delay(0)
	p := space.newCluster("default", "default", 0)
	p.redis = true
	p.startNodes(3, cmp.Or(rules, "version: 1\nrules: []\n"))
	p.awaitWhole()
	return p
}

// dialRedis connects to each node.
func (p *testCluster) dialRedis() (clients []*redisClient) {
	p.t.Helper()
	for _, n := range p.nodes {
		conn, err := p.net.Host("10.0.9.9").Dial(p.t.Context(), n.settings.RedisAddr)
		expect.NoError(p.t, err)
		clients = append(clients, newRedisClient(p.t, conn))
	}
	return clients
}

// What keys hold, and that they are gone, outlives restarts of all nodes. Each node says so.
func TestRedisKeysAfterRestartsInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const keys = 12 // so that each node owns some
		p := newRedisCluster(t, "")
		begun := time.Now()
		everywhere := func(what, command string, isRight func(reply string) bool) {
			t.Helper()
			for i, c := range p.dialRedis() {
				for key := range keys {
					if got := c.ask(fmt.Sprintf(command, key)); !isRight(got) {
						t.Errorf("%s, node %d: key %d: %s: got %s", what, i, key, command, got)
					}
				}
			}
		}
		is := func(want string) func(string) bool { return func(got string) bool { return got == want } }

		everywhere("before", "CL.THROTTLE key%d 4 3 10800",
			func(got string) bool { return strings.HasPrefix(got, "[0 5 ") })
		everywhere("before", "INCREX key%d UBOUND 9 EX 14400 ENX",
			func(got string) bool { return strings.HasSuffix(got, " 1]") })
		p.restartAll()
		left := (4*time.Hour - time.Since(begun)).Milliseconds()
		everywhere("after restarts", "PTTL key%d", func(got string) bool {
			ms, err := strconv.ParseInt(got, 10, 64)
			return err == nil && ms >= left && ms <= left+500 // a counter's time may stand still while it moves
		})
		everywhere("after restarts", "INCREX key%d BYINT 0 UBOUND 9 EX 14400 ENX", is("[3 0]"))

		one := p.dialRedis()[1]
		for key := range keys {
			expect.Equal(t, one.ask(fmt.Sprintf("DEL key%d", key)), "1", "key %d: DEL", key)
		}
		p.restartAll()
		everywhere("after DEL and restarts", "EXISTS key%d", is("0"))
		everywhere("after DEL and restarts", "CL.THROTTLE key%d 4 3 10800 0", is("[0 5 5 -1 0]"))
	})
}

// HTTP reaches the counters of the commands, and the other way round.
func TestRedisSharesItsCountersWithHTTP(t *testing.T) {
	t.Parallel()
	n := startReady(t,
		Config{Rules: []byte(exactRules(3)), DataAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
			RedisAddr: "127.0.0.1:0"})
	c := dialRedis(t, n)
	const bucket, window = `{"limit": 5, "per": "5h", "algorithm": "token-bucket"}`, `{"limit": 5, "per": "5h", "algorithm": "fixed-window", "from": "first"}`
	for _, one := range []struct{ namespace, limit, command, first, third string }{
		{"cl", bucket, "CL.THROTTLE k 4 5 18000", "[0 5 4 -1 3600]", "[0 5 2 -1 10800]"},
		{"throttle", bucket, "THROTTLE k 5 5 18000", "[1 5 4 3600 0]", "[1 5 2 10800 0]"},
		{"increx", window, "INCREX k UBOUND 5 EX 18000 ENX", "[1 1]", "[3 1]"},
	} {
		expect.Equal(t, c.ask(one.command), one.first, "%s", one.command)
		body := fmt.Sprintf(`{"namespace": %q, "key": "k", "limits": [%s], "consistency": "exact"}`,
			one.namespace, one.limit)
		status, text := ask(t, "POST", "http://"+n.DataAddr().String()+"/v1/check", body)
		if status != 200 || !strings.Contains(text, `"used":2,`) || !strings.Contains(text, `"decided_by":"owner"`) {
			t.Errorf("%s: got %d %s", body, status, text)
		}
		expect.Equal(t, c.ask(one.command), one.third, "%s after HTTP", one.command)
	}

	_, text := ask(t, "GET", "http://"+n.AdminAddr().String()+"/metrics", "")
	for _, want := range []string{`rlnode_requests_total{door="redis"} 6`, `rlnode_requests_total{door="data"} 3`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the metrics have no %s", want)
		}
	}
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
