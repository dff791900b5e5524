package regions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// TestNothingIsOpenedBeforeItIsTime: a node that is not an entry node listens
// nowhere, and a node that stops being one closes everything.
func TestNothingIsOpenedBeforeItIsTime(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(1)
		n := w.start(0, 2)
		free := func() bool {
			l, err := w.net.Host(n.ip).Listen(wanPort)
			if err == nil {
				l.Close()
			}
			return err == nil
		}
		if !free() {
			t.Error("the port is open before SetEntry")
		}
		for range 3 {
			n.setEntry(true)
			w.until(time.Second, "the port is open", func() bool { return !free() })
			w.until(5*time.Second, "others link to it", func() bool {
				return w.node(2, 1).peers.Reachable(n.id) && w.node(1, 1).peers.Reachable(n.id) &&
					n.peers.Reachable(w.node(1, 1).id)
			})
			if _, err := n.call(1, "as an entry node", time.Second); err != nil {
				t.Error(err)
			}
			n.setEntry(false)
			w.until(10*time.Second, "the port is closed", free)
			w.until(10*time.Second, "others have no link to it", func() bool {
				return !w.node(2, 1).peers.Reachable(n.id) && !w.node(1, 1).peers.Reachable(n.id) &&
					!n.peers.Reachable(w.node(1, 1).id)
			})
			if _, err := n.call(1, "passed on", time.Second); err != nil {
				t.Error(err)
			}
		}
		if have := w.node(2, 1).log.Count("no connection to a node"); have != 0 {
			t.Errorf("another node dials a node that has left, %d times:\n%s", have, w.node(2, 1).log)
		}
	})
}

// TestThePortIsTaken: the node logs it once, and keeps trying.
func TestThePortIsTaken(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(1)
		taken, err := w.net.Host("10.0.0.2").Listen(wanPort)
		expect.NoError(t, err)
		n := w.start(0, 2)
		n.setEntry(true)
		time.Sleep(time.Minute)
		if have := n.log.Count("--wan-port) can't be opened"); have != 1 {
			t.Errorf("logged %d times:\n%s", have, n.log)
		}
		if _, err := n.call(1, "passed on", time.Second); err != nil {
			t.Error(err)
		}
		taken.Close()
		w.until(10*time.Second, "it is in the pool", func() bool { return n.peers.Reachable(w.node(1, 1).id) })
	})
}

// TestEntryNodesOfARegionMeet: another region is configured with only one of
// them, which learns the rest in its own region.
func TestEntryNodesOfARegionMeet(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nobody := func(c *Config, _ *peer.Config) { c.Join = nil }
		for i := 1; i <= 3; i++ {
			w.start(0, i, nobody).setEntry(true)
		}
		w.start(1, 1, func(c *Config, _ *peer.Config) { c.Join = []string{"10.0.0.1"} }).setEntry(true)
		eu := w.node(1, 1)
		w.until(30*time.Second, "all are linked", func() bool {
			for i := 1; i <= 3; i++ {
				if n := w.node(0, i); !n.peers.Reachable(eu.id) || !eu.peers.Reachable(n.id) {
					return false
				}
			}
			return true
		})
		// A new entry node takes over, and the only configured one is dead.
		last := w.start(0, 4, nobody)
		w.until(15*time.Second, "it knows", func() bool { return last.pool.Load().Reachable("eu") })
		for i := 1; i <= 3; i++ {
			w.kill(w.node(0, i))
		}
		last.setEntry(true)
		have := w.until(10*time.Second, "it calls",
			func() bool { _, err := last.call(1, "x", time.Second); return err == nil })
		t.Logf("after %v", have)
	})
}

// TestRemembered: a restarted node finds the other regions without Config.Join.
func TestRemembered(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(2)
		n := w.node(0, 1)
		var remembered []string
		w.until(10*time.Second, "all are remembered", func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			remembered = slices.Clone(n.remembered)
			return len(remembered) == 5
		})
		w.kill(n)
		time.Sleep(time.Minute)
		n = w.start(0, 1, func(c *Config, _ *peer.Config) { c.Join, c.Remembered = nil, remembered })
		n.setEntry(true)
		w.until(10*time.Second, "it is back", func() bool { _, err := n.call(1, "x", time.Second); return err == nil })
	})
}

