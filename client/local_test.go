package client

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestLocal: while no node answers, limits within the process decide, for one
// subject and for several.
func TestLocal(t *testing.T) {
	dead := newFake(t)
	dead.Close()
	c := connect(t, Options{OnError: Local, Local: perMinute(2)}, dead)
	tokens := Limit{Limit: 100, Per: "1h", Unit: "tokens", Algorithm: "token-bucket", Burst: 150}
	inline := Request{Key: []string{"a"}, Limits: append(perMinute(3), tokens), Costs: map[string]int64{"tokens": 50}}
	change := func(f func(*Request)) Request { q := inline; f(&q); return q }
	for i, step := range []struct {
		q               Request
		allowed         bool
		used, remaining int64
	}{
		{inline, true, 1, 2},
		{change(func(q *Request) { q.Mode = PeekMode }), true, 2, 1},
		{inline, true, 2, 1},
		{change(func(q *Request) { q.Costs = map[string]int64{"tokens": 51} }), false, 100, 50},
		{change(func(q *Request) { q.Costs = map[string]int64{"tokens": 51}; q.Shadow = true }), true, 3, 0},
		{change(func(q *Request) {
			q.Mode, q.Costs = CountMode,
				map[string]int64{"tokens": 60, "requests": 0}
		}), false, 211, 0},
		{change(func(q *Request) { q.Namespace = "other" }), true, 1, 2},
		{change(func(q *Request) { q.Key = []string{"a", ""} }), true, 1, 2},
		{Request{Subjects: []Subject{{Key: []string{"s"}, Limits: perMinute(1)},
			{Key: []string{"t"}, Limits: perMinute(5), Cost: 6}}}, false, 0, 5},
		{Request{Subjects: []Subject{{Key: []string{"s"}, Limits: perMinute(1)},
			{Key: []string{"t"}, Limits: perMinute(5), Cost: 5}}}, true, 1, 0},
		{Request{Rule: "r", Key: []string{"a"}}, true, 1, 1},
		{Request{Rule: "r", Key: []string{"a"}, Cost: 2}, false, 1, 1},
		{Request{Rule: "r", Key: []string{"b"}}, true, 1, 1},
		{Request{Rule: "q", Key: []string{"a"}}, true, 1, 1},
		{byIP("192.0.2.1"), true, 1, 1},
		{Request{Attributes: map[string]string{"ip": "192.0.2.1", "endpoint": "/a", "method": "PUT"}}, true, 2, 0},
		{byIP("192.0.2.1"), false, 2, 0},
		{byIP("192.0.2.2"), true, 1, 1},
	} {
		d, err := c.Check(background, step.q)
		if err == nil || d.Allowed != step.allowed || d.Used != step.used ||
			d.Remaining != step.remaining || d.DecidedBy != ByLocal || d.Rule == "" {
			t.Errorf("%d: have %+v, %v, want %+v", i, d, err, step)
		}
		if !d.Allowed && (d.Reason == "" || d.RetryAfter == 0 || d.Counted != (step.q.Mode == CountMode)) {
			t.Errorf("%d: have %+v", i, d)
		}
	}
	if r, _ := c.Reserve(background, Request{Rule: "q", Key: []string{"a"}, Cost: 2}, 0); r.Allowed || r.ID != "" {
		t.Errorf("have %+v", r)
	}
	if d, _ := c.Check(background, Request{Rule: "r", Key: []string{"never"}, Cost: 3}); d.RetryAfter != Never {
		t.Errorf("have %+v", d)
	}
	_, err := New(Options{Nodes: []string{dead.URL}, OnError: Local})
	wantError(t, err, ErrRequest)
	if d, _ := c.Check(background,
		Request{Key: []string{"a"}, Limits: []Limit{{Limit: 1, Per: "1 fortnight"}}}); d.Allowed || d.Reason == "" {
		t.Errorf("have %+v", d)
	}
	for _, bad := range []Limit{{Limit: 1}, {Limit: -1, Per: "1m"}, {Limit: 1, Per: "fortnight"}} {
		if _, err := New(Options{Nodes: []string{"http://127.0.0.1:1"}, OnError: Local,
			Local: []Limit{bad}}); err == nil {
			t.Errorf("New accepted %+v", bad)
		}
	}
}

// A subject's window begins with its first cost. Subjects beyond the bound are
// refused until windows have ended.
func TestLocalWindowsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal()
		check := func(key string) Decision {
			d := l.decide(&Request{Key: []string{key}, Limits: perMinute(1)}, nil)
			return d
		}
		if !check("a").Allowed || check("a").Allowed {
			t.Error("the limit was exceeded")
		}
		time.Sleep(time.Minute - 1)
		if check("a").Allowed {
			t.Error("the window ends early")
		}
		time.Sleep(time.Nanosecond)
		if !check("a").Allowed {
			t.Error("the window does not end")
		}
		admitted := 0
		for i := range 2 * maxLocal {
			if check(strconv.Itoa(i)).Allowed {
				admitted++
			}
		}
		if len(l.windows) > maxLocal || admitted < maxLocal*9/10 || check("a").Allowed {
			t.Errorf("%d subjects were admitted, and %d windows kept", admitted, len(l.windows))
		}
		time.Sleep(time.Minute)
		if !check("new").Allowed || len(l.windows) != 1 {
			t.Errorf("%d windows were kept", len(l.windows))
		}
	})
}

func TestSpans(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"10s": 10 * time.Second, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour,
		"366d": 366 * 24 * time.Hour, "1m0s": time.Minute, "month": 31 * 24 * time.Hour,
		"250ms": 250 * time.Millisecond, "": 0, "d": 0, "0s": 0, "-1s": 0, "1d-1h": 0, "367d": 0,
		"1x": 0, "0d": 0, "1d1d": 0,
	} {
		if have, ok := windowLength(text); ok != (want > 0) || ok && have != want {
			t.Errorf("%s: have %v, %v, want %v", fmt.Sprintf("%q", text), have, ok, want)
		}
	}
}
