package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/internal/wake"
)

// choosyConn is a connection whose TryWrite takes a part of the bytes only, and
// which records all that was written.
type choosyConn struct {
	net.Conn
	take func(n int) int // how many of n bytes TryWrite takes

	mu              sync.Mutex // guards the rest
	written         []byte
	tries, writings int
	inside          bool
}

func (c *choosyConn) TryWrite(b []byte) int {
	n := c.take(len(b))
	c.write(b[:n], &c.tries)
	return n
}

func (c *choosyConn) Write(b []byte) (int, error) {
	c.write(b, &c.writings)
	return len(b), nil
}

func (c *choosyConn) write(b []byte, count *int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inside {
		panic("two writes at once")
	}
	c.inside = true
	half := len(b) / 2
	c.written = append(c.written, b[:half]...)
	c.mu.Unlock()
	runtime.Gosched() // lets others in
	c.mu.Lock()
	c.written = append(c.written, b[half:]...)
	*count++
	c.inside = false
}

// messages returns the messages written so far.
func (c *choosyConn) messages(t *testing.T) (all []message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts assembler
	if err := parts.feed(bytes.Clone(c.written), func(m message) error {
		m.body = bytes.Clone(m.body)
		all = append(all, m)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// choosyPair returns a connection over a choosyConn, with its writer running.
func choosyPair(t *testing.T, take func(int) int) (*conn, *choosyConn) {
	t.Helper()
	below := &choosyConn{take: take}
	p := &Peers{started: time.Now()}
	c := p.newConn(&socket{Conn: below, raw: below}, true)
	ctx, end := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		expect.ErrorIs(t, c.write(ctx), ErrClosed, "the writer ended")
	})
	t.Cleanup(func() { end(); writer.Wait() })
	return c, below
}

// TestMessagesKeepTheirOrder: the connection carries each message once and
// whole, and those of a sender in order. It does not matter who writes them, or
// how little fits in its buffer.
func TestMessagesKeepTheirOrder(t *testing.T) {
	const senders, each = 6, 400
	takes := map[string]func(int) int{
		"all":     func(n int) int { return n },
		"nothing": func(int) int { return 0 },
		"a part":  func(n int) int { return rand.IntN(n + 1) },
		"a byte":  func(n int) int { return min(n, 1) },
	}
	for name, take := range takes {
		t.Run(name, func(t *testing.T) {
			c, below := choosyPair(t, take)
			var all sync.WaitGroup
			for s := range senders {
				all.Go(func() {
					for i := range each {
						body := make([]byte, rand.IntN(100))
						if err := c.put(message{kind: messageSend, methodOrCode: uint8(s),
							id: uint64(i), body: body}); err != nil {
							t.Error(err)
						}
						if i%3 == 0 {
							wake.Signal(c.queue.wake)
						} else {
							c.flush()
						}
					}
				})
			}
			all.Wait()
			process.Eventually(t, "everything is written",
				func() bool { return len(below.messages(t)) == senders*each })
			process.Eventually(t, "the queue is empty", c.queue.isEmpty)
			var next [senders]uint64
			for _, m := range below.messages(t) {
				if m.id != next[m.methodOrCode] {
					t.Fatalf("sender %d: message %d, want %d", m.methodOrCode, m.id, next[m.methodOrCode])
				}
				next[m.methodOrCode]++
			}
		})
	}
}

// TestWhoWrites: a message that is alone is written by its sender, what the
// reader handles is answered in one write, and the writer does the rest.
func TestWhoWrites(t *testing.T) {
	c, below := choosyPair(t, func(n int) int { return n })
	expect := func(what string, tries, writings, messages int) {
		t.Helper()
		process.Eventually(t, what, func() bool {
			below.mu.Lock()
			defer below.mu.Unlock()
			return below.tries+below.writings == tries+writings
		})
		written := len(below.messages(t))
		below.mu.Lock()
		defer below.mu.Unlock()
		if below.tries != tries || below.writings != writings || written != messages {
			t.Errorf("%s: %d writes by senders, %d by the writer, %d messages; want %d, %d, %d",
				what, below.tries, below.writings, written, tries, writings, messages)
		}
	}
	first, err := c.startCall(methodNever, nil, time.Minute, func([]byte, error) {})
	if err != nil {
		t.Fatal(err)
	}
	expect("a call that is alone", 1, 0, 1)
	second, err := c.startCall(methodNever, nil, time.Minute, func([]byte, error) {})
	if err != nil {
		t.Fatal(err)
	}
	expect("a call beside another", 1, 1, 2)
	for _, o := range []*outgoing{first, second} {
		if c.removePending(o.id, false) == nil || !o.timer.Stop() {
			t.Error("the call is over")
		}
	}
	var kept *Call
	c.handlers = &handlers{methodEcho: func(call *Call) { call.Reply(nil) },
		methodNever: func(call *Call) { kept = call }}
	for _, method := range []Method{methodEcho, methodEcho, methodNever, methodEcho} {
		if err := c.serve(message{kind: messageCall, methodOrCode: uint8(method), id: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.queue.wake) > 0 {
		t.Error("the writer was woken for what the reader sends")
	}
	c.flush()
	expect("three replies that the reader sends", 2, 1, 5)
	kept.Reply(nil)
	expect("a reply after the handler has returned", 2, 2, 6)
	c.peers.config.Silence = time.Hour
	c.limits.untilUnreachable = time.Second
	c.sendHeartbeat(int64(time.Hour))
	expect("a heartbeat", 3, 2, 7)
	c.flush()
	if b := c.queue.take(); len(b) > 0 {
		t.Errorf("%d bytes are left", len(b))
	}

	if err := c.queue.put(message{kind: messageSend}); err != nil {
		t.Fatal(err)
	}
	n, err := below.Write(c.queue.take())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.put(message{kind: messageSend}); err != nil {
		t.Fatal(err)
	}
	c.flush()
	expect("a message while another is being written", 3, 3, 8)
	c.queue.wrote(n)
	expect("the message after that", 3, 4, 9)
	if err := c.put(message{kind: messageReply}); err != nil {
		t.Fatal(err)
	}
	c.sendHeartbeat(int64(2 * time.Hour))
	expect("a reply that the reader has not sent yet, in place of a heartbeat", 3, 5, 10)
}

// TestBusyReader: a node that takes long to handle all that it has read is
// neither silent nor unreachable, and its replies are on their way meanwhile.
func TestBusyReader(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		var answered, failed atomic.Int64
		const calls = 1000
		for range calls {
			a.Go(b.id, methodBusy, nil, time.Minute, func(_ []byte, err error) {
				if err != nil {
					failed.Add(1)
				}
				answered.Add(1)
			})
		}
		later := make(chan time.Duration, 1)
		began := time.Now()
		a.Go(b.id, methodSlow, nil, time.Minute, func([]byte, error) { later <- time.Since(began) })
		time.Sleep(100 * time.Millisecond)
		if n := answered.Load(); n < 60 {
			t.Errorf("%d calls were answered in the first 100 ms", n)
		}
		w.until("all calls are answered", func() bool { return answered.Load() == calls })
		if failed.Load() > 0 {
			t.Errorf("%d of %d calls failed", failed.Load(), calls)
		}
		if took := <-later; took > 1100*time.Millisecond {
			t.Errorf("a reply from another goroutine took %v", took)
		}
	})
}

// TestFullQueue: what could not be written still counts for the bounds, and the
// queue keeps no large buffer.
func TestFullQueue(t *testing.T) {
	q := &queue{wake: make(chan struct{}, 1)}
	body := make([]byte, 1<<20)
	n := 0
	for ; n < 1000; n++ {
		binary.LittleEndian.PutUint32(body, uint32(n))
		if err := q.put(message{kind: messageSend, body: body}); errors.Is(err, ErrBusy) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch n {
		case 3:
			q.take()
			q.wrote(10)
		case 5:
			if b := q.take(); len(b) != 4*(len(body)+messageHead)-10 {
				t.Fatalf("the rest has %d bytes", len(b))
			}
			if q.take() != nil {
				t.Fatal("two goroutines write at once")
			}
			q.wrote(0)
		}
	}
	expect.Equal(t, n, maxQueuedBytes/(len(body)+messageHead), "the queue is full after messages")
	total := 0
	for b := q.take(); len(b) > 0; b = q.take() {
		total += len(b)
		q.wrote(len(b))
	}
	if total != n*(len(body)+messageHead)-10 || !q.isEmpty() {
		t.Errorf("%d bytes were left of %d messages; empty: %v", total, n, q.isEmpty())
	}
	if kept := cap(q.waiting.bytes) + cap(q.writing.bytes); kept > 2*maxReusedBuffer {
		t.Errorf("an empty queue holds %d bytes", kept)
	}
}
