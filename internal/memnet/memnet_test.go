package memnet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ipA = "10.0.0.1"
	ipB = "10.0.0.2"
)

// connect returns both ends of a stream from A to B.
func connect(t *testing.T, n *Net) (near, far net.Conn) {
	t.Helper()
	l, err := n.Host(ipB).Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err = n.Host(ipA).Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		near.Close()
		far.Close()
	})
	return near, far
}

func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if n, err := c.Write([]byte(text)); err != nil || n != len(text) {
		t.Fatalf("wrote %d, %v", n, err)
	}
}

func read(t *testing.T, c net.Conn, want string) {
	t.Helper()
	have := make([]byte, len(want))
	if _, err := io.ReadFull(c, have); err != nil || string(have) != want {
		t.Fatalf("have %q, %v, want %q", have, err, want)
	}
}

// expectSilence checks that nothing arrives for a second.
func expectSilence(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	if n, err := c.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("have %d bytes, %v", n, err)
	}
	_ = c.SetReadDeadline(time.Time{})
}

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		near, far := connect(t, n)
		write(t, near, "hello")
		read(t, far, "hello")
		write(t, far, "back")
		read(t, near, "back")
		if near.LocalAddr().String() != far.RemoteAddr().String() ||
			near.RemoteAddr().String() != far.LocalAddr().String() {
			t.Errorf("addresses: %v %v, %v %v", near.LocalAddr(), near.RemoteAddr(), far.LocalAddr(), far.RemoteAddr())
		}
		write(t, near, "last")
		near.Close()
		near.Close()
		read(t, far, "last")
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("have %v, want %v", err, io.EOF)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("have %v, want %v", err, net.ErrClosed)
		}
		if _, err := near.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("have %v, want %v", err, net.ErrClosed)
		}
		if _, err := far.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("have %v, want %v", err, syscall.EPIPE)
		}
		far.Close()
		if have := n.Streams(ipA) + n.Streams(ipB) + len(n.pipes); have != 0 {
			t.Errorf("%d streams are left", have)
		}
	})
}

func TestStreamIsBoundedAndOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := connect(t, New())
		_ = near.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := near.Write(make([]byte, 1<<20))
		if n != maxBuffered || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("wrote %d, %v", n, err)
		}
		_ = near.SetWriteDeadline(time.Time{})
		read(t, far, string(make([]byte, maxBuffered)))
		want := make([]byte, 3<<20)
		for i := range want {
			want[i] = byte(i * i >> 7)
		}
		var group sync.WaitGroup
		group.Go(func() {
			write(t, near, string(want))
			near.Close()
		})
		have, err := io.ReadAll(far)
		if err != nil || !bytes.Equal(have, want) {
			t.Errorf("have %d bytes, %v", len(have), err)
		}
		group.Wait()
	})
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		n.Delay(20 * time.Millisecond)
		began := time.Now()
		near, far := connect(t, n)
		if have := time.Since(began); have != 40*time.Millisecond {
			t.Errorf("the dial took %v", have)
		}
		write(t, near, "one")
		time.Sleep(5 * time.Millisecond)
		write(t, near, "two")
		read(t, far, "one")
		read(t, far, "two")
		if have := time.Since(began); have != 65*time.Millisecond {
			t.Errorf("read after %v", have)
		}
		near.Close()
		_, _ = far.Read(make([]byte, 1))
		if have := time.Since(began); have != 85*time.Millisecond {
			t.Errorf("the end came after %v", have)
		}
	})
}

func TestDelayBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		n.Delay(20 * time.Millisecond)
		n.DelayBetween(ipA, ipB, 40*time.Millisecond)
		began := time.Now()
		near, far := connect(t, n)
		if have := time.Since(began); have != 80*time.Millisecond {
			t.Errorf("the dial took %v", have)
		}
		write(t, near, "there")
		read(t, far, "there")
		write(t, far, "back")
		read(t, near, "back")
		if have := time.Since(began); have != 160*time.Millisecond {
			t.Errorf("there and back after %v", have)
		}
		n.Host("10.0.0.3")
		c, err := n.Host(ipA).Dial(t.Context(), "10.0.0.3:1")
		if err == nil {
			c.Close()
		}
		if have := time.Since(began); have != 200*time.Millisecond {
			t.Errorf("refused by another host after %v", have)
		}
	})
}

// With Backoff, a stream stalls after a cut for as long as the cut lasted. A new stream does not.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		n.Backoff()
		near, far := connect(t, n)
		n.Cut(ipA, ipB)
		write(t, near, "held")
		time.Sleep(3 * time.Second)
		n.Heal(ipA, ipB)
		began := time.Now()
		write(t, near, "!")
		fresh, there := connect(t, n)
		write(t, fresh, "new")
		read(t, there, "new")
		if have := time.Since(began); have > 0 {
			t.Errorf("a new stream took %v", have)
		}
		read(t, far, "held!")
		if have := time.Since(began); have != 3*time.Second {
			t.Errorf("the stream resumed after %v, want 3s", have)
		}
	})
}

func TestCutsHoldAndHealDelivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		near, far := connect(t, n)
		write(t, near, "before") // it has arrived, and can be read
		n.CutOneWay(ipA, ipB)
		read(t, far, "before")
		write(t, near, "there")
		expectSilence(t, far)
		write(t, far, "back")
		read(t, near, "back")
		n.Cut(ipA, ipB)
		write(t, far, "held")
		expectSilence(t, near)
		n.Heal(ipA, ipB)
		read(t, far, "there")
		read(t, near, "held")

		n.Isolate(ipB)
		near.Close()
		expectSilence(t, far)
		write(t, far, "to nobody") // the writer can't know that the bytes are lost
		n.HealAll()
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("have %v, want %v", err, io.EOF)
		}
	})
}

func TestFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		near, far := connect(t, n)
		l, _ := n.Host(ipB).Listen(1)
		defer l.Close()
		n.Freeze(ipB)
		write(t, near, "x")
		expectSilence(t, far)
		c, err := n.Host(ipA).Dial(t.Context(), "10.0.0.2:1") // the kernel accepts
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		began := time.Now()
		time.AfterFunc(time.Minute, func() { n.Thaw(ipB) })
		accepted, err := l.Accept()
		if err != nil || time.Since(began) != time.Minute {
			t.Errorf("have %v after %v", err, time.Since(began))
		}
		accepted.Close()
		read(t, far, "x")
	})
}

func TestCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		near, far := connect(t, n)
		old := n.Host(ipB)
		l, _ := old.Listen(1)
		ended := make(chan error, 3)
		for _, c := range []net.Conn{near, far} {
			go func() { _, err := c.Read(make([]byte, 1)); ended <- err }()
		}
		go func() { _, err := l.Accept(); ended <- err }()
		synctest.Wait()
		n.Crash(ipB)
		for range 3 {
			if err := <-ended; !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
				t.Errorf("have %v", err)
			}
		}
		if _, err := near.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("have %v", err)
		}
		if _, err := old.Listen(2); !errors.Is(err, syscall.ENETDOWN) {
			t.Errorf("a crashed host listens: %v", err)
		}
		again, err := n.Host(ipB).Listen(1)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if c, err := n.Host(ipA).Dial(t.Context(), "10.0.0.2:1"); err != nil {
			t.Error(err)
		} else {
			c.Close()
		}
	})
}

func TestBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		n.Delay(time.Second)
		near, far := connect(t, n)
		write(t, near, "lost")
		n.Break(ipB, ipA)
		for _, c := range []net.Conn{near, far} {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("have %v", err)
			}
		}
		near, far = connect(t, n)
		write(t, near, "well")
		read(t, far, "well")
	})
}

func TestDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		a := n.Host(ipA)
		l, _ := n.Host(ipB).Listen(1)
		defer l.Close()
		if _, err := a.Dial(t.Context(), "10.0.0.2:9"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("have %v, want %v", err, syscall.ECONNREFUSED)
		}
		if _, err := n.Host(ipB).Listen(1); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("have %v, want %v", err, syscall.EADDRINUSE)
		}
		n.Cut(ipA, ipB)
		for _, address := range []string{"10.0.0.2:1", "10.3.3.3:1"} { // cut, and nonexistent
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			_, err := a.Dial(ctx, address)
			if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() || time.Since(began) != time.Second {
				t.Errorf("%s: have %v after %v", address, err, time.Since(began))
			}
			cancel()
		}
		began := time.Now()
		if _, err := a.Dial(t.Context(), "10.0.0.2:1"); err == nil || time.Since(began) != maxDialTime {
			t.Errorf("have %v after %v", err, time.Since(began))
		}
		time.AfterFunc(time.Second, n.HealAll)
		c, err := a.Dial(t.Context(), "10.0.0.2:1")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range waitingToBeAccepted - 1 {
			c, err := a.Dial(t.Context(), "10.0.0.2:1")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.Dial(ctx, "10.0.0.2:1"); err == nil {
			t.Error("a listener that never accepts always has room")
		}
	})
}

func TestIsolateAlsoFromLaterHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		l, _ := n.Host(ipB).Listen(1)
		defer l.Close()
		n.Isolate(ipB)
		later := n.Host("10.0.0.3")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := later.Dial(ctx, "10.0.0.2:1"); err == nil {
			t.Error("an isolated host is reachable")
		}
		n.Rejoin(ipB)
		c, err := later.Dial(t.Context(), "10.0.0.2:1")
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	})
}

func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		a, _ := n.Host(ipA).ListenPacket(5)
		b, _ := n.Host(ipB).ListenPacket(6)
		defer b.Close()
		expect := func(want string) {
			t.Helper()
			buffer := make([]byte, 100)
			_ = b.SetReadDeadline(time.Now().Add(time.Second))
			k, from, err := b.ReadFrom(buffer)
			if want == "" {
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("have %q, %v, want nothing", buffer[:k], err)
				}
			} else if err != nil || string(buffer[:k]) != want || from.String() != "10.0.0.1:5" {
				t.Errorf("have %q from %v, %v, want %q", buffer[:k], from, err, want)
			}
		}
		send := func(text string) {
			t.Helper()
			if _, err := a.WriteTo([]byte(text), b.LocalAddr()); err != nil {
				t.Error(err)
			}
		}
		n.Delay(time.Millisecond)
		send("one")
		send("two")
		expect("one")
		expect("two")
		n.CutOneWay(ipA, ipB)
		send("lost")
		n.HealAll()
		expect("")
		n.Freeze(ipB)
		send("waits")
		expect("")
		n.Thaw(ipB)
		expect("waits")
		n.Freeze(ipA)
		send("lost")
		n.Thaw(ipA)
		expect("")
		for range waitingPackets + 10 {
			send("x")
		}
		for range waitingPackets {
			expect("x")
		}
		expect("")
		a.Close()
		if _, err := a.WriteTo(nil, b.LocalAddr()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("have %v, want %v", err, net.ErrClosed)
		}
	})
}
