package client

import (
	"context"
	"errors"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// TestCheckFields sends each field of a request, and reads each field of a decision.
func TestCheckFields(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{Token: "secret"}, f)
	long := strings.Repeat("a", 600) + "é" + strings.Repeat("b", 600)
	for _, test := range []struct {
		name string
		have Request
		want map[string]any
	}{
		{"one key", Request{Rule: "login", Key: []string{"a"}}, map[string]any{"rule": "login", "key": "a"}},
		{"two keys", Request{Rule: "chat", Key: []string{"a", `"\` + "\n"}},
			map[string]any{"rule": "chat", "key": []any{"a", `"\` + "\n"}}},
		{"no keys", Request{Rule: "all", Key: []string{}}, map[string]any{"rule": "all", "key": []any{}}},
		{"rule alone", Request{Rule: "all"}, map[string]any{"rule": "all"}},
		{"attributes", Request{Attributes: map[string]string{"ip": "1", "é": "<&>"}},
			map[string]any{"attributes": map[string]any{"ip": "1", "é": "<&>"}}},
		{"no attributes", Request{Attributes: map[string]string{}}, map[string]any{"attributes": map[string]any{}}},
		{"rule and attributes", Request{Rule: "r", Attributes: map[string]string{"ip": "1"}},
			map[string]any{"rule": "r", "attributes": map[string]any{"ip": "1"}}},
		{"cost", Request{Rule: "r", Cost: 7}, map[string]any{"rule": "r", "cost": 7.0}},
		{"costs", Request{Rule: "r", Costs: map[string]int64{"tokens": 9, "requests": 0}},
			map[string]any{"rule": "r", "costs": map[string]any{"tokens": 9.0, "requests": 0.0}}},
		{"detail", Request{Rule: "r", Detail: true}, map[string]any{"rule": "r", "detail": true}},
		{"too large a cost", Request{Rule: "r", Cost: 1 << 62},
			map[string]any{"rule": "r", "cost": float64(1<<53 - 1)}},
		{"too large costs", Request{Rule: "r", Costs: map[string]int64{"t": 1 << 62}},
			map[string]any{"rule": "r", "costs": map[string]any{"t": float64(1<<53 - 1)}}},
		{"not UTF-8", Request{Rule: "r", Key: []string{"a\xff\xc3"}}, map[string]any{"rule": "r", "key": "a\uFFFD"}},
		{"too long", Request{Rule: "r", Key: []string{long}},
			map[string]any{"rule": "r", "key": long[:512] + long[len(long)-512:]}},
	} {
		if _, err := c.Check(background, test.have); err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		all := f.requests()
		last := all[len(all)-1]
		if !reflect.DeepEqual(last.checks[0], test.want) || last.path != "/v1/check" {
			t.Errorf("%s: have %s %v, want %v", test.name, last.path, last.checks[0], test.want)
		}
		expect.Equal(t, last.header.Get("Authorization"), "Bearer secret", "%s: Authorization", test.name)
	}
	if _, err := c.Peek(background, Request{Rule: "r"}); err != nil {
		t.Error(err)
	}
	all := f.requests()
	if have, want := all[len(all)-1].checks[0], (map[string]any{"rule": "r",
		"peek": true}); !reflect.DeepEqual(have, want) {
		t.Errorf("peek: have %v, want %v", have, want)
	}
}

func TestDecisionFields(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	ms := time.Millisecond
	for _, test := range []struct {
		status int
		have   string
		want   Decision
	}{
		{200, allowed, Decision{
			Allowed: true, Rule: "r", Unit: "requests", Limit: 10, Remaining: 9,
			Window: time.Minute, ResetAfter: 6 * time.Second,
			DecidedBy: ByOwner, Node: "n1", RulesVersion: 3,
		}},
		{429,
			`{"type":"t","title":"x","status":429,"detail":"No.","violated-policies":["r","s"],` + refused[1:],
			Decision{
				Rule: "r", Unit: "requests", Limit: 10, Window: time.Minute,
				ResetAfter: time.Minute, RetryAfter: 5500 * ms,
				DecidedBy: ByLease, Node: "n1", RulesVersion: 3, Reason: "No.", Violated: []string{"r", "s"},
			}},
		{429,
			`{"allowed":false,"rule":"","retry_after_ms":-1,"delay_ms":0,"decided_by":"list","node":"n1","rules_version":3}`,
			Decision{
				RetryAfter: Never, DecidedBy: ByList, Node: "n1", RulesVersion: 3,
				Reason: "The deny list refuses this.",
			}},
		{403, denied,
			Decision{Code: CodeDenied, RetryAfter: Never, DecidedBy: ByList, Node: "n1",
				RulesVersion: 3, Reason: "The deny list refuses this."}},
		{403, `{"code":"denied","allowed":false,"rule":"","retry_after_ms":-1,"decided_by":"none"}`, Decision{
			Code: CodeDenied, RetryAfter: Never, DecidedBy: ByNone,
			Reason: "No rule applies, and the default is to deny.",
		}},
		{200,
			`{"allowed":true,"delay_ms":250,"decided_by":"none","limits":[{"rule":"r","name":"l","algorithm":"fixed-window","unit":"u","limit":3,` +
				`"window_ms":1,"used":1,"remaining":2,"reset_after_ms":4,"retry_after_ms":-1,"allowed":false,"shadow":true}]}`, Decision{
				Allowed: true, Delay: 250 * ms, DecidedBy: ByNone,
				Limits: []LimitDecision{{Rule: "r", Name: "l", Algorithm: "fixed-window", Unit: "u",
					Limit: 3, Window: ms, Used: 1, Remaining: 2, ResetAfter: 4 * ms, RetryAfter: Never,
					Shadow: true}},
			}},
	} {
		f.set(func() { f.decide = func(map[string]any) (int, string) { return test.status, test.have } })
		have, err := c.Check(background, Request{Rule: "r"})
		if err != nil || !reflect.DeepEqual(have, test.want) {
			t.Errorf("%s:\nhave %+v, %v\nwant %+v", test.have, have, err, test.want)
		}
	}
}

// TestOnError tests the decision for calls that no node decided.
func TestOnError(t *testing.T) {
	f := newFake(t)
	down := newFake(t)
	down.Close()
	for _, test := range []struct {
		name string
		node *fake
		q    Request
		say  func(map[string]any) (int, string)
		want error
	}{
		{"no node", down, byIP("a"), nil, ErrUnavailable},
		{"overloaded", f, byIP("a"),
			func(map[string]any) (int, string) { return 503, `{"code":"overloaded","detail":"x"}` },
			ErrUnavailable},
		{"not JSON", f, byIP("a"), func(map[string]any) (int, string) { return 500, "oops" }, ErrUnavailable},
		{"garbage", f, byIP("a"), func(map[string]any) (int, string) { return 200, "<html>" }, ErrBadAnswer},
	} {
		f.set(func() { f.decide = test.say })
		for policy, want := range map[OnError]bool{Open: true, Closed: false} {
			undecided(t, test.name, connect(t, Options{OnError: policy}, test.node), test.q, want, test.want)
		}
	}
	// None of these may pass, because an untrusted user's input could cause them.
	for _, test := range []struct {
		name string
		node *fake
		q    Request
		say  func(map[string]any) (int, string)
		want error
	}{
		{"bad value", f, byIP("a"),
			func(map[string]any) (int, string) { return 400, `{"code":"bad-value","detail":"x"}` },
			nil},
		{"too large", f, byIP("a"), func(map[string]any) (int, string) { return 413, "" }, nil},
		{"headers too large", f, byIP("a"), func(map[string]any) (int, string) { return 431, "" }, nil},
		{"unauthorized", f, byIP("a"),
			func(map[string]any) (int, string) { return 401, `{"code":"unauthorized","detail":"x"}` },
			nil},
		{"another thing's 403", f, byIP("a"), func(map[string]any) (int, string) { return 403, "<html>" }, nil},
		{"forbidden", f, byIP("a"),
			func(map[string]any) (int, string) { return 403, `{"code":"forbidden","detail":"x"}` },
			nil},
		{"forbidden, with fields of a check", f, byIP("a"), func(map[string]any) (int, string) {
			return 403, strings.Replace(denied, `"code":"denied"`, `"code":"forbidden"`, 1)
		}, nil},
		{"redirect", f, byIP("a"), func(map[string]any) (int, string) { return 302, "" }, nil},
		{"another thing's 429", f, byIP("a"),
			func(map[string]any) (int, string) { return 429, "slow down" }, ErrBadAnswer},
		{"unknown rule", f, Request{Rule: "x"},
			func(map[string]any) (int, string) { return 404, `{"code":"unknown-rule","detail":"x"}` },
			nil},
		{"nothing asked", f, Request{}, nil, ErrRequest},
		{"negative cost", f, Request{Rule: "r", Cost: -1}, nil, ErrRequest},
		{"negative costs", f, Request{Rule: "r", Costs: map[string]int64{"t": -1}}, nil, ErrRequest},
		{"key and attributes", f,
			Request{Rule: "r", Key: []string{"a"}, Attributes: map[string]string{}}, nil, ErrRequest},
	} {
		f.set(func() { f.decide = test.say })
		for _, policy := range []OnError{Open, Closed} {
			undecided(t, test.name,
				connect(t, Options{OnError: policy, OpenWhenFull: true}, test.node), test.q, false,
				test.want)
		}
	}
	c := connect(t, Options{}, f)
	f.set(func() {
		f.decide = func(map[string]any) (int, string) { return 404, `{"code":"unknown-rule","title":"T","detail":"x"}` }
	})
	_, err := c.Check(background, byIP("a"))
	var have *Error
	if !errors.As(err, &have) || *have != (Error{404, "unknown-rule", "T", "x", f.URL}) {
		t.Errorf("error: have %v", err)
	}
}

// undecided makes a check and a reservation that no node decides.
func undecided(t *testing.T, name string, c *Client, q Request, want bool, wantErr error) {
	t.Helper()
	d, err := c.Check(background, q)
	if d.Allowed != want || d.DecidedBy != ByError || err == nil {
		t.Errorf("%s, OnError %d: have %+v, %v", name, c.options.OnError, d, err)
	}
	if wantErr != nil {
		wantError(t, err, wantErr)
	}
	r, err := c.Reserve(background, q, 0)
	if r.Allowed != want || r.DecidedBy != ByError || r.ID != "" || err == nil {
		t.Errorf("%s, OnError %d, reserve: have %+v, %v", name, c.options.OnError, r, err)
	}
}

// TestDeniedIsDecided: 403 with the code denied is a refusal, whatever OnError
// says, alone and within a batch. No other node is asked, and the node counts
// as healthy.
func TestDeniedIsDecided(t *testing.T) {
	for _, policy := range []OnError{Open, Closed} {
		f, other := newFake(t), newFake(t)
		c := connect(t,
			Options{OnError: policy, OpenWhenFull: true, MaxInFlight: 1, Timeout: process.Timeout},
			f, other)
		f.set(func() { f.decide = func(map[string]any) (int, string) { return 403, denied } })
		decided := func(what string, d Decision, err error) {
			t.Helper()
			if err != nil || d.Allowed || !d.Denied() || d.DecidedBy != ByList || d.Node != "n1" ||
				d.Reason == "" || d.RetryAfter != Never {
				t.Errorf("%s, OnError %d: have %+v, %v", what, policy, d, err)
			}
		}
		r, err := c.Reserve(background, byIP("a"), 0)
		decided("reserve", r.Decision, err)
		d, err := c.Peek(background, byIP("a"))
		decided("peek", d, err)
		release := f.holdAnswers()
		ds, errs, wait := checkConcurrently(c, 1, eachIP)
		process.Eventually(t, "one is under way", func() bool { return len(f.requests()) == 3 })
		more, moreErrs, waitMore := checkConcurrently(c, 3, eachIP)
		process.Eventually(t, "three wait", func() bool { return c.waiting() == 3 })
		release()
		wait()
		waitMore()
		decided("check", ds[0], errs[0])
		for i := range more {
			decided("batch", more[i], moreErrs[i])
		}
		if have := f.sizes(); !reflect.DeepEqual(have, []int{1, 1, 1, 3}) ||
			len(other.requests()) > 0 || c.nodes[0].currentCondition() != healthy {
			t.Errorf("have requests of %v checks, %d at the other node, and condition %d", have,
				len(other.requests()), c.nodes[0].currentCondition())
		}
	}
}

// TestHostileValuesAreDecided: no value makes a check invalid, and one that is
// still too large does not pass.
func TestHostileValuesAreDecided(t *testing.T) {
	c := connect(t, Options{OnError: Open}, newFake(t))
	q := byIP(strings.Repeat("\x00", 100_000))
	if d, err := c.Check(background, q); err != nil || d.DecidedBy != ByOwner {
		t.Errorf("have %+v, %v", d, err)
	}
	for i := range 32 {
		q.Attributes[string(rune('a'+i))] = strings.Repeat("\x00", 100_000)
	}
	d, err := c.Check(background, q)
	if d.Allowed || !errors.Is(err, ErrRequest) {
		t.Errorf("64 KiB and more: have %+v, %v, want a refusal", d, err)
	}
	for _, v := range []string{strings.Repeat("€", 1000),
		strings.Repeat("a", 511) + strings.Repeat("€", 600), "x" + strings.Repeat("é", 600),
		strings.Repeat("\xff", 3000)} {
		if have := Fit(v); len(have) > maxValue || !utf8.ValidString(have) || len(have) < 1020 &&
			len(v) > 1024 && v[0] != 0xff {
			t.Errorf("fit of %d bytes: have %d bytes, valid %t", len(v), len(have), utf8.ValidString(have))
		}
	}
}

// TestBadAnswers: an invalid answer is not taken for a decision.
func TestBadAnswers(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{OnError: Closed}, f)
	for _, test := range []struct {
		name   string
		status int
		body   string
		want   error
	}{
		{"no JSON", 200, "<html>", ErrBadAnswer},
		{"empty", 200, "", ErrBadAnswer},
		{"not decided", 200, "{}", ErrBadAnswer},
		{"another thing's 429", 429, `{"error":{"message":"slow down"}}`, ErrBadAnswer},
		{"allowed with 429", 429, allowed, ErrBadAnswer},
		{"allowed with 403", 403, strings.Replace(denied, `"allowed":false`, `"allowed":true`, 1), ErrBadAnswer},
		{"denied, and nothing else", 403, `{"code":"denied"}`, ErrBadAnswer},
		{"refused with 200", 200, refused, ErrBadAnswer},
		{"as if by the client", 200, `{"allowed":true,"decided_by":"error"}`, ErrBadAnswer},
		{"a number too large", 200, strings.Replace(allowed, "10", "99999999999999999999", 1), ErrBadAnswer},
		{"too long", 200, allowed + strings.Repeat(" ", maxAnswer), ErrBadAnswer},
		{"redirect", 302, "", nil},
		{"500", 500, "oops", ErrUnavailable},
	} {
		f.set(func() { f.decide = func(map[string]any) (int, string) { return test.status, test.body } })
		d, err := c.Check(background, byIP("a"))
		if d.Allowed || d.DecidedBy != ByError || err == nil {
			t.Errorf("%s: have %+v, %v", test.name, d, err)
		}
		if test.want != nil {
			wantError(t, err, test.want)
		}
	}
	huge := strings.Replace(allowed, `"window_ms":60000`, `"window_ms":9223372036854775807`, 1)
	f.set(func() {
		f.decide = func(map[string]any) (int, string) {
			return 200, strings.Replace(huge, `"remaining":9`, `"remaining":-9`, 1)
		}
	})
	if d, err := c.Check(background, byIP("a")); err != nil || d.Window < 200*365*24*time.Hour || d.Remaining != 0 {
		t.Errorf("figures out of bounds: have %+v, %v", d, err)
	}
}

func TestReserveAndSettle(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	f.set(func() {
		f.decide = func(map[string]any) (int, string) { return 200, `{"reservation":"id-1",` + allowed[1:] }
	})
	r, err := c.Reserve(background,
		Request{Rule: "llm", Key: []string{"k"}, Costs: map[string]int64{"tokens": 500}},
		90*time.Second+1)
	if err != nil || r.ID != "id-1" || !r.Allowed || r.Remaining != 9 {
		t.Fatalf("have %+v, %v", r, err)
	}
	f.set(func() {
		f.decide = func(map[string]any) (int, string) {
			return 200, `{"reservation":"id-1","settled":true,"costs":{"tokens":42},"remaining":188}`
		}
	})
	s, err := c.Settle(background, r.ID, map[string]int64{"tokens": 42})
	if err != nil || !s.Settled || s.Remaining != 188 || !maps.Equal(s.Costs, map[string]int64{"tokens": 42}) {
		t.Errorf("have %+v, %v", s, err)
	}
	if _, err := c.Settle(background, r.ID, nil); err != nil {
		t.Error(err)
	}
	if s, err := c.Settle(background, "", nil); err != nil || s.Settled {
		t.Errorf("no reservation: have %+v, %v", s, err)
	}
	want := []map[string]any{
		{"rule": "llm", "key": "k", "costs": map[string]any{"tokens": 500.0}, "ttl_ms": 90001.0},
		{"reservation": "id-1", "costs": map[string]any{"tokens": 42.0}},
		{"reservation": "id-1", "costs": map[string]any{}},
	}
	for i, have := range f.requests() {
		expect.DeepEqual(t, have.checks[0], want[i], "request %d", i)
	}
	f.set(func() { f.decide = func(map[string]any) (int, string) { return 404, `{"code":"unknown-reservation"}` } })
	var e *Error
	if _, err := c.Settle(background, "id-2", nil); !errors.As(err, &e) || e.Code != "unknown-reservation" {
		t.Errorf("have %v", err)
	}
	f.set(func() { f.decide = nil })
	_, err = c.Reserve(background, byIP("a"), 0)
	wantError(t, err, ErrBadAnswer) // the reservation has no id
	f.set(func() { f.decide = func(map[string]any) (int, string) { return 429, refused } })
	if r, err := c.Reserve(background, byIP("a"), 0); err != nil || r.Allowed || r.ID != "" {
		t.Errorf("have %+v, %v", r, err)
	}
}

func TestAdjust(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	f.set(func() {
		f.decide = func(map[string]any) (int, string) {
			return 200,
				`{"rule":"r","key":["a","b"],"cost":-2,"limits":[{"name":"r","algorithm":"token-bucket","unit":"requests","limit":5,` +
					`"window_ms":1000,"share":4,"used":7,"leased":1,"remaining":0,"reset_after_ms":1400,"estimated":true}]}`
		}
	})
	have, err := c.Adjust(background, "r", []string{"a", "b"}, -2)
	want := Usage{Rule: "r", Key: []string{"a", "b"}, Limits: []LimitUsage{{
		Name: "r", Algorithm: "token-bucket", Unit: "requests", Limit: 5, Window: time.Second,
		Share: 4, Used: 7, Leased: 1, Remaining: 0,
		ResetAfter: 1400 * time.Millisecond, Estimated: true,
	}}}
	if err != nil || !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v, %v, want %+v", have, err, want)
	}
	asked := f.requests()[0].checks[0]
	if id, ok := asked["request_id"].(string); !ok || len(id) < 20 || len(id) > maxID {
		t.Errorf("have the id %v", asked["request_id"])
	}
	delete(asked, "request_id")
	if want := (map[string]any{"rule": "r", "key": []any{"a", "b"}, "cost": -2.0}); !reflect.DeepEqual(asked, want) {
		t.Errorf("have %v, want %v", asked, want)
	}
	if _, err := c.AdjustOnce(background, "mine", "r", []string{"a", "b"}, -2); err != nil ||
		f.requests()[1].checks[0]["request_id"] != "mine" {
		t.Errorf("have %v, %v", f.requests()[1].checks, err)
	}
	_, err = c.AdjustOnce(background, strings.Repeat("x", maxID+1), "r", nil, 1)
	wantError(t, err, ErrRequest)
	_, err = c.Reserve(background, Request{Rule: "r", RequestID: strings.Repeat("x", maxID+1)}, 0)
	wantError(t, err, ErrRequest)
	f.set(func() {
		f.decide = func(map[string]any) (int, string) { return 200, `{"reservation":"id-1",` + allowed[1:] }
	})
	if _, err := c.Reserve(background, Request{Rule: "r", RequestID: "mine"}, 0); err != nil ||
		f.requests()[2].checks[0]["request_id"] != "mine" {
		t.Errorf("have %v, %v", f.requests()[2].checks, err)
	}
	for _, n := range []int64{0, 1 << 53, -1 << 53} {
		_, err := c.Adjust(background, "r", nil, n)
		wantError(t, err, ErrRequest)
	}
}

// TestWait: the client waits, not the node.
func TestWait(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	delay := func(ms string) {
		f.set(func() {
			f.decide = func(map[string]any) (int, string) {
				return 200, strings.Replace(allowed, `"delay_ms":0`, `"delay_ms":`+ms, 1)
			}
		})
	}
	delay("60")
	q := byIP("a")
	q.Wait = true
	began := time.Now()
	d, err := c.Check(background, q)
	if took := time.Since(began); err != nil || took < 60*time.Millisecond || d.Delay != 60*time.Millisecond {
		t.Errorf("have %+v, %v after %v", d, err, took)
	}
	delay("60000")
	began = time.Now()
	if d, err := c.Peek(background, q); err != nil || time.Since(began) > 30*time.Second || d.Delay != time.Minute {
		t.Errorf("peek: have %+v, %v", d, err)
	}
	ctx, cancel := context.WithTimeout(background, 30*time.Millisecond)
	defer cancel()
	if d, err := c.Check(ctx, q); !d.Allowed || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("have %+v, %v, want the decision and the context's error", d, err)
	}
	// Close ends it too.
	failed := make(chan error)
	go func() {
		_, err := c.Check(background, q)
		failed <- err
	}()
	process.Eventually(t, "the check has been asked", func() bool { return len(f.requests()) == 4 })
	c.Close()
	wantError(t, <-failed, ErrClosed)
}

