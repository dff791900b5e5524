package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// checkConcurrently makes n checks at once and returns their decisions and errors.
func checkConcurrently(c *Client, n int, q func(i int) Request) (ds []Decision, errs []error, wait func()) {
	ds, errs = make([]Decision, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { ds[i], errs[i] = c.Check(background, q(i)) })
	}
	return ds, errs, all.Wait
}

func (c *Client) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue)
}

func eachIP(i int) Request { return byIP(fmt.Sprint("ip", i)) }

// sizes returns how many checks each request to f had.
func (f *fake) sizes() (n []int) {
	for _, r := range f.requests() {
		n = append(n, len(r.checks))
	}
	return n
}

// TestCallsShareRequests: checks made while MaxInFlight requests are in flight
// are sent together, and each caller gets its own answer.
func TestCallsShareRequests(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{MaxInFlight: 2, MaxBatch: 10, Timeout: process.Timeout}, f)
	release := f.holdAnswers()
	f.set(func() {
		f.decide = func(q map[string]any) (int, string) {
			ip := q["attributes"].(map[string]any)["ip"].(string)
			if ip == "ip7" || ip == "ip8" {
				return 400, `{"status":400,"code":"bad-value","detail":"` + ip + `"}`
			}
			return 200, strings.Replace(allowed, `"rule":"r"`, `"rule":"`+ip+`"`, 1)
		}
	})
	ds, errs, wait := checkConcurrently(c, 34, eachIP)
	process.Eventually(t, "two are under way and the rest waits",
		func() bool { return c.waiting() == 32 && len(f.requests()) == 2 })
	release()
	wait()
	for i := range ds {
		bad := i == 7 || i == 8
		if (errs[i] != nil) != bad || !bad && ds[i].Rule != fmt.Sprint("ip", i) {
			t.Errorf("check %d: have %+v, %v", i, ds[i], errs[i])
		}
		if e, ok := errs[i].(*Error); bad && (!ok || e.Status != 400 || e.Detail != fmt.Sprint("ip", i)) {
			t.Errorf("check %d: have error %v", i, errs[i])
		}
	}
	sum := 0
	for i, n := range f.sizes() {
		sum += n
		if n > 10 || i < 2 && n != 1 {
			t.Errorf("request %d has %d checks", i, n)
		}
	}
	if n := len(f.sizes()); sum != 34 || n != 6 {
		t.Errorf("have %d checks in %d requests, want 34 in 6: %v", sum, n, f.sizes())
	}
}

// TestLoneCallsGoAlone: calls made one after the other are plain checks.
func TestLoneCallsGoAlone(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{MaxInFlight: 1}, f)
	for range 5 {
		if _, err := c.Check(background, byIP("a")); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range f.requests() {
		expect.Equal(t, r.path, "/v1/check", "a request")
	}
}

func TestQueueIsBounded(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{MaxInFlight: 1, MaxQueue: 3, Timeout: process.Timeout, OnError: Open}, f)
	release := f.holdAnswers()
	_, errs, wait := checkConcurrently(c, 4, eachIP)
	process.Eventually(t, "the queue is full", func() bool { return c.waiting() == 3 })
	began := time.Now()
	d, err := c.Check(background, byIP("x"))
	wantError(t, err, ErrQueueFull)
	if d.Allowed || d.DecidedBy != ByError || time.Since(began) > process.Timeout/2 {
		t.Errorf("have %+v after %v", d, time.Since(began))
	}
	w := get(Middleware(c, MiddlewareOptions{})(ok), "/")
	if have := text(w); w.StatusCode != 503 || !strings.Contains(have, "Too many calls wait") {
		t.Errorf("middleware: have %d %s", w.StatusCode, have)
	}
	// Unbatched calls have a separate bound.
	var three sync.WaitGroup
	for range 3 {
		three.Go(func() { c.Adjust(background, "r", nil, 1) })
	}
	process.Eventually(t, "three adjustments are under way", func() bool { return len(c.otherCalls) == 3 })
	_, err = c.Adjust(background, "r", nil, 1)
	wantError(t, err, ErrQueueFull)
	release()
	wait()
	three.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("check %d: %v", i, err)
		}
	}
}

