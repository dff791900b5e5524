package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// waiters is how many connections TestManyWaiters holds; 20000 is what docs/operations.md tells the figures of.
var waiters = flag.Int("waiters", 0, "connections that wait at once in TestManyWaiters; 0: 2,000")

const (
	waitRate  = 2000 // checks a second
	waitFirst = 4    // seconds that the first check waits at least, and all of them at once
)

// waitingCheck is one connection with a check that waits.
type waitingCheck struct {
	conn   net.Conn
	reader *bufio.Reader
	sent   time.Time
	got    time.Time
	status int
	delay  time.Duration
	waited bool
	err    error
}

func (w *waitingCheck) send() {
	const body = `{"rule":"queue","key":"k","wait":true}`
	w.sent = time.Now()
	_, w.err = fmt.Fprintf(w.conn, "POST /v1/check HTTP/1.1\r\nHost: n\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func (w *waitingCheck) receive() {
	if w.err != nil {
		return
	}
	w.conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
	if _, w.err = w.reader.Peek(1); w.err != nil {
		return
	}
	w.got = time.Now()
	resp, err := http.ReadResponse(w.reader, nil)
	if err != nil {
		w.err = err
		return
	}
	defer resp.Body.Close()
	var a struct {
		DelayMS int64 `json:"delay_ms"`
		Waited  bool  `json:"waited"`
	}
	body, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(body, &a)
	}
	w.err, w.status, w.delay, w.waited = err, resp.StatusCode, time.Duration(a.DelayMS)*time.Millisecond, a.Waited
}

// connections opens connections to s.
func connections(t *testing.T, s *serving, n int) []*waitingCheck {
	t.Helper()
	all := make([]*waitingCheck, n)
	for i := range all {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.data, "http://"))
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		t.Cleanup(func() { conn.Close() })
		all[i] = &waitingCheck{conn: conn, reader: bufio.NewReaderSize(conn, 1024)}
	}
	return all
}

// ask sends all checks at twice the rate at which they are admitted, after the queue has been filled so far that all of
// them wait at once for waitFirst seconds. It returns when the last one is sent.
func ask(t *testing.T, s *serving, all []*waitingCheck) *sync.WaitGroup {
	t.Helper()
	fill := len(all)/2 + waitFirst*waitRate
	if status := s.check(fmt.Sprintf(`{"rule":"queue","key":"k","cost":%d}`, fill)); status != 200 {
		t.Fatalf("fill the queue: %d", status)
	}
	var done sync.WaitGroup
	began := time.Now()
	for i, w := range all {
		if due := began.Add(time.Duration(i) * time.Second / (2 * waitRate)); time.Until(due) > time.Millisecond {
			time.Sleep(time.Until(due)) // the pace of the load, no wait for anything
		}
		w.send()
		done.Go(w.receive)
	}
	return &done
}

func waitRules(n int) string {
	return fmt.Sprintf("version: 1\nrules:\n  - {name: queue, key: [ip], max_delay: 1h, limits: [{limit: %d, per: 1s, algorithm: leaky-bucket, burst: %d}]}\n",
		waitRate, 2*n+waitFirst*waitRate)
}

// figure is one metric of s.
func figure(t *testing.T, s *serving, name string) (v float64) {
	t.Helper()
	_, text, err := s.call("GET", s.admin+"/metrics", "", "")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if n, _ := fmt.Sscanf(line, name+" %g", &v); n == 1 {
			return v
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// Each of many checks that wait is answered when its own delay is over, and while they wait they take memory only.
func TestManyWaiters(t *testing.T) {
	n := *waiters
	if n == 0 {
		n = 2000
		if testing.Short() || raceDetector {
			n = 300
		}
	}
	raiseFiles(slog.New(slog.DiscardHandler))
	s := start(t, t.TempDir(), "--rules", file(t, "rules.yaml", waitRules(n)))
	s.check(`{"rule":"queue","key":"other"}`)
	before := resident(t, s)
	all := connections(t, s, n)
	idle := resident(t, s)
	done := ask(t, s, all)
	most, goroutines, waiting := 0.0, 0.0, int64(0)
	eventually(t, "all wait, or did", func() bool {
		have := figure(t, s, "rlnode_waiting")
		if goroutines = figure(t, s, "go_goroutines"); have > most {
			most, waiting = have, resident(t, s)
		}
		return goroutines < float64(n)/2 // those that served the connections stay for some seconds
	})
	done.Wait()
	if most < 0.9*float64(n) { // less on a machine so busy that the first are answered before the last have asked
		t.Errorf("have %g waiting at once, want %d", most, n)
	}
	var late []time.Duration
	for i, w := range all {
		if w.err != nil || w.status != 200 || !w.waited || w.delay < waitFirst*time.Second {
			t.Fatalf("waiter %d: have %d, delay %v, waited %v, %v", i, w.status, w.delay, w.waited, w.err)
		}
		// The delay is rounded up to a millisecond.
		if early := w.delay - time.Millisecond - w.got.Sub(w.sent); early > 0 {
			t.Fatalf("waiter %d: %v too early for a delay of %v", i, early, w.delay)
		}
		late = append(late, w.got.Sub(w.sent)-w.delay)
	}
	slices.Sort(late)
	at := func(p float64) time.Duration { return late[int(p*float64(len(late)-1))] }
	t.Logf("%d waiters: late p50 %v, p99 %v, most %v; resident %d kB, with idle connections %d kB, waiting %d kB: %d bytes each of %g waiters; %g goroutines",
		n, at(0.5), at(0.99), at(1), before>>10, idle>>10, waiting>>10, (waiting-before)/int64(most), most, goroutines)
	if bound := 500 * time.Millisecond; at(0.99) > bound { // what a busy machine keeps
		t.Errorf("p99 late by %v, want at most %v", at(0.99), bound)
	}
	if have := figure(t, s, "rlnode_waiting"); have != 0 {
		t.Errorf("have %g waiting at the end, want none", have)
	}
	s.stop()
}

// SIGTERM answers all that wait at once, with what is left of their delays.
func TestStopAnswersWaiters(t *testing.T) {
	n := max(*waiters, 300)
	raiseFiles(slog.New(slog.DiscardHandler))
	s := start(t, t.TempDir(), "--rules", file(t, "rules.yaml", waitRules(10*n)))
	all := connections(t, s, n)
	done := ask(t, s, all)
	began := time.Now()
	s.signal(syscall.SIGTERM)
	done.Wait()
	t.Logf("%d waiters answered within %v", n, time.Since(began))
	for i, w := range all {
		if w.err != nil || w.status != 200 || w.waited || w.delay <= 0 {
			t.Fatalf("waiter %d: have %d, delay %v, waited %v, %v", i, w.status, w.delay, w.waited, w.err)
		}
		if took := w.got.Sub(began); took > 5*time.Second {
			t.Errorf("waiter %d: answered after %v", i, took)
		}
	}
	within(t, 10*time.Second, "the end", func() bool {
		select {
		case <-s.exited:
			return true
		default:
			return false
		}
	})
}
