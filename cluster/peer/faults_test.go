package peer

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// TestSilenceIsNoticed breaks a link in many ways, and checks when each end notices.
func TestSilenceIsNoticed(t *testing.T) {
	tests := []struct {
		name   string
		fault  func(w *world, a, b *node)
		heal   func(w *world, a, b *node)
		within time.Duration
	}{
		{"cut", func(w *world, a, b *node) { w.net.Cut(a.ip, b.ip) },
			func(w *world, a, b *node) { w.net.Heal(a.ip, b.ip) }, 255 * time.Millisecond},
		{"there", func(w *world, a, b *node) { w.net.CutOneWay(a.ip, b.ip) },
			func(w *world, a, b *node) { w.net.Heal(a.ip, b.ip) }, 355 * time.Millisecond},
		{"back", func(w *world, a, b *node) { w.net.CutOneWay(b.ip, a.ip) },
			func(w *world, a, b *node) { w.net.Heal(a.ip, b.ip) }, 355 * time.Millisecond},
		{"frozen", func(w *world, a, b *node) { w.net.Freeze(b.ip) },
			func(w *world, a, b *node) { w.net.Thaw(b.ip) }, 255 * time.Millisecond},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				a, b := w.pair()
				w.net.Delay(time.Millisecond)
				time.Sleep(3 * time.Second)
				if !a.Reachable(b.id) || !b.Reachable(a.id) {
					t.Fatal("idle nodes lose each other")
				}
				failed := make(chan error, 1)
				a.Go(b.id, methodNever, nil, time.Hour, func(_ []byte, err error) { failed <- err })
				time.Sleep(10 * time.Millisecond)
				test.fault(w, a, b)
				began := time.Now()
				if err := <-failed; !errors.Is(err, ErrUnreachable) {
					t.Errorf("have %v, want %v", err, ErrUnreachable)
				}
				if have := time.Since(began); have > test.within || have < 200*time.Millisecond {
					t.Errorf("calls failed after %v", have)
				}
				w.until("both ends notice", func() bool { return !a.Reachable(b.id) && !b.Reachable(a.id) })
				if have := time.Since(began); have > test.within {
					t.Errorf("both ends noticed after %v", have)
				}
				_, err := a.Call(t.Context(), b.id, methodEcho, nil)
				if !errors.Is(err, ErrUnreachable) || time.Since(began) > test.within {
					t.Errorf("have %v after %v, want %v at once", err, time.Since(began), ErrUnreachable)
				}
				time.Sleep(time.Second)
				before := a.log.Count("connected to a node")
				test.heal(w, a, b)
				began = time.Now()
				w.connected(a, b)
				w.connected(b, a)
				if have := time.Since(began); have > 60*time.Millisecond {
					t.Errorf("reachable again after %v", have)
				}
				if test.name == "frozen" && a.log.Count("connected to a node") != before {
					t.Error("the connection was not kept")
				}
				w.echo(a, b, "again")
				w.echo(b, a, "again")
			})
		})
	}
}

// After a cut, TCP retransmits only after another pause of the same length. A
// new connection is established before that.
func TestStuckConnectionIsReplaced(t *testing.T) {
	for _, lasted := range []time.Duration{time.Second, 3 * time.Second, 4900 * time.Millisecond, 20 * time.Second} {
		within := 600 * time.Millisecond
		if lasted > maxSilence {
			// the connection was closed, and either end may have begun its pause
			within = maxPause + 100*time.Millisecond
		}
		onVirtualTime(t, func(t *testing.T, w *world) {
			a, b := w.pair()
			w.net.Backoff()
			w.net.Delay(time.Millisecond)
			time.Sleep(time.Second)
			w.net.Cut(a.ip, b.ip)
			time.Sleep(lasted)
			w.net.Heal(a.ip, b.ip)
			began := time.Now()
			w.connected(a, b)
			w.connected(b, a)
			if have := time.Since(began); have > within {
				t.Errorf("cut for %v: reachable again after %v", lasted, have)
			}
			w.echo(a, b, "again")
			w.echo(b, a, "again")
			time.Sleep(time.Minute)
			for _, n := range []*node{a, b} {
				n.Peers.mu.Lock()
				sockets, conns := len(n.sockets), len(n.conns)
				n.Peers.mu.Unlock()
				if sockets != 2 || conns != 2 { // one in each direction
					t.Errorf("cut for %v: %d sockets and %d connections are open, want 2", lasted, sockets, conns)
				}
			}
		})
	}
}

func TestLongSilenceClosesTheConnection(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		w.net.Isolate(b.ip)
		time.Sleep(8 * time.Second)
		if a.log.Count("connection to a node lost") != 1 || b.log.Count("connection to a node lost") != 1 {
			t.Errorf("logged:\n%s%s", a.log, b.log)
		}
		time.Sleep(time.Minute)
		if have := a.log.Count("no connection to a node"); have > 2 {
			t.Errorf("logged %d times:\n%s", have, a.log)
		}
		w.net.HealAll()
		began := time.Now()
		w.connected(a, b)
		w.connected(b, a)
		if have := time.Since(began); have > 1100*time.Millisecond {
			t.Errorf("reachable again after %v", have)
		}
		w.echo(a, b, "again")
	})
}