// TestOpenWhenFull: a full queue lets calls pass only with OpenWhenFull and Open.
func TestOpenWhenFull(t *testing.T) {
	for policy, want := range map[OnError]bool{Open: true, Closed: false} {
		f := newFake(t)
		c := connect(t,
			Options{MaxInFlight: 1, MaxQueue: 1, Timeout: process.Timeout, OnError: policy, OpenWhenFull: true},
			f)
		release := f.holdAnswers()
		_, _, wait := checkConcurrently(c, 2, eachIP)
		process.Eventually(t, "the queue is full", func() bool { return c.waiting() == 1 })
		d, err := c.Check(background, byIP("x"))
		wantError(t, err, ErrQueueFull)
		if d.Allowed != want {
			t.Errorf("OnError %d: have %+v", policy, d)
		}
		release()
		wait()
	}
}

// slowDown makes f take d for every answer.
func (f *fake) slowDown(d time.Duration) {
	f.set(func() {
		f.answer = func(_ http.ResponseWriter, r *http.Request) bool {
			sleep(r.Context(), d)
			return false
		}
	})
}

// TestStarvedCallsDoNotPass: calls that are not sent in time while the node
// answers others are not left to OnError.
func TestStarvedCallsDoNotPass(t *testing.T) {
	for name, tt := range map[string]struct {
		n   int
		ask func(c *Client, i int) (Decision, error)
	}{
		"check": {60, func(c *Client, i int) (Decision, error) { return c.Check(background, eachIP(i)) }},
		"reserve": {64 * 30, func(c *Client, i int) (Decision, error) {
			r, err := c.Reserve(background, eachIP(i), 0)
			return r.Decision, err
		}},
	} {
		onVirtualTime(t, name, func(t *testing.T, f *fake, connectTo func(Options) *Client) {
			f.set(func() {
				f.decide = func(map[string]any) (int, string) {
					return 200, strings.Replace(allowed, "{", `{"reservation":"id",`, 1)
				}
			})
			f.slowDown(200 * time.Millisecond)
			c := connectTo(Options{MaxInFlight: 1, MaxBatch: 1, Timeout: 2 * time.Second, OnError: Open})
			var answered, starved atomic.Int64
			var all sync.WaitGroup
			for i := range tt.n {
				all.Go(func() {
					d, err := tt.ask(c, i)
					switch {
					case err == nil && d.Allowed:
						answered.Add(1)
					case errors.Is(err, ErrQueueFull) && errors.Is(err, ErrTimeout) && !d.Allowed:
						starved.Add(1)
					default:
						t.Errorf("call %d: have %+v, %v", i, d, err)
					}
				})
			}
			all.Wait()
			if answered.Load() == 0 || starved.Load() == 0 {
				t.Errorf("%d calls were answered and %d starved, want some of each", answered.Load(), starved.Load())
			}
		})
	}
}

// TestSilentNodesAreNoFullQueue: if no call is answered, OnError decides the
// waiting calls like all others.
func TestSilentNodesAreNoFullQueue(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{MaxInFlight: 1, Timeout: 300 * time.Millisecond, OnError: Open}, f)
	defer f.holdAnswers()()
	ds, errs, wait := checkConcurrently(c, 20, eachIP)
	wait()
	for i, d := range ds {
		if !d.Allowed || errs[i] == nil {
			t.Errorf("check %d: have %+v, %v", i, d, errs[i])
		}
	}
}

// TestWhoLeavesIsNotAsked: a check whose context ends while it waits is not sent. The others are.
func TestWhoLeavesIsNotAsked(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{MaxInFlight: 1, Timeout: process.Timeout}, f)
	release := f.holdAnswers()
	_, errs, wait := checkConcurrently(c, 3, eachIP)
	process.Eventually(t, "two wait", func() bool { return c.waiting() == 2 })
	ctx, cancel := context.WithCancel(background)
	left := make(chan error)
	go func() {
		_, err := c.Check(ctx, byIP("left"))
		left <- err
	}()
	process.Eventually(t, "three wait", func() bool { return c.waiting() == 3 })
	cancel()
	wantError(t, <-left, context.Canceled)
	release()
	wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("check %d: %v", i, err)
		}
	}
	for _, r := range f.requests() {
		for _, q := range r.checks {
			if q["attributes"].(map[string]any)["ip"] == "left" {
				t.Error("an abandoned check was sent")
			}
		}
	}
	if _, err := c.Check(ctx, byIP("late")); err == nil || len(f.sizes()) > 3 {
		t.Errorf("a context that is over: have %v, %d requests", err, len(f.sizes()))
	}
}

