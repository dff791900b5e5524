package api

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// waiter is a connection whose server waits for input.
type waiter struct{ *Connection }

func (w waiter) Interrupt() { _ = w.SetReadDeadline(time.Unix(1, 0)) }

func (w waiter) serve() {
	_, _ = w.Read(make([]byte, 1))
	_ = w.Close()
}

// dialled returns connections that are served over loopback, one of which has been opened.
func dialled(t *testing.T, begin func(*Connection) Interrupter) *Connections {
	t.Helper()
	ln, err := Listen("127.0.0.1:0")
	expect.NoError(t, err)
	conns := NewConnections(ConnectionsConfig{Max: 8})
	conns.Serve(ln, begin)
	caller, err := net.Dial("tcp", ln.Addr().String())
	expect.NoError(t, err)
	t.Cleanup(func() { caller.Close() })
	return conns
}

// TestStopInterruptsWhatIsJustAccepted: a door that is still taking on a
// connection when Stop looks at all of them interrupts it afterwards.
// Otherwise, Stop would wait for a caller who may say nothing for an hour.
func TestStopInterruptsWhatIsJustAccepted(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	conns := dialled(t, func(c *Connection) Interrupter {
		c.NoteInput() // it is not silent
		close(began)
		<-goOn
		w := waiter{c}
		go w.serve()
		return w
	})
	<-began

	ended := make(chan error, 1)
	go func() { ended <- conns.Stop(context.Background()) }()
	for interrupted := false; !interrupted; time.Sleep(time.Millisecond) {
		conns.mu.Lock()
		interrupted = conns.interrupted
		conns.mu.Unlock()
	}

	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("have %v, want no error", err)
	}
	if err := conns.Stop(context.Background()); err != nil {
		t.Errorf("again: have %v, want no error", err)
	}
}

// stubborn is a connection whose server takes no notice of an interruption.
type stubborn struct{ waiter }

func (stubborn) Interrupt() {}

// TestStopClosesWhatIsLeft: when its time is over, Stop closes what is still served, and says so.
func TestStopClosesWhatIsLeft(t *testing.T) {
	began := make(chan struct{})
	var served sync.WaitGroup
	conns := dialled(t, func(c *Connection) Interrupter {
		c.NoteInput()
		s := stubborn{waiter{c}}
		served.Go(s.serve)
		close(began)
		return s
	})
	<-began

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := conns.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("have %v, want %v", err, context.Canceled)
	}
	served.Wait()
}