// TestABrokenLinkIsGoneAround: an entry node that can't reach a region calls it
// through another one of its own region.
func TestABrokenLinkIsGoneAround(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(2)
		n := w.node(0, 1)
		w.net.Cut(n.ip, w.node(1, 1).ip)
		w.net.Cut(n.ip, w.node(1, 2).ip)
		time.Sleep(4 * time.Second)
		if by, err := n.call(1, "around", time.Second); err != nil || w.timesServed("around") != 1 {
			t.Errorf("have %s, %v, served %d times", by, err, w.timesServed("around"))
		}
		if !n.pool.Load().Reachable("eu") {
			t.Error("Reachable says that eu can't be reached")
		}
		// A forwarded call is not forwarded again: with both nodes cut, no call goes in circles.
		w.net.Cut(w.node(0, 2).ip, w.node(1, 1).ip)
		w.net.Cut(w.node(0, 2).ip, w.node(1, 2).ip)
		time.Sleep(4 * time.Second)
		if _, err := n.call(1, "in circles", time.Second); !isAway(err) {
			t.Errorf("have %v", err)
		}
		w.until(5*time.Second, "it says so",
			func() bool { return !n.pool.Load().Reachable("eu") && n.pool.Load().Reachable("us") })
	})
}

func TestChangedIsSignalled(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(1)
		plain := w.start(0, 2)
		w.until(5*time.Second, "all know all", w.allReachable)
		time.Sleep(20 * time.Second)
		for _, n := range []*node{w.node(0, 1), plain} {
			select {
			case <-n.pool.Load().Changed():
			default:
			}
		}
		time.Sleep(time.Minute)
		heard := func(n *node, within time.Duration) bool {
			select {
			case <-n.pool.Load().Changed():
				return true
			case <-time.After(within):
				return false
			}
		}
		if heard(w.node(0, 1), 0) || heard(plain, 0) {
			t.Error("signalled although nothing has changed")
		}
		w.start(2, 2) // us has two nodes now
		for _, n := range []*node{w.node(0, 1), plain} {
			if !heard(n, 5*time.Second) {
				t.Errorf("%v: not signalled for more members", n)
			}
		}
		time.Sleep(5 * time.Second)
		w.net.Isolate(w.node(2, 1).ip)
		for _, n := range []*node{w.node(0, 1), plain} {
			if !heard(n, 5*time.Second) {
				t.Errorf("%v: not signalled for a region that can't be reached", n)
			}
		}
	})
}

func TestLeaveAndClose(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.startRegions(2)
		gone, stays := w.node(0, 1), w.node(0, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := gone.pool.Load().Leave(ctx); err != nil {
			t.Error(err)
		}
		gone.pool.Load().SetEntryNode(true) // no longer has any effect
		time.Sleep(10 * time.Second)
		if w.node(1, 1).peers.Reachable(gone.id) || !w.node(1, 1).peers.Reachable(stays.id) {
			t.Error("the node has not left, or the other one has")
		}
		if err := stays.pool.Load().Leave(ctx); err != nil {
			t.Error(err)
		}
		w.until(10*time.Second, "the region is no more",
			func() bool { return len(w.node(1, 1).pool.Load().Regions()) == 1 })
		began := time.Now()
		ended := make(chan error, 1)
		w.node(1, 1).pool.Load().Go("us", methodNever, nil, time.Minute, func(_ []byte, err error) { ended <- err })
		for range 2 {
			if err := w.node(1, 1).pool.Load().Close(); err != nil {
				t.Error(err)
			}
		}
		if err := <-ended; !errors.Is(err, peer.ErrUnreachable) {
			t.Errorf("have %v", err)
		}
		if _, err := w.node(1, 1).call(2, "x", time.Second); !errors.Is(err, ErrClosed) {
			t.Errorf("have %v, want %v", err, ErrClosed)
		}
		expect.ErrorIs(t, w.node(1, 1).pool.Load().Leave(ctx), ErrClosed, "w.node(1, 1).pool.Load().Leave(ctx)")
		if have := time.Since(began); have > time.Second {
			t.Errorf("closing took %v", have)
		}
	})
}

