package main

import (
	"context"
	"fmt"
	"io"
	"os"
)

// readFile reads a whole file of at most limit bytes; "-" is standard input.
func readFile(env *environment, name string, limit int64) ([]byte, error) {
	in := env.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}

	src, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", shownName(name), err)
	}
	if int64(len(src)) > limit {
		return nil, fmt.Errorf("read %s: it is longer than %d bytes", shownName(name), limit)
	}

	return src, nil
}

// shownName returns a file's name for messages.
func shownName(name string) string {
	if name == "-" {
		return "<stdin>"
	}
	return name
}

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
