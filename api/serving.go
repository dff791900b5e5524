package api

import (
	"context"
	"errors"
	"net"
)

// Served is a connection as its door serves it.
type Served interface {
	// Interrupt ends the wait for input, at once or after the answer in progress.
	Interrupt()
}

// Serve accepts connections on ln in the background, until Stop. It calls begin
// with each, one after another; begin starts a goroutine that serves the
// connection and closes it.
func (c *Connections) Serve(ln net.Listener, begin func(*Connection) Served) {
	c.ln = c.Listen(ln)
	c.accepted = make(chan error, 1)
	go func() { c.accepted <- c.accept(begin) }()
}

func (c *Connections) accept(begin func(*Connection) Served) error {
	for {
		conn, err := c.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}

		one := Unwrap[*Connection](conn)
		served := begin(one)

		c.mu.Lock()
		one.served = served
		interrupted := c.interrupted
		c.mu.Unlock()

		if interrupted {
			served.Interrupt() // Stop did not see it
		}
	}
}

// Stop ends what Serve began: it stops accepting connections, closes those that
// are idle, waits for the answers in progress until ctx ends, and closes what
// is left. It may be called again.
func (c *Connections) Stop(ctx context.Context) error {
	_ = c.ln.Close()
	c.CloseSilent()

	var all []Served
	c.mu.Lock()
	c.interrupted = true
	for conn := range c.open {
		if conn.served != nil {
			all = append(all, conn.served)
		}
	}
	c.mu.Unlock()

	for _, one := range all {
		one.Interrupt()
	}

	ended := make(chan struct{})
	go func() {
		c.Wait()
		close(ended)
	}()

	var err error
	select {
	case <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	}

	// Also if all have ended: it wakes accept, which may be waiting for a file
	// descriptor.
	c.CloseAll()
	<-ended
	acceptErr := <-c.accepted

	// accept may have got one more connection meanwhile.
	c.CloseAll()
	c.Wait()
	c.accepted <- nil // for the next call
	return errors.Join(err, acceptErr)
}
