package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

func TestAnotherClusterIsRefused(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.node(1, withCluster(1)), w.node(2, withCluster(2))
		a.knows(b)
		b.knows(a)
		_, _, err := a.CallAt(t.Context(), b.address, methodEcho, nil)
		if !errors.Is(err, ErrRefused) || !errors.Is(err, ErrUnreachable) {
			t.Errorf("have %v, want %v", err, ErrRefused)
		}
		w.until("it is logged", func() bool { return a.log.Count("belongs to cluster") > 0 })
		time.Sleep(time.Minute)
		if a.Reachable(b.id) || b.Reachable(a.id) {
			t.Error("they are connected")
		}
		for _, n := range []*node{a, b} {
			// Once for the connection that it dials, once for the one that it accepts.
			if have := n.log.Count("belongs to cluster"); have == 0 || have > 2 {
				t.Errorf("logged %d times:\n%s", have, n.log)
			}
		}
	})
}

func TestClusterIsAskedAtBothEnds(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.node(1, withCluster(1)), w.node(2) // b accepts any node, but a accepts only its own cluster
		b.mu.Lock()
		b.self.Cluster = [16]byte{9}
		b.mu.Unlock()
		a.knows(b)
		b.knows(a)
		time.Sleep(10 * time.Second)
		if a.Reachable(b.id) || b.Reachable(a.id) {
			t.Error("they are connected")
		}
	})
}

func TestGarbageAtThePort(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		dial := w.dialer()
		welcome := append([]byte("rlnode\x03\x02\x02\x01\x00\x2b"), make([]byte, 43)...)
		for _, garbage := range [][]byte{
			nil,
			[]byte("GET / HTTP/1.1\r\n\r\n"),
			[]byte("\x16\x03\x01\x02\x00"),
			[]byte("rlnodx\x01\x01\x00\x29"),
			// from before there was a range of versions
			append([]byte("rlnode\x02\x01\x00\x29"), make([]byte, 41)...),
			append([]byte("rlnode\x03\x03\x02\x01\x00\x2b"), make([]byte, 43)...), // an empty range
			append([]byte("rlnode\x03\x00\x02\x01\x00\x2b"), make([]byte, 43)...), // an invalid range
			append([]byte("rlnode\x03\x05\x09\x01\x00\x2b"), make([]byte, 43)...), // no version in common
			[]byte("rlnode\x03\x02\x02\x07\x00\x29"),                              // cut short
			append([]byte("rlnode\x03\x02\x02\x09\x00\x2b"), make([]byte, 43)...), // unknown kind
			[]byte("rlnode\x03\x02\x02\x01\xff\xff"),                              // too long
			[]byte("rlnode\x03\x02\x02\x01\x00\x05hello"),                         // not an identity
			append(welcome, "PRI * HTTP/1.1\r\n\r\n"...),                          // bad HTTP/2
			append(welcome, bytes.Repeat([]byte{0xff}, 1000)...),
		} {
			c := dial(b.address)
			if _, err := c.Write(garbage); err != nil {
				t.Fatal(err)
			}
			if len(garbage) == 0 {
				c.Close()
				continue
			}
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%q: the connection stays", garbage)
			} else if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
				t.Errorf("%q: the connection stays", garbage)
			}
		}
		w.echo(a, b, "goes on")
	})
}

// TestSlowPreambles keeps more connections half open than the bound allows. Nodes still connect.
func TestSlowPreambles(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		b := w.node(2)
		dial := w.dialer()
		for range maxHalfOpen + 20 {
			c := dial(b.address)
			if _, err := c.Write([]byte("rl")); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		a := w.node(1)
		a.knows(b)
		w.connected(a, b)
		if have := time.Since(began); have > 2*handshakeTime+2*time.Second {
			t.Errorf("connected after %v", have)
		}
		time.Sleep(2 * handshakeTime)
		expect.Equal(t, w.net.Streams(b.ip), 1, "connections are open")
		if have := b.log.Count("remote=10.9.9.9"); have != 1 {
			t.Errorf("logged %d times:\n%s", have, b.log)
		}
	})
}

// hostileConn returns a connection to a node over which the test can send any bytes.
func hostileConn(t *testing.T, w *world, to *node) net.Conn {
	t.Helper()
	raw := w.dialer()(to.address)
	if _, _, err := exchangePreambles(raw, kindNear, Identity{Node: ring.NodeID{7}}, supportedVersions); err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestHostileMessages(t *testing.T) {
	reply := message{kind: messageReply, id: 1}.head()
	none := message{kind: messageCall}.head()
	beat := message{kind: messageBeat, id: 1}.head()
	for name, bytes := range map[string][]byte{
		"huge message":         {0xff, 0xff, 0xff, 0xff, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0},
		"reply to nothing":     reply[:],
		"call without id":      none[:],
		"no such kind":         bytes.Repeat([]byte{0}, messageHead),
		"heartbeat with an id": beat[:],
		"another protocol":     []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				a, b := w.pair()
				c := hostileConn(t, w, b)
				_, _ = c.Write(bytes) // the node may have closed it
				began := time.Now()
				_, _ = io.Copy(io.Discard, c)
				if have := time.Since(began); have > time.Second {
					t.Errorf("the connection is closed after %v", have)
				}
				w.echo(a, b, "goes on")
			})
		})
	}
}

// TestSilentDialerIsDropped sends a valid preamble, and then nothing.
func TestSilentDialerIsDropped(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		c := hostileConn(t, w, w.node(2))
		began := time.Now()
		_, _ = io.Copy(io.Discard, c)
		if have := time.Since(began); have < maxSilence || have > maxSilence+time.Second {
			t.Errorf("dropped after %v", have)
		}
	})
}

// FuzzMessages feeds the same bytes whole and in pieces. The messages must be the same.
func FuzzMessages(f *testing.F) {
	one := message{kind: messageCall, methodOrCode: 3, id: 9, body: []byte("body")}.head()
	f.Add(append(one[:], "body"...), uint64(1))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		collect := func(parts ...[]byte) (all []message, err error) {
			var a assembler
			for _, p := range parts {
				if err = a.feed(p, func(m message) error {
					m.body = bytes.Clone(m.body)
					all = append(all, m)
					return nil
				}); err != nil {
					return all, err
				}
			}
			return all, nil
		}
		whole, err := collect(b)
		var parts [][]byte
		random := rand.New(rand.NewPCG(seed, 0))
		for rest := b; len(rest) > 0; {
			n := 1 + random.IntN(len(rest))
			parts = append(parts, rest[:n])
			rest = rest[n:]
		}
		cut, cutErr := collect(parts...)
		if (err == nil) != (cutErr == nil) || len(whole) != len(cut) {
			t.Fatalf("have %d, %v, want %d, %v", len(cut), cutErr, len(whole), err)
		}
		for i := range whole {
			if whole[i].head() != cut[i].head() || !bytes.Equal(whole[i].body, cut[i].body) {
				t.Fatalf("message %d: have %v, want %v", i, cut[i], whole[i])
			}
		}
	})
}
