package peer

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestRaftConnections(t *testing.T) {
	onBothNetworks(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		for _, address := range []string{b.address, RaftAddress(b.id, b.address)} {
			near, err := a.Raft().Dial(address, time.Second)
			expect.NoError(t, err)
			far, err := b.Raft().Accept()
			expect.NoError(t, err)
			if _, err := near.Write([]byte("raft's own")); err != nil {
				t.Fatal(err)
			}
			have := make([]byte, 10)
			if _, err := io.ReadFull(far, have); err != nil || string(have) != "raft's own" {
				t.Errorf("have %q, %v", have, err)
			}
			far.Close()
			if _, err := near.Read(have); err == nil {
				t.Error("read from a closed connection")
			}
			near.Close()
		}
		if _, err := a.Raft().Dial(RaftAddress(nodeID(9), b.address), time.Second); !errors.Is(err, ErrRefused) {
			t.Errorf("another node is taken for the wanted one: %v", err)
		}
		if _, err := a.Raft().Dial("short@"+b.address, time.Second); err == nil {
			t.Error("a bad address is dialled")
		}
	})
}

func TestRaftLayerCloses(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		near, err := a.Raft().Dial(b.address, time.Second)
		expect.NoError(t, err)
		ended := make(chan error, 1)
		go func() {
			_, err := near.Read(make([]byte, 1)) // Raft reads without a deadline
			ended <- err
		}()
		go func() {
			for {
				if _, err := a.Raft().Accept(); err != nil {
					ended <- err
					return
				}
			}
		}()
		if err := a.Raft().Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-ended; !errors.Is(err, net.ErrClosed) {
				t.Errorf("have %v, want %v", err, net.ErrClosed)
			}
		}
		if _, err := a.Raft().Dial(b.address, time.Second); !errors.Is(err, net.ErrClosed) {
			t.Errorf("have %v, want %v", err, net.ErrClosed)
		}
		w.echo(a, b, "calls go on")
		// A node that stops leaves the others some time to connect to its Raft. This is
		// no reason to warn.
		if late, err := b.Raft().Dial(a.address, time.Second); err != nil {
			t.Error(err)
		} else if _, err := late.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("have %v, want %v", err, io.EOF)
		}
		synctest.Wait()
		if logged := a.log.String(); strings.Contains(logged, "refused") {
			t.Errorf("logged: %s", logged)
		}
	})
}

func TestRaftNobodyAccepts(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.node(1), w.node(2)
		closed := 0
		for range raftWaiting + 10 {
			c, err := a.Raft().Dial(b.address, time.Second)
			expect.NoError(t, err)
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			if _, err := c.Read(make([]byte, 1)); err == io.EOF {
				closed++
			}
		}
		expect.Equal(t, closed, 10, "connections were closed")
		w.net.Cut(a.ip, b.ip)
		began := time.Now()
		if _, err := a.Raft().Dial(b.address, 300*time.Millisecond); err == nil ||
			time.Since(began) != 300*time.Millisecond {
			t.Errorf("have %v after %v", err, time.Since(began))
		}
	})
}