// TestDeadlinesOfABatch: each caller's own deadline counts, and Timeout runs
// from the start of the call.
func TestDeadlinesOfABatch(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{MaxInFlight: 1, Timeout: 150 * time.Millisecond}, f)
	defer f.holdAnswers()()
	began := time.Now()
	_, errs, wait := checkConcurrently(c, 5, eachIP)
	wait()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the calls took %v", took)
	}
	for _, err := range errs {
		if !errors.Is(err, ErrUnavailable) { // on a slow machine a call may come late
			wantError(t, err, ErrTimeout)
		}
	}
	// The node is known to be silent, so that no other call waits for it.
	began = time.Now()
	_, err := c.Check(background, byIP("x"))
	wantError(t, err, ErrUnavailable)
	if took := time.Since(began); took > 100*time.Millisecond {
		t.Errorf("a check while the node is silent took %v", took)
	}
}

// TestBadBatches: an answer that does not match its batch decides none of its checks.
func TestBadBatches(t *testing.T) {
	for _, answer := range []string{"", "[]", `{"results":[]}`, `{"results":[` + allowed + `]}`,
		`{"results":[` + allowed + "," + allowed + "," + allowed + `]}`, `{"results":[{},{}]}`,
		`{"results":[null,null]}`, `{"results":7}`} {
		f := newFake(t)
		c := connect(t, Options{MaxInFlight: 1, OnError: Closed, Timeout: process.Timeout}, f)
		release := f.holdAnswers()
		ds, errs, wait := checkConcurrently(c, 1, eachIP)
		process.Eventually(t, "one is under way", func() bool { return len(f.requests()) == 1 })
		more, moreErrs, waitMore := checkConcurrently(c, 2, eachIP)
		process.Eventually(t, "two wait", func() bool { return c.waiting() == 2 })
		f.set(func() {
			f.answer = func(w http.ResponseWriter, r *http.Request) bool {
				w.Write([]byte(answer))
				return r.URL.Path == "/v1/check/batch"
			}
		})
		release()
		wait()
		waitMore()
		if errs[0] != nil || !ds[0].Allowed {
			t.Errorf("%s: the lone check: have %+v, %v", answer, ds[0], errs[0])
		}
		for i := range more {
			wantError(t, moreErrs[i], ErrBadAnswer)
			if more[i].Allowed {
				t.Errorf("%s: have %+v", answer, more[i])
			}
		}
	}
}

// TestCloseEndsCalls: Close ends the calls in progress and the waiting ones,
// and leaves nothing behind.
func TestCloseEndsCalls(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{MaxInFlight: 2, Timeout: time.Minute}, f)
	defer f.holdAnswers()()
	_, errs, wait := checkConcurrently(c, 20, eachIP)
	var reserve error
	var one sync.WaitGroup
	one.Go(func() { _, reserve = c.Reserve(background, byIP("r"), 0) })
	process.Eventually(t, "all are on their way", func() bool { return c.waiting() == 18 && len(f.requests()) == 3 })
	c.Close()
	wait()
	one.Wait()
	for _, err := range append(errs, reserve) {
		wantError(t, err, ErrClosed)
	}
	d, err := c.Check(background, byIP("late"))
	wantError(t, err, ErrClosed)
	if !d.Allowed {
		t.Errorf("have %+v", d)
	}
	c.Close()
	if c.waiting() != 0 || c.inFlight != 0 {
		t.Errorf("%d calls wait, %d are in flight", c.waiting(), c.inFlight)
	}
}

// TestRush: many callers make calls repeatedly. Each gets an answer, and nothing is left behind.
func TestRush(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{Timeout: process.Timeout}, f)
	f.set(func() {
		f.decide = func(q map[string]any) (int, string) {
			return 200, strings.Replace(allowed, `"rule":"r"`,
				`"rule":"`+q["attributes"].(map[string]any)["ip"].(string)+`"`, 1)
		}
	})
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			for j := range 20 {
				ip := fmt.Sprintf("%d-%d", i, j)
				if d, err := c.Check(background, byIP(ip)); err != nil || d.Rule != ip {
					t.Errorf("%s: have %+v, %v", ip, d, err)
				}
			}
		})
	}
	all.Wait()
	process.Eventually(t, "nothing is under way", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.queue) == 0 && c.inFlight == 0
	})
	sum, requests := 0, f.sizes()
	for _, n := range requests {
		sum += n
	}
	if sum != 4000 || len(requests) > 2000 {
		t.Errorf("%d checks in %d requests", sum, len(requests))
	}
}
