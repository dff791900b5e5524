package client

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// cutConnection closes the connection of a request without an answer.
func cutConnection(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }

func says(status int, body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(status)
		w.Write([]byte(body))
		return true
	}
}

// TestFailover: however the first node fails, the second one decides, and from
// then on is asked at once. When the first one recovers, it is asked again.
func TestFailover(t *testing.T) {
	for name, wrong := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"draining":  says(503, `{"status":503,"code":"draining"}`),
		"not ready": says(503, `{"status":503,"code":"not-ready"}`),
		"a proxy's": says(502, "<html>"),
		"cut":       cutConnection,
		"silent": func(_ http.ResponseWriter, r *http.Request) bool {
			<-r.Context().Done()
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newFake(t), newFake(t)
			c := connect(t, Options{Timeout: 400 * time.Millisecond, OnError: Closed}, a, b)
			a.set(func() { a.ready, a.answer = 503, wrong })
			for i := range 10 {
				if d, err := c.Check(background, byIP("x")); err != nil || !d.Allowed {
					t.Errorf("check %d: have %+v, %v", i, d, err)
				}
			}
			expect.Equal(t, len(a.requests()), 1, "the first node requests")
			before := len(b.requests())
			a.set(func() { a.ready, a.answer = 200, nil })
			process.Eventually(t, "the first node is asked again", func() bool {
				if d, err := c.Check(background, byIP("x")); err != nil || !d.Allowed {
					t.Errorf("have %+v, %v", d, err)
				}
				return len(a.requests()) == 2
			})
			if len(b.requests()) < before {
				t.Error("the second node got no requests meanwhile")
			}
		})
	}
}

// TestAlone: the only node is asked again right after a failure, as long as it fails fast.
func TestAlone(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	f.set(func() { f.ready, f.answer = 503, says(503, `{"code":"draining"}`) })
	for range 3 {
		var e *Error
		if _, err := c.Check(background, byIP("x")); !errors.As(err, &e) || e.Code != "draining" ||
			!errors.Is(err, ErrUnavailable) {
			t.Errorf("have %v", err)
		}
	}
	f.set(func() { f.answer = nil })
	if _, err := c.Check(background, byIP("x")); err != nil {
		t.Errorf("well again: have %v", err)
	}
}

// TestOverloadedIsNotAway: an overloaded node still gets the next check.
func TestOverloadedIsNotAway(t *testing.T) {
	a, b := newFake(t), newFake(t)
	c := connect(t, Options{}, a, b)
	a.set(func() { a.answer = says(503, `{"code":"overloaded"}`) })
	for range 3 {
		if _, err := c.Check(background, byIP("x")); err != nil {
			t.Error(err)
		}
	}
	expect.Equal(t, len(a.requests()), 3, "the node requests")
}

// TestTooManyReservations: a node that has no room for another reservation is
// well, so that checks still go there. No other node is asked to reserve, as it
// would ask the same owner.
func TestTooManyReservations(t *testing.T) {
	a, b := newFake(t), newFake(t)
	c := connect(t, Options{}, a, b)
	well := a.answer
	a.set(func() { a.answer = says(503, `{"status":503,"code":"too-many-reservations"}`) })
	_, err := c.Reserve(background, byIP("x"), time.Minute)
	var problem *Error
	if !errors.As(err, &problem) || problem.Code != "too-many-reservations" {
		t.Errorf("have %v", err)
	}

	a.set(func() { a.answer = well })
	for range 3 {
		if _, err := c.Check(background, byIP("y")); err != nil {
			t.Error(err)
		}
	}
	if first, second := len(a.requests()), len(b.requests()); first != 4 || second != 0 {
		t.Errorf("the nodes got %d and %d requests, want 4 and none", first, second)
	}
}

// TestSettleWaitsForTheOwner: Settle is retried, even while another node is
// down. The nodes that answer are not skipped for it.
func TestSettleWaitsForTheOwner(t *testing.T) {
	a, b, down := newFake(t), newFake(t), newFake(t)
	down.set(func() { down.ready, down.answer = 503, cutConnection })
	c := connect(t, Options{Timeout: process.Timeout}, down, a, b)
	away := says(503, `{"status":503,"code":"no-owner"}`)
	a.set(func() { a.answer = away })
	b.set(func() { b.answer = away })
	var err error
	var one sync.WaitGroup
	one.Go(func() { _, err = c.Settle(background, "id", nil) })
	process.Eventually(t, "both have been asked twice",
		func() bool { return len(a.requests()) >= 2 && len(b.requests()) >= 2 })
	for i, n := range c.nodes[1:] {
		if n.currentCondition() != healthy {
			t.Errorf("node %d is skipped", i+1)
		}
	}
	b.set(func() {
		b.answer = nil
		b.decide = func(map[string]any) (int, string) { return 200, `{"settled":true}` }
	})
	one.Wait()
	if err != nil {
		t.Error(err)
	}
	short := connect(t, Options{Timeout: 60 * time.Millisecond}, a)
	if _, err := short.Settle(background, "id", nil); err == nil {
		t.Error("without an owner, Settle returned no error")
	}
}

