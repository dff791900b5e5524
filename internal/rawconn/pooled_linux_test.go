package rawconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// counting is a pool of buffers of a size. It counts those that are lent.
type counting struct{ size, lent int }

func (p *counting) Get() []byte {
	p.lent++
	return make([]byte, p.size)
}

func (p *counting) Put([]byte) { p.lent-- }

// TestTakesWhatComes: input is offered as it comes, and waits are seldom looked
// for. What is left is returned.
func TestTakesWhatComes(t *testing.T) {
	a, b := pair(t)
	pool := &counting{size: 64}
	const inputs = 10 * TryInterval

	answers := make([]byte, 1)
	sent := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < inputs && err == nil; i++ {
			if _, err = b.Write([]byte("question")); err == nil {
				_, err = io.ReadFull(b, answers)
			}
		}
		_, last := b.Write([]byte("last"))
		sent <- errors.Join(err, last)
	}()

	taken := 0
	left, err := a.ReadPooled(pool, func(input []byte) (bool, error) {
		if string(input) == "last" {
			return false, nil
		}
		expect.Equal(t, string(input), "question", "input")
		taken++
		_, err := a.Write([]byte("!"))
		return true, err
	})
	expect.NoError(t, err)
	expect.NoError(t, <-sent)
	expect.Equal(t, string(left), "last", "what take left")
	expect.Equal(t, taken, inputs, "inputs taken")
	expect.Equal(t, pool.lent, 1, "buffers lent")

	if waits := a.Waits(); a.pooled.reportsMore && waits > inputs/4 {
		t.Errorf("%d of %d inputs were followed by a read that found nothing", waits, inputs)
	}
}

// TestTakesWhatCameAtOnce: the poller reports only once what came together: more
// than fits in a buffer, and the end of the stream behind it.
func TestTakesWhatCameAtOnce(t *testing.T) {
	for range 200 {
		a, b := pair(t)
		pool := &counting{size: 3}
		_, err := b.Write([]byte("0123456789"))
		expect.NoError(t, err)

		var have bytes.Buffer
		left, err := a.ReadPooled(pool, func(input []byte) (bool, error) {
			have.Write(input)
			if have.Len() == 10 {
				_, err := b.Write([]byte("abc"))
				return true, errors.Join(err, b.CloseWrite())
			}
			return true, nil
		})
		if err != io.EOF || left != nil || have.String() != "0123456789abc" {
			t.Fatalf("have %q, then %q, %v", have.String(), left, err)
		}
		expect.Equal(t, pool.lent, 0, "buffers lent")

		// The input and the end of the stream wake the reader together.
		a, b = pair(t)
		go func() {
			_, _ = b.Write([]byte("x"))
			_ = b.CloseWrite()
		}()
		if _, err := a.ReadPooled(pool, func([]byte) (bool, error) { return true, nil }); err != io.EOF {
			t.Fatalf("after the only input: %v", err)
		}
	}
}

// TestErrorsOfConsume: an error of consume ends the read.
func TestErrorsOfConsume(t *testing.T) {
	a, b := pair(t)
	pool := &counting{size: 8}
	_, err := b.Write([]byte("x"))
	expect.NoError(t, err)

	refused := errors.New("refused")
	left, err := a.ReadPooled(pool, func([]byte) (bool, error) { return true, refused })
	expect.ErrorIs(t, err, refused, "ReadPooled")
	expect.Equal(t, len(left)+pool.lent, 0, "buffers")

	_, err = b.Write([]byte("y"))
	expect.NoError(t, err)
	left, err = a.ReadPooled(pool, nil)
	expect.NoError(t, err)
	expect.Equal(t, string(left), "y", "the next input")
}

// TestCloseDoesNotWaitForConsume: consume may wait for what the caller of Close holds.
// Close ends a write in consume that waits for the other end, too.
func TestCloseDoesNotWaitForConsume(t *testing.T) {
	for name, take := range map[string]func(a *conn, closed chan struct{}) error{
		"another goroutine closes": func(a *conn, closed chan struct{}) error {
			<-closed
			_, err := a.Write([]byte("answer"))
			return err
		},
		"take writes meanwhile": func(a *conn, _ chan struct{}) error {
			_, err := a.Write(make([]byte, 64<<20)) // the other end reads nothing
			return err
		},
		"take closes": func(a *conn, _ chan struct{}) error {
			err := a.Close()
			_, failed := a.Write([]byte("answer"))
			if failed == nil {
				return nil
			}
			return err
		},
		"take fails, too": func(_ *conn, closed chan struct{}) error {
			<-closed
			return io.ErrUnexpectedEOF
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			pool := &counting{size: 8}
			closed := make(chan struct{})
			taking := make(chan struct{})
			go func() {
				defer close(closed)
				<-taking
				time.Sleep(10 * time.Millisecond) // the write waits by then, as a rule
				_ = a.Close()
			}()

			_, err := b.Write([]byte("x"))
			expect.NoError(t, err)
			left, err := a.ReadPooled(pool, func([]byte) (bool, error) {
				close(taking)
				err := take(a, closed)
				return true, err
			})
			<-closed
			if err == nil || left != nil {
				t.Errorf("ReadPooled: %q, %v", left, err)
			}
			expect.Equal(t, pool.lent, 0, "buffers lent")

			_, err = a.TCPConn.Write([]byte("x"))
			expect.ErrorIs(t, err, net.ErrClosed, "a write after Close")
			expect.ErrorIs(t, a.Close(), net.ErrClosed, "another Close")
			_, err = a.ReadPooled(pool, nil)
			expect.ErrorIs(t, err, net.ErrClosed, "a read after Close")
		})
	}
}
