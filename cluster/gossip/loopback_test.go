package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/internal/expect"
)

// Three nodes on real sockets, with short intervals.
func TestOverLoopback(t *testing.T) {
	var nodes []*Gossip
	var seeds []string
	for i := 1; i <= 3; i++ {
		g, err := Open(Config{
			Self: Member{ID: id(i), Name: fmt.Sprintf("n%d", i)}, BindAddr: "127.0.0.1",
			Join: seeds, Keyring: keyring(make([]byte, 32)),
			ProbeInterval: 100 * time.Millisecond, ProbeTimeout: 50 * time.Millisecond,
			GossipInterval: 20 * time.Millisecond,
			RejoinInterval: 100 * time.Millisecond, Logger: slog.New(&journal{}),
		})
		expect.NoError(t, err)
		defer g.Close()
		nodes, seeds = append(nodes, g), []string{nodes0(nodes, g).self.gossipAddress().String()}
	}
	sees := func(g *Gossip, want string) func() bool {
		return func() bool { return (&node{Gossip: g}).summary() == want }
	}
	for _, g := range nodes {
		until(t, 20*time.Second, "all find each other", sees(g, summaryOf(3, nil)))
	}
	expect.NoError(t, nodes[0].Update(func(m *Member) { m.BootstrapExpect = 3 }))
	until(t, 20*time.Second, "an update arrives", func() bool { return nodes[2].Members()[0].BootstrapExpect == 3 })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := nodes[1].Leave(ctx); err != nil {
		t.Error(err)
	}
	until(t, 20*time.Second, "one has left", sees(nodes[2], summaryOf(3, map[int]State{2: Left})))
	// Close does not wait for a stranger's connection.
	c, err := net.Dial("tcp", nodes[0].self.gossipAddress().String())
	expect.NoError(t, err)
	defer c.Close()
	for range 2 {
		if err := nodes[0].Close(); err != nil {
			t.Error(err)
		}
	}
	until(t, 20*time.Second, "one has failed", sees(nodes[2], summaryOf(3, map[int]State{1: Failed, 2: Left})))
	if err := nodes[0].Update(func(*Member) {}); !errors.Is(err, ErrClosed) {
		t.Errorf("Update after Close: have error %v", err)
	}
}

// nodes0 returns the first of nodes, or g if there is none yet.
func nodes0(nodes []*Gossip, g *Gossip) *Gossip {
	if len(nodes) > 0 {
		return nodes[0]
	}
	return g
}

func TestAPortThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	defer l.Close()
	_, err = Open(Config{Self: Member{ID: id(1), Name: "n"}, BindAddr: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port})
	if err == nil {
		t.Error("no error")
	}
}

// A seed's name is resolved at each attempt, and a seed that can't be resolved
// or joined is retried.
func TestNamesAreResolvedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(2)
		var tries atomic.Int32
		w.start(3, func(c *Config) {
			c.Join = []string{"nodes.example"}
			c.Lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
				switch n := tries.Add(1); {
				case host != "nodes.example":
					return nil, fmt.Errorf("unexpected name %q", host)
				case n < 8:
					return nil, errors.New("no such host")
				case n < 10:
					return []netip.Addr{netip.MustParseAddr(ip(77))}, nil
				}
				return []netip.Addr{netip.MustParseAddr(ip(3)), netip.MustParseAddr("::ffff:10.0.0.2")}, nil
			}
		})
		took := w.agree(3*time.Minute, "2 alive, 3 alive")
		t.Logf("took %v and %d tries", took, tries.Load())
		expect.Equal(t, w.nodes[3].log.count(slog.LevelInfo, "can't be joined"), 1,
			"lines about a node that can't be joined")
	})
}

func TestTooManyStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(1)
		var open []net.Conn
		for i := range maxStreams + 10 {
			host := w.net.Host(ip(9))
			if i >= maxStreamsFrom+5 { // 5 more than one address may have
				host = w.net.Host(ip(10))
			}
			c, err := host.Dial(t.Context(), ip(1)+":7946")
			expect.NoError(t, err)
			open = append(open, c)
			synctest.Wait()
		}
		closed := 0
		for _, c := range open {
			c.SetReadDeadline(time.Now().Add(time.Millisecond))
			var e net.Error
			if _, err := c.Read(make([]byte, 1)); !(errors.As(err, &e) && e.Timeout()) {
				closed++
			}
		}
		if closed != 10 {
			t.Errorf("have %d streams closed, want 10: 5 of one address, and 5 of all", closed)
		}
		for _, c := range open {
			c.Close()
		}
		w.start(2)
		w.agree(20*time.Second, summaryOf(2, nil))
	})
}

// keyring returns a keyring with one key.
func keyring(key []byte) *memberlist.Keyring {
	k, err := memberlist.NewKeyring(nil, key)
	if err != nil {
		panic(err)
	}
	return k
}

// ringOf is keyring, or nil without a key.
func ringOf(key []byte) *memberlist.Keyring {
	if len(key) == 0 {
		return nil
	}
	return keyring(key)
}
