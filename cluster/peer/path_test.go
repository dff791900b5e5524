package peer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// all starts n nodes that know each other.
func (w *world) all(n int, options ...option) []*node {
	w.t.Helper()
	var nodes []*node
	for i := range n {
		nodes = append(nodes, w.node(i+1, options...))
	}
	for _, a := range nodes {
		a.knows(nodes...)
	}
	for _, a := range nodes {
		for _, b := range nodes {
			if a != b {
				w.connected(a, b)
			}
		}
	}
	return nodes
}

// tally counts calls to a node by their outcome.
type tally struct {
	stop   atomic.Bool
	group  sync.WaitGroup
	ok     atomic.Int64
	failed atomic.Int64
	slow   atomic.Int64 // took more than 350 ms
}

func (n *node) keepCalling(to *node) *tally {
	l := &tally{}
	l.group.Go(func() {
		for !l.stop.Load() {
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := n.Call(ctx, to.id, methodEcho, []byte("hello"))
			cancel()
			if err != nil {
				l.failed.Add(1)
			} else {
				l.ok.Add(1)
			}
			if time.Since(began) > 350*time.Millisecond {
				l.slow.Add(1)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	return l
}

func (t *tally) end() {
	t.stop.Store(true)
	t.group.Wait()
}

// TestPathAroundABrokenLink: calls in both directions continue through a third
// node as soon as the link is silent, and directly again after the link has
// worked for five seconds.
func TestPathAroundABrokenLink(t *testing.T) {
	for name, cut := range map[string]func(w *world, a, b *node){
		"both ways": func(w *world, a, b *node) { w.net.Cut(a.ip, b.ip) },
		"one way":   func(w *world, a, b *node) { w.net.CutOneWay(a.ip, b.ip) },
	} {
		t.Run(name, func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				w.net.Delay(200 * time.Microsecond)
				nodes := w.all(3)
				a, b, c := nodes[0], nodes[1], nodes[2]
				time.Sleep(time.Second)
				there, back := a.keepCalling(b), b.keepCalling(a)
				time.Sleep(time.Second)
				cut(w, a, b)
				time.Sleep(400 * time.Millisecond)
				before := there.failed.Load() + back.failed.Load()
				if before > 2 { // the calls in flight
					t.Errorf("%d calls failed when the link broke", before)
				}
				for range 60 {
					if via, ok := a.Via(b.id); !ok || via != c.id || !a.Reachable(b.id) {
						t.Fatalf("have %v, %v", via, ok)
					}
					time.Sleep(time.Second)
				}
				if have := there.failed.Load() + back.failed.Load(); have != before {
					t.Errorf("%d calls failed meanwhile", have-before)
				}
				if bytes, tunnels := c.Relayed(); bytes == 0 || tunnels != 2 {
					t.Errorf("the relay has relayed %d bytes in %d tunnels", bytes, tunnels)
				}
				w.net.HealAll()
				time.Sleep(4 * time.Second)
				if _, ok := a.Via(b.id); !ok {
					t.Error("the direct connection is trusted too soon")
				}
				time.Sleep(8 * time.Second)
				if _, ok := a.Via(b.id); ok || !a.Reachable(b.id) {
					t.Error("the direct connection is not used again")
				}
				there.end()
				back.end()
				if have := there.failed.Load() + back.failed.Load(); have != before ||
					there.slow.Load()+back.slow.Load() > 0 {
					t.Errorf("%d calls failed, %d were slow", have-before, there.slow.Load()+back.slow.Load())
				}
				time.Sleep(5 * time.Second)
				if _, tunnels := c.Relayed(); tunnels != 0 {
					t.Errorf("%d tunnels are left", tunnels)
				}
			})
		})
	}
}

// TestPathWhenLinksBreakTogether: a node loses all links but one, one shortly
// after the other. So nodes whose own link is about to break, or just has,
// offer to be the relay. All find the one that reaches the node before it
// counts as silent.
func TestPathWhenLinksBreakTogether(t *testing.T) {
	for apart := time.Duration(0); apart <= 40*time.Millisecond; apart += 5 * time.Millisecond {
		t.Run(apart.String(), func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				leader := func(c *Config, _ *node) { c.Leader = func() ring.NodeID { return nodeID(1) } }
				w.net.Delay(200 * time.Microsecond)
				nodes := w.all(5, leader)
				time.Sleep(time.Second)
				relay, lost, others := nodes[0], nodes[1], nodes[2:]
				for _, n := range others {
					time.Sleep(apart)
					w.net.Cut(lost.ip, n.ip)
				}
				time.Sleep(defaultSilence + 60*time.Millisecond) // the pulse looks at silence each 50 ms
				for _, n := range others {
					if via, ok := n.Via(lost.id); !ok || via != relay.id {
						t.Errorf("%s reaches the node through %v, %v", n.ip, via, ok)
					}
					if via, ok := lost.Via(n.id); !ok || via != relay.id {
						t.Errorf("the node reaches %s through %v, %v", n.ip, via, ok)
					}
				}
			})
		})
	}
}

