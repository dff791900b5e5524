package api

import (
	"context"
	"errors"
	"net"
)

// Interrupter is a connection as its door serves it.
type Interrupter interface {
	// Interrupt ends the wait for input, at once or after the answer in progress.
	Interrupt()
}

// Serve accepts connections on ln in the background, until Stop. It calls begin
// with each, one after another; begin starts a goroutine that serves the
// connection and closes it.
func (cs *Connections) Serve(ln net.Listener, begin func(*Connection) Interrupter) {
	cs.ln = cs.Listen(ln)
	cs.accepted = make(chan error, 1)
	go func() { cs.accepted <- cs.accept(begin) }()
}

func (cs *Connections) accept(begin func(*Connection) Interrupter) error {
	for {
		conn, err := cs.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}

		tracked := Unwrap[*Connection](conn)
		served := begin(tracked)

		cs.mu.Lock()
		tracked.interrupter = served
		interrupted := cs.interrupted
		cs.mu.Unlock()

		if interrupted {
			served.Interrupt() // Stop did not see it
		}
	}
}

// Stop ends what Serve began: it stops accepting connections, closes those that
// are idle, waits for the answers in progress until ctx ends, and closes what
// is left. It may be called again.
func (cs *Connections) Stop(ctx context.Context) error {
	_ = cs.ln.Close()
	cs.CloseSilent()

	var all []Interrupter
	cs.mu.Lock()
	cs.interrupted = true
	for conn := range cs.open {
		if conn.interrupter != nil {
			all = append(all, conn.interrupter)
		}
	}
	cs.mu.Unlock()

	for _, served := range all {
		served.Interrupt()
	}

	ended := make(chan struct{})
	go func() {
		cs.Wait()
		close(ended)
	}()

	var err error
	select {
	case <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	}

	// CloseAll is called even if all connections have ended: it wakes accept,
	// which may be waiting for a file descriptor.
	cs.CloseAll()
	<-ended
	acceptErr := <-cs.accepted

	// accept may have got one more connection meanwhile.
	cs.CloseAll()
	cs.Wait()
	cs.accepted <- nil // for the next call
	return errors.Join(err, acceptErr)
}
