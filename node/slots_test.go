package node

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/expect"
)

const slotRules = `version: 1
rules:
  - {name: render, key: [tenant], limits: [{limit: 2, ttl: 3s, algorithm: concurrency}]}
  - {name: chat, key: [tenant], limits: [{limit: 1, ttl: 3s, algorithm: concurrency}, {limit: 100, per: 1h, unit: tokens}]}
`

// TestEmbeddedSlots: an embedded node's slots renew themselves, and are released with the node.
func TestEmbeddedSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startReady(t, Config{Rules: []byte(slotRules)})
		q := client.Request{Rule: "render", Key: []string{"acme"}, Who: "test"}
		acquire := func() *client.Slot {
			t.Helper()
			s, err := n.Acquire(t.Context(), q, 0)
			expect.NoError(t, err)
			return s
		}
		refused := func() {
			t.Helper()
			s, err := n.Acquire(t.Context(), q, 0)
			if r, ok := errors.AsType[*client.Refused](err); s != nil || !ok || r.RetryAfter <= 0 ||
				r.Code != client.CodeRateLimited {
				t.Fatalf("got %+v, %v; want a refusal", s, err)
			}
		}

		a, b := acquire(), acquire()
		if a.TTL != 3*time.Second || a.Window != 0 || a.Limit != 2 || a.Remaining != 1 || b.Remaining != 0 {
			t.Errorf("got %+v, %+v", a.Decision, b.Decision)
		}
		time.Sleep(10 * time.Second)
		refused() // both are renewed
		u, err := n.Usage(t.Context(), q)
		if err != nil || u.Limits[0].Used != 2 || u.Limits[0].Holders != 2 ||
			len(u.Limits[0].Held) != 2 || u.Limits[0].Held[0].Who != "test" {
			t.Errorf("got %+v, %v", u, err)
		}
		if err := a.Close(); err != nil || a.Context().Err() == nil || b.Context().Err() != nil {
			t.Errorf("got %v", err)
		}
		a = acquire()

		wait := q
		wait.Wait = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := n.Acquire(ctx, wait, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want to wait in vain", err)
		}
		cancel()
		time.AfterFunc(time.Second, func() { b.Close() })
		c, err := n.Acquire(t.Context(), wait, time.Second)
		expect.NoError(t, err)

		for _, bad := range []time.Duration{-1, time.Millisecond, 25 * time.Hour} {
			if _, err := n.Acquire(t.Context(), q, bad); !errors.Is(err, client.ErrRequest) {
				t.Errorf("a ttl of %v: got %v", bad, err)
			}
		}
		if _, err := n.Check(t.Context(), client.Request{Rule: "render", Key: []string{"acme"}}); err == nil {
			t.Error("a check takes slots")
		}
		limits := []client.Limit{{Limit: 1, TTL: "1s", Algorithm: "concurrency"}}
		d, err := n.Acquire(t.Context(), client.Request{Key: []string{"k"}, Limits: limits}, 0)
		expect.NoError(t, err)
		n.Close()
		for _, s := range []*client.Slot{a, c, d} {
			if s.Context().Err() == nil || s.Close() != nil {
				t.Error("a slot outlives its node, or was not released")
			}
		}
	})
}