// TestPathWhenTheRelayGoes: when the relay dies, the link finds another one.
func TestPathWhenTheRelayGoes(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.all(4)
		a, b := nodes[0], nodes[1]
		w.net.Cut(a.ip, b.ip)
		w.until("there is a path", func() bool { _, ok := a.Via(b.id); return ok })
		first, _ := a.Via(b.id)
		for _, n := range nodes[2:] {
			if n.id == first {
				w.net.Isolate(n.ip)
			}
		}
		time.Sleep(time.Second)
		if second, ok := a.Via(b.id); !ok || second == first {
			t.Errorf("have %v, %v; the first was %v", second, ok, first)
		}
		w.echo(a, b, "goes on")
	})
}

// TestNoPathToTheDead: a node that no other node reaches is unreachable at
// once, and stays so. No node relays tunnels to it.
func TestNoPathToTheDead(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.all(5)
		w.net.Isolate(nodes[4].ip)
		time.Sleep(300 * time.Millisecond)
		for range 200 {
			began := time.Now()
			for _, n := range nodes[:4] {
				if _, err := n.Call(t.Context(), nodes[4].id, methodEcho, nil); !errors.Is(err, ErrUnreachable) {
					t.Fatalf("have %v", err)
				}
				if n.Reachable(nodes[4].id) {
					t.Fatal("a node that is cut off is reachable")
				}
			}
			if took := time.Since(began); took > 5*receivesFromTimeout {
				t.Fatalf("four calls took %v", took)
			}
			time.Sleep(100 * time.Millisecond)
		}
		for _, n := range nodes {
			if _, tunnels := n.Relayed(); tunnels != 0 {
				t.Errorf("%d tunnels", tunnels)
			}
		}
	})
}

// TestPathForRaft: Raft's connections use the same path as calls. Those over a
// broken link are closed at once.
func TestPathForRaft(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.all(3)
		a, b := nodes[0], nodes[1]
		dial := func() error {
			c, err := a.Raft().Dial(RaftAddress(b.id, b.address), time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			d, err := b.Raft().Accept()
			if err != nil {
				return err
			}
			defer d.Close()
			if _, err := c.Write([]byte("hello")); err != nil {
				return err
			}
			_, err = d.Read(make([]byte, 5))
			return err
		}
		expect.NoError(t, dial())
		old, err := a.Raft().Dial(RaftAddress(b.id, b.address), time.Second)
		expect.NoError(t, err)
		if _, err := b.Raft().Accept(); err != nil {
			t.Fatal(err)
		}
		w.net.Cut(a.ip, b.ip)
		began := time.Now()
		if _, err := old.Read(make([]byte, 1)); err == nil || time.Since(began) > 300*time.Millisecond {
			t.Errorf("the broken connection ended after %v: %v", time.Since(began), err)
		}
		w.until("there is a path", func() bool { _, ok := a.Via(b.id); return ok })
		if err := dial(); err != nil {
			t.Error(err)
		}
	})
}

// TestRaftDoesNotWaitForADeadPath: Raft's connections over a path end as soon as
// the path is silent: over a relay, over the next one, and over the direct path
// that is used meanwhile although it has just come back.
func TestRaftDoesNotWaitForADeadPath(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.all(4)
		a, b := nodes[0], nodes[1]

		connect := func() net.Conn {
			c, err := a.Raft().Dial(RaftAddress(b.id, b.address), time.Second)
			expect.NoError(t, err)
			_, err = b.Raft().Accept()
			expect.NoError(t, err)
			return c
		}
		endsSoon := func(path string, c net.Conn) {
			expect.NoError(t, c.SetReadDeadline(time.Now().Add(350*time.Millisecond)))
			_, err := c.Read(make([]byte, 1))
			if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the connection is open after 350 ms: %v", path, err)
			}
		}

		w.net.Cut(a.ip, b.ip)
		for _, path := range []string{"a relay", "the next relay"} {
			w.until("there is a path", func() bool { _, ok := a.Via(b.id); return ok })
			relay, _ := a.Via(b.id)
			c := connect()
			for _, n := range nodes[2:] {
				if n.id == relay {
					w.net.Isolate(n.ip)
				}
			}
			endsSoon(path, c)
		}

		w.net.Heal(a.ip, b.ip)
		w.until("the direct path is used", func() bool { return a.Reachable(b.id) })
		c := connect()
		w.net.Cut(a.ip, b.ip)
		endsSoon("the direct path", c)
	})
}

