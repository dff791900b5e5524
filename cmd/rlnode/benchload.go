package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// schedule spaces requests evenly. Without a rate, they are due at once.
type schedule struct {
	start time.Time
	rate  int // requests per second; 0 for no limit
	next  atomic.Int64
}

// wait takes the next due time, waits for it and returns it. It returns false if
// ctx ends first.
func (s *schedule) wait(ctx context.Context) (time.Time, bool) {
	if s.rate == 0 {
		return time.Now(), ctx.Err() == nil
	}
	n := s.next.Add(1) - 1
	due := s.start.Add(time.Duration(float64(n) / float64(s.rate) * float64(time.Second)))
	return due, pause(ctx, time.Until(due))
}

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// retryPause is the pause after a failed request. Without it, a node that
// refuses connections would be dialled in a busy loop.
const retryPause = 10 * time.Millisecond

// loader makes checks over one connection.
type loader struct {
	client   *fasthttp.HostClient
	request  fasthttp.Request
	response fasthttp.Response
	body     []byte
	rule     string // quoted as JSON
	keys     int
	batch    int
	wait     time.Duration // for one answer
	random   *rand.Rand
	benchFigures
}

// run makes requests until ctx ends.
func (l *loader) run(ctx context.Context, due *schedule) {
	defer l.client.CloseIdleConnections()

	for {
		at, ok := due.wait(ctx)
		if !ok {
			return
		}

		if err := l.ask(ctx); err != nil {
			end, ok := ctx.Deadline()
			if ctx.Err() != nil || ok && !time.Now().Before(end) {
				return // the run ended, so the node is not to blame
			}
			l.fail(err)
			pause(ctx, retryPause)
			continue
		}

		l.requests++
		l.latency.add(time.Since(at))
	}
}

// ask makes one request and counts the decisions in its answer.
func (l *loader) ask(ctx context.Context) error {
	l.body = l.body[:0]
	if l.batch > 1 {
		l.body = append(l.body, `{"checks":[`...)
	}

	for i := range l.batch {
		if i > 0 {
			l.body = append(l.body, ',')
		}
		l.body = appendCheck(l.body, l.rule, l.random.IntN(l.keys))
	}

	if l.batch > 1 {
		l.body = append(l.body, `]}`...)
	}

	l.request.SetBodyRaw(l.body)
	deadline := time.Now().Add(l.wait)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end // answers after the end don't count
	}

	if err := l.client.DoDeadline(&l.request, &l.response, deadline); err != nil {
		return err
	}

	return l.count(l.response.StatusCode(), l.response.Body())
}

// count counts the decisions in an answer.
func (l *loader) count(status int, body []byte) error {
	switch {
	case l.batch > 1 && status == http.StatusOK:
		allowed := bytes.Count(body, []byte(`"allowed":true`))
		refused := bytes.Count(body, []byte(`"allowed":false`))
		l.allowed += int64(allowed)
		l.refused += int64(refused)
		if bad := l.batch - allowed - refused; bad > 0 {
			return fmt.Errorf("%d of %d checks in a batch were not decided", bad, l.batch)
		}
	case status == http.StatusOK:
		l.allowed++
	case status == http.StatusTooManyRequests, status == http.StatusForbidden &&
		bytes.Contains(body, []byte(`"code":"denied"`)):
		l.refused++
	default:
		return fmt.Errorf("the node answers %d", status)
	}

	return nil
}

// quoteRule returns a rule's name as JSON; empty if there is no rule.
func quoteRule(name string) string {
	if name == "" {
		return ""
	}
	quoted, _ := json.Marshal(name) // strings and numbers can't fail
	return string(quoted)
}

// appendCheck appends a check of one subject: by rule, which is quoted, or by
// all rules if it is empty.
func appendCheck(b []byte, rule string, key int) []byte {
	if rule == "" {
		b = append(b, `{"attributes":{"ip":"`...)
	} else {
		b = append(b, `{"rule":`...)
		b = append(b, rule...)
		b = append(b, `,"key":"`...)
	}

	b = strconv.AppendInt(b, int64(10+key>>24), 10)
	for shift := 16; shift >= 0; shift -= 8 {
		b = append(b, '.')
		b = strconv.AppendInt(b, int64(key>>shift&0xff), 10)
	}

	if rule == "" {
		return append(b, `"}}`...)
	}

	return append(b, `"}`...)
}
