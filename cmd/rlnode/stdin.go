package main

import (
	"context"
	"io"
)

// stoppableReader reads from in until ctx ends. That also ends a read that
// waits, as at a terminal.
type stoppableReader struct {
	ctx context.Context
	in  io.Reader
}

func (s *stoppableReader) Read(b []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	own := make([]byte, len(b)) // what comes too late must not change b
	done := make(chan result, 1)
	go func() {
		n, err := s.in.Read(own)
		done <- result{n, err}
	}()

	select {
	case r := <-done:
		return copy(b, own[:r.n]), r.err
	case <-s.ctx.Done():
		return 0, context.Cause(s.ctx)
	}
}