// TestRaftOfTheOtherSideStays: a can't dial b, but b can dial a. Raft's
// connections that b has made stay open, however often a tries.
func TestRaftOfTheOtherSideStays(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		address := ""
		a := w.node(1, func(c *Config, _ *node) {
			dial := c.Dial
			c.Dial = func(ctx context.Context, to string) (net.Conn, error) {
				if to == address {
					return nil, &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}
				}
				return dial(ctx, to)
			}
		})
		b, other := w.node(2), w.node(3)
		address = b.address
		a.knows(b, other)
		b.knows(a, other)
		other.knows(a, b)
		w.until("there is a path", func() bool { _, ok := a.Via(b.id); return ok && b.Reachable(a.id) })
		time.Sleep(5 * time.Second)

		c, err := b.Raft().Dial(RaftAddress(a.id, a.address), time.Second)
		expect.NoError(t, err)
		_, err = a.Raft().Accept()
		expect.NoError(t, err)
		expect.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = c.Read(make([]byte, 1))
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Raft's connection was closed: %v", err)
		}
	})
}

// TestPathIsUnsureUntilAllAreAsked: of many possible relays only one reaches the
// node. The path is unsure until that one is found, and Raft dials it then.
func TestPathIsUnsureUntilAllAreAsked(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.all(9)
		a, b := nodes[0], nodes[1]
		w.net.Cut(a.ip, b.ip)
		w.until("there is a path", func() bool { _, ok := a.Via(b.id); return ok })
		relay, _ := a.Via(b.id)

		// Of the others, one reaches b.
		var bridge *node
		for _, n := range nodes[2:] {
			switch {
			case n.id == relay:
			case bridge == nil:
				bridge = n
			default:
				w.net.Cut(n.ip, b.ip)
			}
		}
		time.Sleep(time.Second)
		w.until("it is still the relay", func() bool { now, ok := a.Via(b.id); return ok && now == relay })
		for _, n := range nodes[2:] {
			if n.id == relay {
				w.net.Crash(n.ip)
			}
		}

		for began := time.Now(); time.Since(began) < 450*time.Millisecond; time.Sleep(time.Millisecond) {
			if !a.Reachable(b.id) && !a.PathUnsure(b.id) {
				t.Fatalf("the node is taken for lost after %v", time.Since(began))
			}
		}
		now, _ := a.Via(b.id)
		expect.Equal(t, now, bridge.id, "the relay")
	})
}

// TestFlappingLink: each time a direct connection fails again, it takes longer until it is trusted.
func TestFlappingLink(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.all(3)
		a, b := nodes[0], nodes[1]
		var waits []time.Duration
		for range 4 {
			w.net.Cut(a.ip, b.ip)
			time.Sleep(2 * time.Second)
			w.net.HealAll()
			began := time.Now()
			for _, ok := a.Via(b.id); ok; _, ok = a.Via(b.id) {
				time.Sleep(100 * time.Millisecond)
			}
			waits = append(waits, time.Since(began))
		}
		for i := range waits[1:] {
			if waits[i+1] < waits[i]*3/2 {
				t.Errorf("have %v", waits)
			}
		}
		time.Sleep(2 * flapTime)
		w.net.Cut(a.ip, b.ip)
		time.Sleep(2 * time.Second)
		w.net.HealAll()
		time.Sleep(10 * time.Second)
		if _, ok := a.Via(b.id); ok {
			t.Error("old failures still count")
		}
	})
}

// onMessage calls do for each record with a message.
type onMessage struct {
	slog.Handler
	message string
	do      func()
}

func (h *onMessage) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.do()
	}
	return h.Handler.Handle(ctx, r)
}

// TestPathWhenADirectConnectionComesBackAndGoes: the direct connection is lost
// just when it is used again. The search for a relay then goes on at once.
func TestPathWhenADirectConnectionComesBackAndGoes(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		isBack := make(chan struct{})
		proceed := make(chan struct{})
		wait := sync.OnceFunc(func() { close(isBack); <-proceed })
		logged := func(c *Config, n *node) {
			if n.id == nodeID(1) {
				c.Logger = slog.New(&onMessage{slog.NewTextHandler(io.Discard, nil), "a node is reached directly again", wait})
			}
		}

		nodes := w.all(3, logged)
		a, b := nodes[0], nodes[1]
		w.net.Cut(a.ip, b.ip)
		w.until("there is a relay", func() bool { _, ok := a.Via(b.id); return ok })
		w.net.HealAll()
		<-isBack

		// The search has not ended yet.
		w.net.Cut(a.ip, b.ip)
		(*a.links.Load())[b.id].direct.Load().closeWithError(errors.New("the test breaks it"))
		close(proceed)

		time.Sleep(500 * time.Millisecond)
		_, ok := a.Via(b.id)
		expect.Equal(t, ok, true, "there is a relay")
	})
}

