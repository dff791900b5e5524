package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// TestCallersInProcessMoveUp: callers of the program itself wait in one queue
// with those of the data plane. One that gives up leaves its place to those
// behind it.
func TestCallersInProcessMoveUp(t *testing.T) {
	t.Parallel()
	n := startReady(t, Config{DataAddr: "127.0.0.1:0", Rules: []byte(`version: 1
rules:
  - {name: slow, key: [k], max_delay: 10h, limits: [{limit: 1, per: 1h, algorithm: leaky-bucket, burst: 100}]}
`)})
	time.Sleep(1500 * time.Millisecond) // until the rates of buckets are known to be as they were
	request := client.Request{Rule: "slow", Key: []string{"x"}, Wait: true}
	queued := func() int64 {
		d, err := n.Peek(t.Context(), client.Request{Rule: "slow", Key: []string{"x"}})
		if err != nil {
			t.Error(err)
		}
		return int64(d.Delay.Round(time.Hour) / time.Hour)
	}
	wait := func(places int64) (giveUp func()) {
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() {
			_, err := n.Check(ctx, request)
			over <- err
		}()
		process.Eventually(t, "it waits", func() bool { return queued() == places+1 })
		return func() {
			cancel()
			if err := <-over; !errors.Is(err, context.Canceled) {
				t.Errorf("one that gave up got %v", err)
			}
		}
	}

	if d, err := n.Check(t.Context(), request); err != nil || d.Delay > 0 {
		t.Fatalf("the first caller got %+v, %v", d, err)
	}
	firstGivesUp := wait(1)
	outside := askToWait(t, n)
	process.Eventually(t, "it waits", func() bool { return n.numWaiting() == 1 })
	lastGivesUp := wait(3)
	defer lastGivesUp()

	firstGivesUp()
	process.Eventually(t, "those behind move up", func() bool { return queued() == 3 })
	if got := delayLeft(t, n, outside); got > time.Hour {
		t.Errorf("the caller of the data plane waits another %v, want an hour at most", got)
	}
}

// TestReservationOfACallerThatGivesUp: what a reservation has taken comes back
// if its caller gives up during the delay, unless it may ask again.
func TestReservationOfACallerThatGivesUp(t *testing.T) {
	t.Parallel()
	n := startReady(t, Config{Rules: []byte(`version: 1
rules:
  - {name: slow, key: [k], max_delay: 10h, limits: [{limit: 1, per: 1h, algorithm: leaky-bucket, burst: 100}]}
`)})
	time.Sleep(1500 * time.Millisecond) // until the rates of buckets are known to be as they were

	for id, kept := range map[string]time.Duration{"": 0, "again": time.Hour} {
		request := client.Request{Rule: "slow", Key: []string{"x" + id}, Wait: true}
		if d, err := n.Check(t.Context(), request); err != nil || d.Delay > 0 {
			t.Fatalf("the first caller got %+v, %v", d, err)
		}

		request.RequestID = id
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		r, err := n.Reserve(ctx, request, time.Minute)
		if !errors.Is(err, context.DeadlineExceeded) || (r.ID != "") != (id != "") {
			t.Errorf("request id %q: got the reservation %q and %v", id, r.ID, err)
		}

		d, err := n.Peek(t.Context(), client.Request{Rule: "slow", Key: request.Key})
		if got := d.Delay.Round(time.Hour) - time.Hour; err != nil || got != kept {
			t.Errorf("request id %q: got %v of delay kept, %v; want %v", id, got, err, kept)
		}
	}
}

// delayLeft returns what the caller that waits at n has left, as it is when c
// says that it sends no more.
func delayLeft(t *testing.T, n *Node, c net.Conn) time.Duration {
	t.Helper()
	expect.NoError(t, c.(*net.TCPConn).CloseWrite())
	expect.NoError(t, c.SetReadDeadline(time.Now().Add(startTimeout)))
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	expect.NoError(t, err)
	defer r.Body.Close()
	var answer struct {
		DelayMS int64 `json:"delay_ms"`
	}
	expect.NoError(t, json.NewDecoder(r.Body).Decode(&answer))
	return time.Duration(answer.DelayMS) * time.Millisecond
}

// TestCallersInProcessGoOnEarlier: one that moves up goes on at the time of the
// place that it now has, and at no other.
func TestCallersInProcessGoOnEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startReady(t, Config{Rules: []byte(`version: 1
rules:
  - {name: slow, key: [k], max_delay: 10h, limits: [{limit: 1, per: 1h, algorithm: leaky-bucket, burst: 100}]}
`)})
		time.Sleep(time.Minute)
		request := client.Request{Rule: "slow", Key: []string{"x"}, Wait: true}
		if d, err := n.Check(t.Context(), request); err != nil || d.Delay > 0 {
			t.Fatalf("the first caller got %+v, %v", d, err)
		}

		began := time.Now()
		var passed [4]time.Duration
		var all sync.WaitGroup
		for i := range passed {
			ctx, cancel := context.WithCancel(t.Context())
			all.Go(func() {
				defer cancel()
				if _, err := n.Check(ctx, request); err != nil {
					passed[i] = -1
				} else {
					passed[i] = time.Since(began).Round(time.Second)
				}
			})
			synctest.Wait()
			if i == 1 {
				time.AfterFunc(time.Minute, cancel)
			}
		}
		all.Wait()

		if want := [4]time.Duration{time.Hour, -1, 2 * time.Hour, 3 * time.Hour}; passed != want {
			t.Errorf("got %v, want %v", passed, want)
		}
	})
}