// TestNeverServedTwice breaks links and entry nodes, and makes some leave,
// while all nodes call. Each call is served at most once, not at all after
// ErrNoRoute, and exactly once if it was answered.
func TestNeverServedTwice(t *testing.T) {
	seeds := 3
	if testing.Short() {
		seeds = 1
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				random := rand.New(rand.NewPCG(seed, 5))
				w.startRegions(2)
				for r := range 3 {
					w.start(r, 3)
				}
				w.until(5*time.Second, "all know all", w.allReachable)
				var ended, answered, aways atomic.Int64
				began := 0
				for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond) {
					n := w.nodes[random.IntN(len(w.nodes))]
					r := random.IntN(3)
					if r == n.region {
						continue
					}
					began++
					body := fmt.Sprintf("%d", began)
					var once atomic.Bool
					n.pool.Load().Go(regionName(r), methodEcho, []byte(body), time.Second,
						func(reply []byte, err error) {
							ended.Add(1)
							if once.Swap(true) {
								t.Errorf("%s: done ran twice", body)
							}
							switch times := w.timesServed(body); {
							case err == nil && (times != 1 || !strings.HasSuffix(string(reply), " "+body)):
								t.Errorf("%s: answered %q, served %d times", body, reply, times)
							case err == nil:
								answered.Add(1)
							case isAway(err) && times != 0:
								t.Errorf("%s: %v, and was served", body, err)
							case isAway(err):
								aways.Add(1)
							}
						})
					w.disturb(random)
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if int(ended.Load()) != began || answered.Load() < int64(began/2) {
					t.Errorf("%d of %d calls ended, %d answered", ended.Load(), began, answered.Load())
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				for body, times := range w.served {
					if times > 1 {
						t.Errorf("%s was served %d times", body, times)
					}
				}
				t.Logf("%d calls, %d answered, %d certainly not sent", began, answered.Load(), aways.Load())
			})
		})
	}
}

// disturb occasionally breaks one thing, or repairs everything.
func (w *world) disturb(random *rand.Rand) {
	a, b := w.nodes[random.IntN(len(w.nodes))], w.nodes[random.IntN(len(w.nodes))]
	switch random.IntN(300) {
	case 0:
		w.net.Cut(a.ip, b.ip)
	case 1:
		w.net.CutOneWay(a.ip, b.ip)
	case 2:
		w.net.Isolate(a.ip)
	case 3:
		w.net.Freeze(a.ip)
	case 4, 5, 6:
		w.net.HealAll()
		for _, n := range w.nodes {
			w.net.Thaw(n.ip)
		}
	case 7:
		a.setEntry(!a.entry)
	case 8:
		for _, n := range w.nodes {
			n.setEntry(n.i != 3)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		peers := w.start(0, 1).peers
		for name, change := range map[string]func(*Config){
			"fine":          nil,
			"no peers":      func(c *Config) { c.Peers = nil },
			"no region":     func(c *Config) { c.Self.Region = "" },
			"no key":        func(c *Config) { c.Keyring = &memberlist.Keyring{} },
			"a bad seed":    func(c *Config) { c.Join = []string{":7948"} },
			"no address":    func(c *Config) { c.Advertise = "" },
			"a long region": func(c *Config) { c.Self.Region = strings.Repeat("r", 101) },
			"a bad primary": func(c *Config) { c.Primary = "a\nb" },
			"a bad port":    func(c *Config) { c.Port = 70000 },
		} {
			c := Config{
				Self:    Node{ID: ring.NodeID{1}, Boot: 1, Name: "n1", Region: "eu", PeerPort: 1},
				Primary: "eu", Advertise: "127.0.0.1", Port: wanPort,
				Peers: peers, Logger: slog.New(slog.DiscardHandler),
			}
			if change != nil {
				change(&c)
			}
			p, err := Open(c)
			if (err == nil) != (change == nil) {
				t.Errorf("%s: have %v", name, err)
			}
			if err == nil {
				p.Close()
			}
		}
	})
}