func TestOptions(t *testing.T) {
	node := []string{"http://127.0.0.1:1"}
	for _, test := range []struct {
		have Options
		want string
	}{
		{Options{}, "Nodes"},
		{Options{Nodes: []string{"127.0.0.1:8080"}}, "Nodes[0]"},
		{Options{Nodes: []string{node[0], "ftp://x"}}, "Nodes[1]"},
		{Options{Nodes: []string{"http://u:p@x"}}, "Nodes[0]"},
		{Options{Nodes: []string{"http://x?y"}}, "Nodes[0]"},
		{Options{Nodes: []string{"http://"}}, "Nodes[0]"},
		{Options{Nodes: make([]string, 65)}, "Nodes"},
		{Options{Nodes: node, Timeout: -1}, "Timeout"},
		{Options{Nodes: node, Timeout: 2 * time.Hour}, "Timeout"},
		{Options{Nodes: node, OnError: 3}, "OnError"},
		{Options{Nodes: node, Local: make([]Limit, 9)}, "Local"},
		{Options{Nodes: node, MaxInFlight: 257}, "MaxInFlight"},
		{Options{Nodes: node, MaxBatch: 10_001}, "MaxBatch"},
		{Options{Nodes: node, MaxQueue: -1}, "MaxQueue"},
		{Options{Nodes: node, Token: "a\nb"}, "Token"},
	} {
		c, err := New(test.have)
		if err == nil {
			c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: have %v, want it to name %s", test.have, err, test.want)
		}
	}
	f := newFake(t)
	c, err := New(Options{Nodes: []string{f.URL + "/prefix/"}})
	expect.NoError(t, err)
	defer c.Close()
	if _, err := c.Check(background, byIP("a")); err != nil || f.requests()[0].path != "/prefix/v1/check" {
		t.Errorf("have %v, %+v", err, f.requests())
	}
}

