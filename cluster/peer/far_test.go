package peer

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/testca"
	"github.com/rlnode/rlnode/ring"
)

// inRegion puts a node into a region and a cluster. It accepts calls from all
// other regions; far counts them.
func inRegion(region string, cluster byte, far *atomic.Int64) option {
	return func(c *Config, n *node) {
		withCluster(cluster)(c, n)
		n.self.Region = region
		c.AcceptFar = func(Identity) error { return nil }
		n.fromFar = far
	}
}

func (n *node) knowsFar(others ...*node) {
	nodes := make(map[ring.NodeID]string)
	for _, o := range others {
		nodes[o.id] = o.address
	}
	n.SetFarNodes(nodes)
}

func TestFarCallsReachFarHandlersOnly(t *testing.T) {
	onBothNetworks(t, func(t *testing.T, w *world) {
		var far atomic.Int64
		a, b, c := w.node(1, inRegion("eu", 1, &far)), w.node(2, inRegion("us", 2, &far)), w.node(3,
			inRegion("eu", 1, &far))
		a.knows(c)
		a.knowsFar(b)
		b.knowsFar(a)
		w.connected(a, b)
		w.connected(b, a)
		w.connected(a, c)
		w.echo(a, b, "over there")
		w.echo(b, a, "and back")
		expect.Equal(t, far.Load(), 2, "Far handlers had calls")
		w.echo(a, c, "near")
		if have := far.Load(); have != 2 {
			t.Errorf("Far handlers had %d calls, want 2: a near one reached them", have)
		}
		if i, ok := a.Remote(b.id); !ok || i.Region != "us" {
			t.Errorf("have %+v, %v", i, ok)
		}
		a.knows() // does not affect far connections, and vice versa
		a.knowsFar(b)
		w.echo(a, b, "still there")
		a.SetFarNodes(nil)
		if a.Reachable(b.id) {
			w.until("the link is gone", func() bool { return !a.Reachable(b.id) })
		}
	})
}

// TestWhoIsRefusedWhere makes node 1, in region eu and cluster 1, dial other nodes in all ways.
func TestWhoIsRefusedWhere(t *testing.T) {
	var far atomic.Int64
	open := inRegion("us", 2, &far)
	for _, test := range []struct {
		name string
		to   option
		far  bool
		want string // in the dialling node's log; "": connected
	}{
		{name: "far to another region", to: open, far: true},
		{name: "near to another region", to: open, want: `it is in region "eu", but this node is in "us"`},
		{name: "near to another region of the same cluster", to: inRegion("us", 1, &far), want: `it is in region`},
		{name: "far to the own region", to: inRegion("eu", 1, &far), far: true,
			want: "connects as if it were in another"},
		{name: "far to the own region by name", to: inRegion("eu", 2, &far), far: true,
			want: "two clusters are called region"},
		{name: "near to the own region by name", to: inRegion("eu", 2, &far), want: "belongs to cluster"},
		{name: "far to one that knows of no regions", to: withCluster(2), far: true,
			want: "accepts no connections from other regions"},
		{name: "near to one that knows of no regions", to: withCluster(1)},
		{name: "far to one that takes none", to: func(c *Config, n *node) {
			open(c, n)
			c.AcceptFar = nil
		}, far: true, want: "accepts no connections from other regions"},
		{name: "far to one that refuses", to: func(c *Config, n *node) {
			open(c, n)
			c.AcceptFar = func(remote Identity) error { return fmt.Errorf("not %q", remote.Region) }
		}, far: true, want: "not \"eu"},
	} {
		t.Run(test.name, func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				a, b := w.node(1, inRegion("eu", 1, &far)), w.node(2, test.to)
				if test.far {
					a.knowsFar(b)
				} else {
					a.knows(b)
				}
				time.Sleep(10 * time.Second)
				if have := a.Reachable(b.id); have != (test.want == "") {
					t.Errorf("connected: %v\n%s", have, a.log)
				}
				if test.want == "" {
					return
				}
				if have := strings.Count(strings.ReplaceAll(a.log.String(), `\"`, `"`), test.want); have != 1 {
					t.Errorf("logged %d times, want %q once:\n%s", have, test.want, a.log)
				}
				if b.log.Count("refused") == 0 {
					t.Errorf("the other end logs nothing:\n%s", b.log)
				}
			})
		})
	}
}

func TestRaftStaysNear(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		var far atomic.Int64
		a, b := w.node(1, inRegion("eu", 1, &far)), w.node(2, inRegion("us", 1, &far))
		if _, err := a.Raft().Dial(b.address, time.Second); !errors.Is(err, ErrRefused) {
			t.Errorf("have %v, want %v", err, ErrRefused)
		}
		// A stranger that opens a far connection can't reach Raft, either.
		c := w.dialer()(b.address)
		if _, _, err := exchangePreambles(c, kindFar, Identity{Node: nodeID(9), Region: "ap"},
			supportedVersions); err != nil {
			t.Fatal(err)
		}
		taken := make(chan struct{})
		go func() {
			if _, err := b.Raft().Accept(); err == nil {
				close(taken)
			}
		}()
		time.Sleep(5 * time.Second)
		select {
		case <-taken:
			t.Error("Raft got a far connection")
		default:
		}
		_ = b.Raft().Close()
		synctest.Wait()
	})
}

