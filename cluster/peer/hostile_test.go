package peer

import (
	"bytes"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/rlnode/rlnode/cluster/secret"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// hostileCount returns the number of messages that a stranger sends: HOSTILE
// from the environment, or a few.
func hostileCount(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("HOSTILE"))
	if err != nil || n < 1 {
		return 5000
	}
	return n
}

// heap returns the memory in use after garbage collection.
func heap() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// TestHostileBytes sends mutated preambles and messages to a real port, with
// and without a cluster secret. Two nodes keep calling each other, and memory
// and goroutines return to their earlier levels.
func TestHostileBytes(t *testing.T) {
	for _, test := range []struct {
		name   string
		option func(i int) option
	}{
		{"open", func(int) option { return func(*Config, *node) {} }},
		{"with a secret", func(i int) option {
			name := filepath.Join(t.TempDir(), strconv.Itoa(i))
			writeSecrets(t, name, secret.Secret{1})
			return withSecret(t, name)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := &world{t: t}
			a, b := w.node(1, test.option(1)), w.node(2, test.option(2))
			a.knows(b)
			w.connected(a, b)
			h := &hostile{rand.New(rand.NewPCG(1, 2))}
			h.attack(t, b.address, 500) // makes one-time allocations before the measurement
			memory, goroutines := heap(), runtime.NumGoroutine()
			h.attack(t, b.address, hostileCount(t)/2)
			w.echo(a, b, "goes on")
			w.until("the connections are gone", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
			// loggedOncePeriod may pass during the test, and some notes are about a
			if n := b.log.Count("\n"); n > 2*maxLogged {
				t.Errorf("%d lines were logged", n)
			}
			if have := heap(); have > memory+memory/10+1<<20 {
				t.Errorf("%d bytes are in use, %d before", have, memory)
			}
		})
	}
}

// hostile generates bytes to send.
type hostile struct{ *rand.Rand }

// attack sends the given number of messages over connections that last as long
// as the node tolerates them.
func (h *hostile) attack(t *testing.T, address string, messages int) {
	t.Helper()
	for messages > 0 {
		c, err := net.Dial("tcp", address)
		expect.NoError(t, err)
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err = c.Write(h.preamble()); err == nil {
			messages--
		}
		for i := h.IntN(100); i > 0 && err == nil; i-- {
			_, err = c.Write(h.message())
			messages--
		}
		c.Close()
	}
}

// preamble returns bytes that are a node's preamble most of the time.
func (h *hostile) preamble() []byte {
	var b bytes.Buffer
	self := Identity{Node: ring.NodeID{9, byte(h.Uint32())}, Name: "x"}
	kinds := []connKind{kindNear, kindNear, kindNear, kindRaft, kindFar, connKind(h.Uint32())}
	_ = preamble{supportedVersions, byte(kinds[h.IntN(len(kinds))]), self.appendBinary(nil)}.write(&b)
	if h.IntN(2) == 0 {
		return b.Bytes()
	}
	return h.mutate(b.Bytes())
}

// message returns a valid message, or bytes that begin like one.
func (h *hostile) message() []byte {
	m := message{kind: messageKind(1 + h.IntN(2)), methodOrCode: uint8(methodEcho), body: make([]byte, h.IntN(300))}
	if m.kind == messageCall {
		m.id = h.Uint64()
	}
	head := m.head()
	b := append(head[:], m.body...)
	if h.IntN(4) > 0 {
		return b
	}
	return h.mutate(b)
}

// mutate changes, removes or adds some bytes.
func (h *hostile) mutate(b []byte) []byte {
	for range 1 + h.IntN(4) {
		i := h.IntN(len(b))
		switch h.IntN(4) {
		case 0:
			b[i] = byte(h.Uint32())
		case 1:
			b[i] = 0xff
		case 2:
			b = b[:i+1]
		case 3:
			b = append(b[:i:i], append([]byte{byte(h.Uint32())}, b[i:]...)...)
		}
	}
	return b
}
