package peer

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// A tunnel that is opened while Close has begun, or beyond the bound on
// connections, is closed together with the socket below it. Both take the lock
// of Peers.
func TestATunnelThatIsRefusedIsClosed(t *testing.T) {
	for _, want := range []error{ErrClosed, errTooManyAccepted} {
		p := &Peers{sockets: map[*socket]struct{}{}}
		near, far := net.Pipe()
		defer far.Close()
		below := &socket{accepted: true}
		expect.NoError(t, p.register(near, below))
		if want == ErrClosed {
			p.closed = true
		}
		for want == errTooManyAccepted && len(p.sockets) < maxAccepted {
			p.sockets[&socket{accepted: true}] = struct{}{}
		}
		refused := make(chan error)
		go func() { refused <- p.register(below, &socket{accepted: true}) }()
		select {
		case err := <-refused:
			if !errors.Is(err, want) {
				t.Errorf("have %v, want %v", err, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%v: register has not returned", want)
		}
		if _, err := near.Write([]byte{0}); err == nil {
			t.Errorf("%v: the connection below the tunnel is open", want)
		}
	}
}

// A connection that arrives while the node stops is closed, and not logged.
func TestNothingIsLoggedWhileClosing(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a := w.node(1)
		setClosed := func(closed bool) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.closed = closed
		}
		setClosed(true)
		near, far := net.Pipe()
		a.halfOpen <- struct{}{}
		a.handleIncoming(near)
		setClosed(false)
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("have %v, want %v", err, io.EOF)
		}
		if logged := a.log.String(); strings.Contains(logged, "closed") {
			t.Errorf("logged: %s", logged)
		}
	})
}
