//go:build faults

package faults

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// echo starts a server on a host that answers each byte, and returns its address.
func echo(t *testing.T, h *host) string {
	t.Helper()
	var l net.Listener
	err := h.inside(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(h.ip, "9"))
		return err
	})
	expect.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

// roundTrips sends n bytes one by one, and returns the times of the answers, the shortest first.
func roundTrips(t *testing.T, from *host, to string, n int) (all []time.Duration) {
	t.Helper()
	c, err := from.dial(context.Background(), "tcp", to)
	expect.NoError(t, err)
	defer c.Close()
	b := []byte{1}
	for range n {
		began := time.Now()
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all
}

// hears reports whether a can connect to an address within a bound.
func hears(a *host, address string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
	defer cancel()
	c, err := a.dial(ctx, "tcp", address)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// TestRouter tests the router itself: the time of a way, the effect of a cut,
// and that it leaves nothing behind.
func TestRouter(t *testing.T) {
	goroutines, before := runtime.NumGoroutine(), leftovers(t)
	t.Run("world", func(t *testing.T) {
		n := newWorld(t, 3, 1)
		a, b, c, d := n.host(1, 1), n.host(2, 1), n.host(3, 2), n.host(4, 3)
		atB, atC, atD := echo(t, b), echo(t, c), echo(t, d)
		far, near := roundTrips(t, a, atC, 9), roundTrips(t, a, atB, 9)
		t.Logf("round trips: %v … %v to another region, %v … %v inside", far[0], far[8], near[0], near[8])
		if far[0] < 2*farDelay || far[4] > 2*farDelay+20*time.Millisecond || near[4] > 5*time.Millisecond {
			t.Errorf("have medians %v to another region and %v inside, want 80ms and under 5ms", far[4], near[4])
		}
		n.router.lag(10*time.Millisecond, 30*time.Millisecond)
		if s := roundTrips(t, a, atC, 20); s[0] < 20*time.Millisecond || s[19]-s[0] < 5*time.Millisecond {
			t.Errorf("round trips of 20 … 80 ms: have %v … %v", s[0], s[19])
		}
		n.router.lag(farDelay, 0)
		volume(t, a, atC)

		n.router.pair(1, 2)
		if hears(a, atC) || !hears(a, atD) || !hears(c, atD) || !hears(a, atB) {
			t.Error("two regions were cut off from each other, and it is not so")
		}
		n.router.mend()
		n.router.oneWay(3, 1)
		if hears(a, atD) || !hears(c, atD) || !hears(a, atC) {
			t.Error("a region does not hear another any more, and it is not so")
		}
		n.router.mend()
		n.router.off(3)
		if hears(a, atD) || hears(c, atD) || !hears(a, atC) {
			t.Error("a region was cut off, and it is not so")
		}
		n.router.apart()
		if hears(a, atC) || hears(c, atB) || !hears(a, atB) {
			t.Error("all regions were cut off, and it is not so")
		}
		n.heal()
		if !hears(a, atC) || !hears(a, atD) || !hears(d, atC) {
			t.Error("all was mended, and it is not so")
		}
		if lost := n.router.dropped.Load(); lost > 0 {
			t.Errorf("%d packets found a way full", lost)
		}
	})
	within(t, 2*time.Second, "what the router leaves behind", func() string {
		if after := leftovers(t); after != before {
			return "before:\n" + before + "after:\n" + after
		}
		if n := runtime.NumGoroutine(); n > goroutines {
			stacks := make([]byte, 1<<20)
			return fmt.Sprintf("%d goroutines:\n%s", n-goroutines, stacks[:runtime.Stack(stacks, true)])
		}
		return ""
	})
}

// volume fails if a way is a bottleneck: 16 MB must go there and back within several round trips.
func volume(t *testing.T, from *host, to string) {
	t.Helper()
	const total = 16 << 20
	c, err := from.dial(context.Background(), "tcp", to)
	expect.NoError(t, err)
	defer c.Close()
	began, sent := time.Now(), make(chan error, 1)
	go func() {
		_, err := io.CopyN(c, zeros{}, total)
		sent <- err
	}()
	if _, err := io.CopyN(io.Discard, c, total); err != nil {
		t.Fatal(err)
	}
	expect.NoError(t, <-sent)
	took := time.Since(began)
	t.Logf("%d MB to another region and back in %v", total>>20, took)
	if took > 10*time.Second {
		t.Errorf("%d MB to another region and back took %v", total>>20, took)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// leftovers returns the existing devices, rules and namespaces.
func leftovers(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, list := range [][]string{{"-o", "link"}, {"rule"}, {"netns"}, {"route", "show", "table", "all"}} {
		out, err := exec.Command("ip", list...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %v: %v: %s", list, err, out)
		}
		all.Write(out)
	}
	return all.String()
}
