package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

func TestCallsAreAnswered(t *testing.T) {
	onBothNetworks(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		w.echo(a, b, "hello")
		w.echo(b, a, "and back")
		w.echo(a, b, "")
		have, err := a.Call(t.Context(), b.id, methodLater, []byte("later"))
		if err != nil || string(have) != "later" {
			t.Errorf("have %q, %v", have, err)
		}
		_, err = a.Call(t.Context(), b.id, methodFail, []byte("no"))
		var remote *RemoteError
		if !errors.As(err, &remote) || *remote != (RemoteError{7, "no"}) {
			t.Errorf("have %v, want the remote's error", err)
		}
		for range 10 {
			expect.NoError(t, a.Send(b.id, methodCount, []byte("x")))
		}
		w.until("ten one-way messages", func() bool { return b.counted() == 10 })
		if have, ok := a.Remote(b.id); !ok || have != b.self {
			t.Errorf("have %v, %v, want %v", have, ok, b.self)
		}
	})
}

func TestMessagesOfAllSizesStayInOrder(t *testing.T) {
	onBothNetworks(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		random := rand.NewChaCha8([32]byte{1})
		var wait sync.WaitGroup
		for _, size := range []int{0, 1, readSize - messageHead, readSize, readSize + 1,
			maxReusedBuffer, maxReusedBuffer + 1, 1 << 20, 3, largestMessage} {
			body := make([]byte, size)
			_, _ = random.Read(body)
			want := bytes.Clone(body)
			wait.Add(1)
			a.Go(b.id, methodEcho, body, time.Minute, func(have []byte, err error) {
				defer wait.Done()
				if err != nil || !bytes.Equal(have, want) {
					t.Errorf("%d bytes: have %d bytes, %v", size, len(have), err)
				}
			})
			clear(body) // Go allows to reuse it
		}
		wait.Wait()
		if _, err := a.Call(t.Context(), b.id, methodEcho,
			make([]byte, largestMessage+1)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("have %v, want %v", err, ErrTooLarge)
		}
	})
}

func TestManyCallers(t *testing.T) {
	onBothNetworks(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		var group sync.WaitGroup
		for i := range 16 {
			group.Go(func() {
				for k := range 50 {
					text := fmt.Sprint(i, k)
					if have, err := a.Call(t.Context(), b.id, methodEcho,
						[]byte(text)); err != nil || string(have) != text {
						t.Errorf("have %q, %v, want %q", have, err, text)
					}
				}
			})
		}
		group.Wait()
	})
}

func TestCallsTimeOut(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a, b := w.pair()
		began := time.Now()
		done := make(chan error, 1)
		a.Go(b.id, methodNever, nil, 70*time.Millisecond, func(_ []byte, err error) { done <- err })
		if err := <-done; err != ErrTimeout || time.Since(began) != 70*time.Millisecond {
			t.Errorf("have %v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if _, err := a.Call(ctx, b.id, methodNever, nil); err != ErrTimeout {
			t.Errorf("have %v, want %v", err, ErrTimeout)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		if _, err := a.Call(ctx, b.id, methodNever, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("have %v, want %v", err, context.Canceled)
		}
		began = time.Now()
		if _, err := a.Call(t.Context(), b.id, methodNever, nil); err != ErrTimeout ||
			time.Since(began) != maxCallTime {
			t.Errorf("without a limit: have %v after %v", err, time.Since(began))
		}
		for _, c := range b.kept() {
			c.Reply([]byte("too late")) // dropped
		}
		w.echo(a, b, "goes on")
	})
}

func TestUnknownNodesAreUnreachable(t *testing.T) {
	onVirtualTime(t, func(t *testing.T, w *world) {
		a := w.node(1)
		stranger := ring.NodeID{9}
		if _, err := a.Call(t.Context(), stranger, methodEcho, nil); !errors.Is(err, ErrUnreachable) {
			t.Errorf("have %v", err)
		}
		expect.ErrorIs(t, a.Send(stranger, methodCount, nil), ErrUnreachable, "a.Send(stranger, methodCount, nil)")
		if _, ok := a.Remote(stranger); ok || a.Reachable(stranger) {
			t.Error("a stranger is reachable")
		}
	})
}

func TestCallAt(t *testing.T) {
	onBothNetworks(t, func(t *testing.T, w *world) {
		a, b := w.node(1), w.node(2)
		have, who, err := a.CallAt(t.Context(), b.address, methodEcho, []byte("who"))
		if err != nil || string(have) != "who" || who != b.self {
			t.Errorf("have %q from %v, %v", have, who, err)
		}
		if a.Reachable(b.id) {
			t.Error("the connection stays open")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, who, err := a.CallAt(ctx, b.address, methodNever, nil); err != ErrTimeout || who != b.self {
			t.Errorf("have %v from %v, want %v", err, who, ErrTimeout)
		}
		nowhere := "127.0.0.1:1"
		if w.net != nil {
			nowhere = "10.7.7.7:1"
		}
		ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, _, err := a.CallAt(ctx, nowhere, methodEcho, nil); !errors.Is(err, ErrUnreachable) {
			t.Errorf("have %v, want %v", err, ErrUnreachable)
		}
		a.close(t)
		if _, _, err := a.CallAt(t.Context(), b.address, methodEcho, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("have %v, want %v", err, ErrClosed)
		}
	})
}

// TestCloseEndsEveryCallOnce closes either end while calls are in flight. Each
// done runs once, and none after Close.
func TestCloseEndsEveryCallOnce(t *testing.T) {
	for _, mine := range []bool{true, false} {
		t.Run(fmt.Sprintf("mine=%v", mine), func(t *testing.T) {
			onBothNetworks(t, func(t *testing.T, w *world) {
				a, b := w.pair()
				const calls = 500
				var runs [calls]atomic.Int32
				var group sync.WaitGroup
				for i := range calls {
					method := []Method{methodEcho, methodNever, methodLater}[i%3]
					group.Go(func() {
						a.Go(b.id, method, []byte("x"), time.Duration(1+i%20)*time.Millisecond,
							func([]byte, error) { runs[i].Add(1) })
					})
				}
				if mine {
					a.close(t)
				} else {
					b.close(t)
				}
				group.Wait()
				a.close(t)
				for i := range runs {
					if have := runs[i].Load(); have != 1 {
						t.Fatalf("call %d ended %d times", i, have)
					}
				}
				a.close(t)
			})
		})
	}
}

func TestNewWantsWhatItNeeds(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("an empty configuration is valid")
	}
}