// TestEmbeddedReservationsHoldSlots: until they are settled.
func TestEmbeddedReservationsHoldSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startReady(t, Config{Rules: []byte(slotRules)})
		q := client.Request{Rule: "chat", Key: []string{"acme"}, Costs: map[string]int64{"tokens": 10}}
		r, err := n.Reserve(t.Context(), q, time.Minute)
		if err != nil || r.Slot == nil {
			t.Fatalf("got %+v, %v", r, err)
		}
		time.Sleep(10 * time.Second)
		if again, err := n.Reserve(t.Context(), q, time.Minute); err != nil || again.Allowed || again.Slot != nil {
			t.Errorf("got %+v, %v; want a refusal", again, err)
		}
		if _, err := n.Settle(t.Context(), r.ID, map[string]int64{"tokens": -7}); !errors.Is(err, client.ErrRequest) {
			t.Errorf("a negative cost: got %v", err)
		}
		time.Sleep(10 * time.Second)
		expect.NoError(t, r.Slot.Context().Err())
		if _, err := n.Settle(t.Context(), r.ID, map[string]int64{"tokens": 7}); err != nil {
			t.Error(err)
		}
		if r.Slot.Context().Err() == nil {
			t.Error("the slot goes on")
		}
		again, err := n.Reserve(t.Context(), q, time.Minute)
		if err != nil || !again.Allowed {
			t.Errorf("got %+v, %v", again, err)
		}
	})
}

// TestEmbeddedReservationsHoldSlotsInTheirDelay: a delay may be longer than the slot's ttl.
func TestEmbeddedReservationsHoldSlotsInTheirDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startReady(t, Config{Rules: []byte(`version: 1
rules:
  - {name: slots, key: [tenant], limits: [{limit: 2, ttl: 3s, algorithm: concurrency}]}
  - {name: pace, key: [tenant], limits: [{limit: 1, per: 10s, algorithm: leaky-bucket, burst: 2}]}
`)})
		q := client.Request{Attributes: map[string]string{"tenant": "acme"}, Wait: true}
		for range 2 {
			r, err := n.Reserve(t.Context(), q, time.Minute)
			if err != nil || r.Slot == nil {
				t.Fatalf("got %+v, %v", r, err)
			}
			time.Sleep(time.Second)
			expect.NoError(t, r.Slot.Context().Err())
		}
	})
}

// TestEmbeddedMiddlewareHoldsSlots: for the length of the response.
func TestEmbeddedMiddlewareHoldsSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startReady(t, Config{Rules: []byte(slotRules)})
		goOn := make(chan struct{})
		handler := client.Middleware(n,
			client.MiddlewareOptions{Rule: "chat",
				Key: func(*http.Request) []string { return []string{"acme"} }, Slots: true})(
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-goOn }))
		get := func() int {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			return w.Code
		}
		first := make(chan int)
		go func() { first <- get() }()
		synctest.Wait()
		time.Sleep(10 * time.Second)
		expect.Equal(t, get(), 429, "while one is served")
		close(goOn)
		if got := <-first; got != 200 {
			t.Errorf("got %d", got)
		}
		synctest.Wait()
		expect.Equal(t, get(), 200, "after it")
	})
}

// TestLostSlotsOutliveAKill: a node whose file of counters is gone grants no
// slots in place of those in it, also if it is killed before it has written a
// new file.
func TestLostSlotsOutliveAKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "counters.db")
	config := Config{DataDir: dir, Rules: []byte(`version: 1
rules: [{name: render, key: [tenant], limits: [{limit: 2, ttl: 1h, algorithm: concurrency}]}]`)}
	q := client.Request{Rule: "render", Key: []string{"acme"}, Slots: 2}

	n := startReady(t, config)
	d, _, err := n.decideSlot(t.Context(), &q, 0) // nothing releases these slots
	if err != nil || !d.Allowed {
		t.Fatalf("got %+v, %v", d, err)
	}
	expect.NoError(t, n.Close())
	expect.NoError(t, os.Remove(file))

	// The first checkpoint comes a second after the start. A kill before it leaves
	// this file.
	n, err = Start(t.Context(), config)
	expect.NoError(t, err)
	left, err := os.ReadFile(file)
	expect.NoError(t, err)
	expect.NoError(t, n.Close())
	expect.NoError(t, os.WriteFile(file, left, 0o600))

	n = startReady(t, config)
	d, _, err = n.decideSlot(t.Context(), &q, 0)
	if err != nil || d.Allowed {
		t.Errorf("got %+v, %v; want a refusal: others hold the slots", d, err)
	}
}