// TestFarOverALongWay connects with TLS over a round trip of 300 ms, and breaks
// the link in all ways.
func TestFarOverALongWay(t *testing.T) {
	ca := testca.New(t, "all regions")
	for name, cut := range map[string]func(w *world, a, b *node){
		"cut":    func(w *world, a, b *node) { w.net.Cut(a.ip, b.ip) },
		"there":  func(w *world, a, b *node) { w.net.CutOneWay(a.ip, b.ip) },
		"back":   func(w *world, a, b *node) { w.net.CutOneWay(b.ip, a.ip) },
		"frozen": func(w *world, _, b *node) { w.net.Freeze(b.ip) },
	} {
		t.Run(name, func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				var far atomic.Int64
				w.net.Delay(150 * time.Millisecond)
				a := w.node(1, inRegion("eu", 1, &far), withTLS(loadTLS(t, ca)))
				b := w.node(2, inRegion("us", 2, &far), withTLS(loadTLS(t, ca)))
				a.knowsFar(b)
				b.knowsFar(a)
				began := time.Now()
				w.connected(a, b)
				w.connected(b, a)
				if have := time.Since(began); have > 2*time.Second {
					t.Errorf("connected after %v", have)
				}
				time.Sleep(time.Minute)
				if a.log.Count("lost") != 0 || !a.Reachable(b.id) || !b.Reachable(a.id) {
					t.Errorf("idle nodes lose each other:\n%s", a.log)
				}
				failed := make(chan error, 1)
				a.Go(b.id, methodNever, nil, time.Hour, func(_ []byte, err error) { failed <- err })
				time.Sleep(time.Second)
				cut(w, a, b)
				began = time.Now()
				err := <-failed
				if have := time.Since(began); !errors.Is(err, ErrUnreachable) ||
					errors.Is(err, ErrNotSent) || have < 1700*time.Millisecond ||
					have > 3500*time.Millisecond {
					t.Errorf("have %v after %v", err, have)
				}
				_, err = a.Call(t.Context(), b.id, methodEcho, nil)
				if !errors.Is(err, ErrUnreachable) || !errors.Is(err, ErrNotSent) {
					t.Errorf("have %v, want %v", err, ErrNotSent)
				}
				time.Sleep(20 * time.Second)
				w.net.HealAll()
				w.net.Thaw(b.ip)
				began = time.Now()
				w.connected(a, b)
				w.connected(b, a)
				if have := time.Since(began); have > 2500*time.Millisecond {
					t.Errorf("connected again after %v", have)
				}
				w.echo(a, b, "again")
			})
		})
	}
}

// TestNearComesBeforeFar: a node of this region is never called as if it were in another one.
func TestNearComesBeforeFar(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		var far atomic.Int64
		a, b := w.node(1, inRegion("eu", 1, &far)), w.node(2, inRegion("eu", 1, &far))
		a.knowsFar(b)
		time.Sleep(5 * time.Second)
		a.knows(b)
		w.connected(a, b)
		a.knowsFar(b)
		a.knowsFar()
		w.echo(a, b, "near")
		expect.Equal(t, far.Load(), 0, "far calls")
	})
}

// TestUnsentIsToldFromUnknown checks the errors of calls that fail before and after they were sent.
func TestUnsentIsToldFromUnknown(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		ended := make(chan error, 1)
		a.Go(b.id, methodNever, nil, time.Hour, func(_ []byte, err error) { ended <- err })
		w.net.Cut(a.ip, b.ip)
		if err := <-ended; !errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotSent) {
			t.Errorf("a call that was sent: have %v", err)
		}
		if _, err := a.Call(t.Context(), b.id, methodEcho, nil); !errors.Is(err, ErrUnreachable) ||
			!errors.Is(err, ErrNotSent) {
			t.Errorf("a call to a silent node: have %v", err)
		}
		_, err := a.Call(t.Context(), nodeID(9), methodEcho, nil)
		if !errors.Is(err, ErrUnreachable) || !errors.Is(err, ErrNotSent) {
			t.Errorf("a call to a stranger: have %v", err)
		}
		time.Sleep(10 * time.Second) // by then, the connection is closed
		if _, err := a.Call(t.Context(), b.id, methodEcho, nil); !errors.Is(err, ErrUnreachable) ||
			!errors.Is(err, ErrNotSent) {
			t.Errorf("a call without a connection: have %v", err)
		}
	})
}

// TestFarConnectionsLeaveRoom: any number of connections from other regions
// leaves room for near ones. Closed connections make room for new ones.
func TestFarConnectionsLeaveRoom(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		var far atomic.Int64
		a, b := w.node(1, inRegion("eu", 1, &far)), w.node(2, inRegion("eu", 1, &far))
		dial := w.dialer()
		refused := 0
		for i := range maxFar + 5 {
			synctest.Wait() // until it is handed over, because the number of half-open connections is bounded
			if _, _, err := exchangePreambles(dial(b.address), kindFar,
				Identity{Node: ring.NodeID{9, byte(i >> 8), byte(i)}, Region: "us"},
				supportedVersions); errors.Is(err, ErrRefused) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		expect.Equal(t, refused, 5, "refused")
		a.knows(b)
		w.connected(a, b)
		time.Sleep(2 * handshakeTime) // by then, the silent connections are closed
		if _, _, err := exchangePreambles(dial(b.address), kindFar,
			Identity{Node: ring.NodeID{9}, Region: "us"}, supportedVersions); err != nil {
			t.Errorf("have %v", err)
		}
	})
}
