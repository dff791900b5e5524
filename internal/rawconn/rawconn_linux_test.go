package rawconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// pair returns the two ends of a TCP connection, of which the first has raw calls.
func pair(t *testing.T) (a *conn, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	expect.NoError(t, err)
	accepted, err := l.Accept()
	expect.NoError(t, err)
	t.Cleanup(func() { dialled.Close(); accepted.Close() })
	for _, c := range []net.Conn{dialled, accepted} {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return Wrap(dialled).(*conn), accepted.(*net.TCPConn)
}

// TestMovesAll: all written data arrives, whatever the sizes and however slow the other end is.
func TestMovesAll(t *testing.T) {
	a, b := pair(t)
	for _, size := range []int{0, 1, 14, rawCallSize - 1, rawCallSize, rawCallSize + 1, 1 << 20} {
		want := bytes.Repeat([]byte("rlnode\x00"), size/7+1)[:size]
		for name, way := range map[string][2]net.Conn{"out": {a, b}, "in": {b, a}} {
			wrote := make(chan error, 1)
			go func() {
				for rest := want; len(rest) > 0; rest = rest[min(len(rest), rawCallSize):] {
					if n, err := way[0].Write(rest[:min(len(rest), rawCallSize)]); err != nil ||
						n != min(len(rest), rawCallSize) {
						wrote <- errors.Join(err, io.ErrShortWrite)
						return
					}
				}
				n, err := way[0].Write(want) // in one piece
				if err == nil && n != len(want) {
					err = io.ErrShortWrite
				}
				wrote <- err
			}()
			for range 2 {
				have := make([]byte, size)
				if _, err := io.ReadFull(way[1], have); err != nil || !bytes.Equal(have, want) {
					t.Fatalf("%d bytes %s: %v, equal: %v", size, name, err, bytes.Equal(have, want))
				}
			}
			if err := <-wrote; err != nil {
				t.Fatalf("%d bytes %s: %v", size, name, err)
			}
		}
	}
}

// TestAllocatesNothing: reads and writes allocate nothing; only errors may.
func TestAllocatesNothing(t *testing.T) {
	a, b := pair(t)
	out, in := []byte("heartbeat"), make([]byte, 32<<10)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := a.Write(out); err != nil {
			t.Error(err)
		}
		if _, err := b.Read(in); err != nil {
			t.Error(err)
		}
		if _, err := b.Write(out); err != nil {
			t.Error(err)
		}
		if _, err := a.Read(in); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTryWrite: a write that does not wait takes what fits, allocates nothing,
// and leaves the order as it is.
func TestTryWrite(t *testing.T) {
	a, b := pair(t)
	_, _ = a.SetWriteBuffer(64<<10), b.SetReadBuffer(64<<10)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	n, full := 0, 0
	for full < 3 && n < len(sent) {
		took := a.TryWrite(sent[n:])
		n += took
		if took == 0 {
			full++
		}
	}
	if full < 3 || n == 0 {
		t.Fatalf("%d bytes fit in the buffers", n)
	}
	if allocs := testing.AllocsPerRun(10, func() { n += a.TryWrite(sent[n:]) }); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
	_ = a.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	var err error
	for took := 0; err == nil && n+1000 < len(sent); n += took { // the system may have made room meanwhile
		took, err = a.Write(sent[n : n+1000])
	}
	expect.ErrorIs(t, err, os.ErrDeadlineExceeded, "a write that waits")
	_ = a.SetWriteDeadline(time.Now().Add(20 * time.Second))
	rest := make(chan error, 1)
	go func() {
		_, err := a.Write(sent[n:])
		rest <- err
	}()
	have := make([]byte, len(sent))
	if _, err := io.ReadFull(b, have); err != nil || !bytes.Equal(have, sent) {
		t.Errorf("%v; equal: %v", err, bytes.Equal(have, sent))
	}
	if err := <-rest; err != nil {
		t.Error(err)
	}
}

// TestErrors: errors are the same as those of any connection.
func TestErrors(t *testing.T) {
	a, b := pair(t)
	in := make([]byte, 10)
	_ = a.SetReadDeadline(time.Now().Add(-time.Second))
	if _, err := a.Read(in); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: have %v", err)
	}
	late := time.AfterFunc(20*time.Millisecond, func() { _ = a.SetReadDeadline(time.Unix(1, 0)) })
	defer late.Stop()
	_ = a.SetReadDeadline(time.Time{})
	if _, err := a.Read(in); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a deadline set during a read: have %v", err)
	}
	_ = a.SetReadDeadline(time.Now().Add(20 * time.Second))
	_ = b.CloseWrite()
	if _, err := a.Read(in); err != io.EOF {
		t.Errorf("after the other end has closed: have %v", err)
	}
	a, b = pair(t)
	_ = b.SetLinger(0)
	_ = b.Close()
	var failed *net.OpError
	if _, err := a.Read(in); !errors.Is(err, syscall.ECONNRESET) || !errors.As(err, &failed) || failed.Op != "read" {
		t.Errorf("after a reset: have %v", err)
	}
	if _, err := a.Write(in); !errors.Is(err, syscall.EPIPE) || !errors.As(err, &failed) || failed.Op != "write" {
		t.Errorf("after a reset: have %v", err)
	}
	// The system reports a reset only once.
	other, b := pair(t)
	_ = b.SetLinger(0)
	_ = b.Close()
	process.Eventually(t, "the reset has arrived", func() bool { return other.TryWrite(in) <= 0 })
	if _, err := other.Read(in); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after a write has found the reset: have %v", err)
	}
	_ = a.Close()
	for name, do := range map[string]func([]byte) (int, error){"read": a.Read, "write": a.Write} {
		if _, err := do(in); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after Close: have %v", name, err)
		}
	}
}

// byteAt is a pool of one byte.
type byteAt [1]byte

func (p *byteAt) Get() []byte { return p[:] }
func (p *byteAt) Put([]byte)  {}

// TestWaits: a read counts as having waited only if there was nothing to read.
func TestWaits(t *testing.T) {
	a, b := pair(t)
	for name, read := range map[string]func() error{
		"Read":       func() error { _, err := a.Read(make([]byte, 1)); return err },
		"ReadPooled": func() error { _, err := a.ReadPooled(new(byteAt), nil); return err },
	} {
		_, err := b.Write([]byte("xy"))
		expect.NoError(t, err)
		expect.NoError(t, read())
		before := a.Waits() // the other byte came with the first
		expect.NoError(t, read())
		expect.Equal(t, a.Waits(), before, "waits of %s for what had arrived", name)

		go func() {
			for a.Waits() == before {
				time.Sleep(time.Millisecond)
			}
			_, _ = b.Write([]byte("z"))
		}()
		expect.NoError(t, read())
		expect.Equal(t, a.Waits(), before+1, "waits of %s", name)
	}
}