// TestAdjustIsMadeOnce: Adjust is retried with the same id. A node that does
// not know ids gets a retry only if the first call can't have taken effect.
func TestAdjustIsMadeOnce(t *testing.T) {
	down := httptest.NewUnstartedServer(nil)
	down.Close() // no listener
	for _, test := range []struct {
		name  string
		first func(http.ResponseWriter, *http.Request) bool
	}{
		{"draining", says(503, `{"code":"draining"}`)}, {"cut", cutConnection}, {"500", says(500, "")},
	} {
		a, b := newFake(t), newFake(t)
		b.set(func() { b.decide = func(map[string]any) (int, string) { return 200, `{"rule":"r","key":"k"}` } })
		a.set(func() { a.answer = test.first })
		c := connect(t, Options{}, a, b)
		_, err := c.Adjust(background, "r", []string{"k"}, -5)
		if err != nil || len(b.requests()) != 1 || len(a.requests()) != 1 {
			t.Errorf("%s: the nodes got %d and %d requests; error %v", test.name, len(a.requests()),
				len(b.requests()), err)
			continue
		}
		if one, two := a.requests()[0].checks[0]["request_id"], b.requests()[0].checks[0]["request_id"]; one == nil || one != two {
			t.Errorf("%s: the ids are %v and %v", test.name, one, two)
		}
	}
	old := newFake(t)
	old.set(func() {
		old.decide = func(asked map[string]any) (int, string) {
			if asked["request_id"] != nil {
				return 400, `{"status":400,"code":"unknown-field"}`
			}
			return 200, `{"rule":"r","key":"k"}`
		}
	})
	if _, err := connect(t, Options{}, old).Adjust(background, "r", []string{"k"},
		-5); err != nil || len(old.requests()) != 2 {
		t.Errorf("a node that does not know ids: %d requests, %v", len(old.requests()), err)
	}
	b := newFake(t)
	b.set(func() { b.decide = func(map[string]any) (int, string) { return 200, `{"rule":"r","key":"k"}` } })
	c := connect(t, Options{Nodes: []string{"http://127.0.0.1:1"}}, b)
	if _, err := c.Adjust(background, "r", []string{"k"}, -5); err != nil {
		t.Errorf("with the first node down: %v", err)
	}
}

// TestWhoLeavesBlamesNobody: if a caller's context ends, the node does not count as silent.
func TestWhoLeavesBlamesNobody(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{Timeout: process.Timeout}, f)
	release := f.holdAnswers()
	ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
	defer cancel()
	d, err := c.Check(ctx, byIP("x"))
	wantError(t, err, context.DeadlineExceeded)
	if d.DecidedBy != ByError {
		t.Errorf("have %+v", d)
	}
	// Nor does it after a call that had waited so long that little of its time was left.
	late, cancelLate := context.WithTimeoutCause(background, 20*time.Millisecond, ErrTimeout)
	defer cancelLate()
	_, err = c.ask(late, "/v1/check", []byte("{}"), maxAnswer, retryAlways)
	wantError(t, err, ErrTimeout)
	expect.Equal(t, c.nodes[0].currentCondition(), healthy, "the node has condition")
	release()
	if _, err := c.Check(background, byIP("x")); err != nil {
		t.Error(err)
	}
}

// TestNodesComeAndGo: under load, two nodes in turn stop answering and come
// back. Every check is decided by a node.
func TestNodesComeAndGo(t *testing.T) {
	a, b := newFake(t), newFake(t)
	c := connect(t, Options{Timeout: process.Timeout}, a, b)
	stop := make(chan struct{})
	var all sync.WaitGroup
	var done [8]atomic.Int64 // checks made by each caller
	for i := range done {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if d, err := c.Check(background, byIP("x")); err != nil || d.DecidedBy != ByOwner {
					t.Errorf("have %+v, %v", d, err)
					return
				}
				done[i].Add(1)
			}
		})
	}
	// A check that finds one node silent may reach the other one just as that stops answering, too.
	settle := func() {
		for i := range done {
			before := done[i].Load()
			process.Eventually(t, "checks that met the node as it was are over",
				func() bool { return t.Failed() || done[i].Load() > before+1 })
		}
	}
	for range 3 {
		for _, f := range []*fake{a, b} {
			before := len(f.requests())
			f.set(func() { f.ready, f.answer = 503, cutConnection })
			other := a
			if f == a {
				other = b
			}
			n := len(other.requests())
			process.Eventually(t, "the other one is asked", func() bool { return len(other.requests()) > n+20 })
			f.set(func() { f.ready, f.answer = 200, nil })
			settle()
			if f == a {
				process.Eventually(t, "it is asked again", func() bool { return len(f.requests()) > before+20 })
			}
		}
	}
	close(stop)
	all.Wait()
}

// TestFailsAndAnswersAtOnce: a call in flight may get an answer from a node
// just after another call to it has failed.
func TestFailsAndAnswersAtOnce(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	n := c.nodes[0]
	for range 200 {
		c.markFailed(n, failing, errors.New("cut"))
		n.markHealthy()
		process.Eventually(t, "nobody watches it", func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return !n.probing && n.condition == healthy
		})
	}
}