// TestNoPathForALinkThatHasEnded: a node that was lost, and is no member any more,
// is not searched for.
func TestNoPathForALinkThatHasEnded(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.all(3, withCluster(1))
		a, b := nodes[0], nodes[1]
		l := (*a.links.Load())[b.id]
		w.net.Cut(a.ip, b.ip)
		w.until("there is a relay", func() bool { _, ok := a.Via(b.id); return ok })
		a.SetNodes(map[ring.NodeID]string{nodes[2].id: nodes[2].address})
		for l.tunnelling.Load() { // until its search has ended
			time.Sleep(10 * time.Millisecond)
		}

		l.startTunnelling()
		expect.Equal(t, l.tunnelling.Load(), false, "a search is running")
	})
}

// TestRelaysAreSpread: with many broken links, no node relays all tunnels, and
// the leader relays none.
func TestRelaysAreSpread(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		const n, apart = 10, 6
		leader := func(c *Config, _ *node) { c.Leader = func() ring.NodeID { return nodeID(n) } }
		nodes := w.all(n, leader)
		for i := range apart {
			for j := range i {
				w.net.Cut(nodes[i].ip, nodes[j].ip)
			}
		}
		time.Sleep(2 * time.Second)
		var carried []int64
		for _, x := range nodes {
			_, tunnels := x.Relayed()
			carried = append(carried, tunnels)
		}
		most, sum := int64(0), int64(0)
		for _, c := range carried {
			most, sum = max(most, c), sum+c
		}
		if want := int64(apart * (apart - 1)); sum != want || most > want*2/3 || carried[n-1] != 0 {
			t.Errorf("have %v", carried)
		}
	})
}

// TestRelayIsForMembers: a relay refuses a tunnel for a node that it would not
// accept, for one that asks through a tunnel, and to a target that it does not
// know or does not receive data from.
func TestRelayIsForMembers(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.all(3, withCluster(1))
		a, b := nodes[0], nodes[1]
		stranger := Identity{Node: ring.NodeID{9}, Cluster: [16]byte{2}}
		if _, _, err := exchangePreambles(w.dialer()(a.address), kindTunnel, stranger,
			supportedVersions); !errors.Is(err, ErrRefused) {
			t.Errorf("another cluster: have %v", err)
		}
		member := Identity{Node: ring.NodeID{9}, Cluster: [16]byte{1}}
		if _, _, err := exchangePreambles(w.dialer()(a.address), kindTunnel|viaTunnel, member,
			supportedVersions); !errors.Is(err, ErrRefused) {
			t.Errorf("a tunnel through a tunnel: have %v", err)
		}
		if _, _, err := exchangePreambles(w.dialer()(a.address), kindFar|viaTunnel, member,
			supportedVersions); !errors.Is(err, ErrRefused) {
			t.Errorf("from another region through a tunnel: have %v", err)
		}
		ask := func(target ring.NodeID) byte {
			c := w.dialer()(a.address)
			if _, _, err := exchangePreambles(c, kindTunnel, member, supportedVersions); err != nil {
				t.Fatal(err)
			}
			answer := make([]byte, 1)
			if _, err := c.Write(target[:]); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(answer); err != nil {
				t.Fatal(err)
			}
			return answer[0]
		}
		expect.Equal(t, ask(ring.NodeID{77}), tunnelNotNow, "to an unknown node")
		expect.Equal(t, ask(b.id), tunnelOpen, "to a node")
		w.net.Isolate(b.ip)
		time.Sleep(200 * time.Millisecond)
		expect.Equal(t, ask(b.id), tunnelNotNow, "to a silent node")
	})
}