// TestTokenStaysWithTheNode: a redirect is not followed.
func TestTokenStaysWithTheNode(t *testing.T) {
	f, other := newFake(t), newFake(t)
	c := connect(t, Options{Token: "secret"}, f)
	f.set(func() {
		f.answer = func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
			return true
		}
	})
	if d, err := c.Check(background, byIP("a")); err == nil || d.DecidedBy != ByError {
		t.Errorf("have %+v, %v", d, err)
	}
	if n := len(other.requests()); n > 0 {
		t.Errorf("%d requests were redirected", n)
	}
}

func TestTLS(t *testing.T) {
	f := &fake{t: t, ready: http.StatusOK}
	f.Server = httptest.NewUnstartedServer(f)
	f.Config.ErrorLog = log.New(io.Discard, "", 0) // discards the failed handshake
	f.StartTLS()
	t.Cleanup(f.Close)
	trusting := f.Client().Transport.(*http.Transport).TLSClientConfig
	if d, err := connect(t, Options{TLS: trusting, Token: "secret", Timeout: time.Minute},
		f).Check(background, byIP("a")); err != nil || d.DecidedBy != ByOwner {
		t.Errorf("have %+v, %v", d, err)
	}
	_, err := connect(t, Options{Token: "secret", Timeout: time.Minute}, f).Check(background, byIP("a"))
	wantError(t, err, ErrUnavailable)
	expect.Equal(t, len(f.requests()), 1, "a node with an untrusted certificate requests")
}