func TestRestart(t *testing.T) {
	for _, crash := range []bool{true, false} {
		onVirtualTime(t, func(t *testing.T, w *world) {
			a, b := w.pair()
			if crash {
				w.net.Crash(b.ip)
			}
			b.close(t)
			synctest.Wait()
			if a.Reachable(b.id) {
				t.Error("reachable after its crash")
			}
			time.Sleep(20 * time.Second)
			b = w.node(2, withBoot(2))
			b.knows(a)
			began := time.Now()
			w.connected(a, b)
			w.connected(b, a)
			if have := time.Since(began); have > 200*time.Millisecond {
				t.Errorf("reachable again after %v", have) // its own connection shows that it is up
			}
			if have, _ := a.Remote(b.id); have.Boot != 2 {
				t.Errorf("have boot %d", have.Boot)
			}
			w.echo(a, b, "again")
		})
	}
}

// TestRestartBehindACut: the first sign of a crash is the new process.
func TestRestartBehindACut(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		w.net.Isolate(b.ip)
		w.net.Crash(b.ip)
		b.close(t)
		time.Sleep(time.Second)
		b = w.node(2, withBoot(2))
		b.knows(a)
		w.net.Rejoin(b.ip)
		began := time.Now()
		w.connected(a, b)
		if have := time.Since(began); have > time.Second {
			t.Errorf("reachable again after %v", have)
		}
		w.echo(a, b, "again")
	})
}

func TestAddressChange(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		moved := w.node(3, withID(b.id), withBoot(2))
		a.knows(moved)
		w.until("the new address is used",
			func() bool { r, ok := a.Remote(b.id); return ok && r.Boot == 2 && a.Reachable(b.id) })
		w.echo(a, moved, "moved")
		a.SetNodes(nil)
		if _, err := a.Call(t.Context(), b.id, methodEcho, nil); !errors.Is(err, ErrUnreachable) {
			t.Errorf("have %v", err)
		}
		b.SetNodes(nil)
		synctest.Wait()
		time.Sleep(10 * time.Second)
		for _, ip := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			expect.Equal(t, w.net.Streams(ip), 0, "connections of %s are left", ip)
		}
	})
}

func TestAnotherNodeAtTheAddress(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.node(1), w.node(2)
		wanted := nodeID(3)
		a.SetNodes(map[ring.NodeID]string{wanted: b.address})
		time.Sleep(30 * time.Second)
		if a.Reachable(wanted) {
			t.Error("another node is taken for the known one")
		}
		if have := a.log.Count("is at that address, not"); have != 1 {
			t.Errorf("logged %d times:\n%s", have, a.log)
		}
	})
}

// TestRemoteThatNeverReads fills the queues: callers notice at once, and memory is bounded.
func TestRemoteThatNeverReads(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		w.net.Freeze(b.ip)
		body := make([]byte, 1<<20)
		sent := 0
		var err error
		began := time.Now()
		for ; err == nil && sent < 1000; sent++ {
			err = a.Send(b.id, methodCount, body)
		}
		if !errors.Is(err, ErrBusy) || sent > 35 || time.Since(began) > 0 {
			t.Errorf("have %v after %d messages and %v", err, sent, time.Since(began))
		}
		ended := 0
		a.Go(b.id, methodEcho, body, time.Second, func(_ []byte, err error) {
			ended++
			if !errors.Is(err, ErrBusy) {
				t.Errorf("have %v, want %v", err, ErrBusy)
			}
		})
		expect.Equal(t, ended, 1, "ended times")
		w.net.Thaw(b.ip)
		w.until("all arrive", func() bool { return b.counted() == sent-1 })
		w.echo(a, b, "again")
	})
}

// inTransit bounds the small messages that the network may hold.
const inTransit = 1 << 20

func TestManySmallMessagesAreBounded(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		w.net.Freeze(b.ip)
		var err error
		sent := 0
		for ; err == nil; sent++ {
			err = a.Send(b.id, methodCount, []byte("x"))
		}
		if !errors.Is(err, ErrBusy) || sent < maxQueued || sent > maxQueued+inTransit {
			t.Errorf("have %v after %d messages", err, sent)
		}
	})
}

func TestCloseWhileNothingMoves(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		w.net.Freeze(b.ip)
		for a.Send(b.id, methodCount, make([]byte, 1<<20)) == nil {
		}
		began := time.Now()
		a.close(t)
		b.close(t)
		if have := time.Since(began); have > 2*drainTime+100*time.Millisecond {
			t.Errorf("closing took %v", have)
		}
	})
}