// TestTunnelsAreBounded: a tunnel beyond the bound is refused. Closed tunnels
// make room for new ones.
func TestTunnelsAreBounded(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.all(2)
		a, b := nodes[0], nodes[1]
		ask := func(i int) (byte, func() error) {
			c := w.dialer()(a.address)
			if _, _, err := exchangePreambles(c, kindTunnel,
				Identity{Node: ring.NodeID{9, byte(i >> 8), byte(i)}},
				supportedVersions); err != nil {
				t.Fatal(err)
			}
			answer := make([]byte, 1)
			_, _ = c.Write(b.id[:])
			if _, err := c.Read(answer); err != nil {
				t.Fatal(err)
			}
			return answer[0], c.Close
		}
		for i := range maxRelayed {
			if have, _ := ask(i); have != tunnelOpen {
				t.Fatalf("tunnel %d: have %d", i, have)
			}
		}
		if have, _ := ask(maxRelayed); have != tunnelNotNow {
			t.Errorf("a tunnel beyond the bound: have %d", have)
		}
		time.Sleep(handshakeTime + time.Second) // by then, the targets have closed all tunnels without a handshake
		synctest.Wait()
		if _, tunnels := a.Relayed(); tunnels != 0 {
			t.Errorf("%d tunnels are left", tunnels)
		}
		if have, _ := ask(0); have != tunnelOpen {
			t.Errorf("after the tunnels are closed: have %d", have)
		}
		w.echo(a, b, "goes on")
	})
}

// TestPathToAnotherProcess: a restarted node is called directly at once. While
// it was down, its link was not broken. A tunnel would end when the next node
// restarts, along with the calls in flight in it.
func TestPathToAnotherProcess(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		nodes := w.all(3)
		a, b, c := nodes[0], nodes[1], nodes[2]
		b.close(t)
		time.Sleep(2 * time.Second)
		w.net.Cut(a.ip, b.ip) // the other nodes connect first
		again := w.node(2, func(_ *Config, n *node) { n.self.Boot = 2 })
		again.knows(a, c)
		w.until("a reaches it", func() bool { _, ok := a.Via(b.id); return ok })
		w.net.HealAll()
		time.Sleep(1500 * time.Millisecond)
		if via, ok := a.Via(b.id); ok || !a.Reachable(b.id) {
			t.Errorf("the node is reached through %s", via)
		}
	})
}

// TestCloseAwaitsHandlers: when a node closes, what a handler has begun to serve is answered.
func TestCloseAwaitsHandlers(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		began, answer := make(chan struct{}), make(chan error, 1)
		b.handlers[Near][methodEcho] = func(c *Call) {
			close(began)
			time.Sleep(defaultSilence / 2) // the machine stands still
			c.Reply([]byte("counted"))
		}
		a.Go(b.id, methodEcho, nil, time.Minute, func(_ []byte, err error) { answer <- err })
		<-began
		b.close(t)
		if err := <-answer; err != nil {
			t.Error(err)
		}
	})
}

// TestCloseAnswersFirst: when a node closes, its callers still get every answer that it has given.
func TestCloseAnswersFirst(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		w.net.Delay(20 * time.Millisecond)
		a, b := w.pair()
		var answered, failed atomic.Int64
		for range 50 {
			a.Go(b.id, methodNever, nil, time.Second, func(_ []byte, err error) {
				if err == nil {
					answered.Add(1)
				} else {
					failed.Add(1)
				}
			})
		}
		w.until("all are there", func() bool { return len(b.kept()) == 50 })
		for _, c := range b.kept()[:40] {
			c.Reply([]byte("counted"))
		}
		// The caller keeps writing. If the node simply closed the connection, that
		// would lose the answers.
		stop := a.keepCalling(b)
		b.close(t)
		w.until("all calls have ended", func() bool { return answered.Load()+failed.Load() == 50 })
		stop.end()
		expect.Equal(t, answered.Load(), 40, "of 40 answers have arrived")
	})
}

// TestCloseHandlesWhatWasSent: when a node closes, it still handles one-way
// messages that were sent before the sender could know, and what it sends
// because of them arrives.
func TestCloseHandlesWhatWasSent(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b, c := w.node(1), w.node(2), w.node(3)
		w.net.DelayBetween(a.ip, b.ip, 20*time.Millisecond)
		a.knows(b)
		b.knows(a, c)
		w.connected(a, b)
		w.connected(b, c)
		b.handlers[Near][methodCount] = func(call *Call) { _ = b.Send(c.id, methodCount, call.Body) }
		sent := 0
		var sending sync.WaitGroup
		sending.Go(func() {
			for a.Send(b.id, methodCount, nil) == nil {
				sent++
				time.Sleep(time.Millisecond)
			}
		})
		time.Sleep(100 * time.Millisecond)
		b.close(t)
		sending.Wait()
		time.Sleep(time.Second)
		if have := c.counted(); have != sent {
			t.Errorf("%d of %d messages have arrived", have, sent)
		}
	})
}
