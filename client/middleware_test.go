package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/internal/process"
)

// sendHeaders makes f send rate headers with each single check, as a node does.
func (f *fake) sendHeaders(h map[string]string) {
	f.set(func() {
		f.answer = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v1/check" {
				for name, value := range h {
					w.Header().Set(name, value)
				}
			}
			return false
		}
	})
}

var nodeHeaders = map[string]string{
	"RateLimit-Policy": `"r";q=10;w=60`, "RateLimit": `"r";r=9;t=6`,
	"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "9", "X-RateLimit-Reset": "1790000000",
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	d, there := FromContext(r.Context())
	fmt.Fprintf(w, "%t %s", there, d.Rule)
})

func get(h http.Handler, target string, change ...func(*http.Request)) *http.Response {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(r *http.Response) string {
	b, _ := io.ReadAll(r.Body)
	return string(b)
}

func TestMiddlewarePasses(t *testing.T) {
	f := newFake(t)
	f.sendHeaders(nodeHeaders)
	c := connect(t, Options{}, f)
	r := get(Middleware(c, MiddlewareOptions{})(ok), "http://example.com/login?x=y")
	if have := text(r); r.StatusCode != 200 || have != "true r" {
		t.Errorf("have %d %s", r.StatusCode, have)
	}
	for name, want := range nodeHeaders {
		expect.Equal(t, r.Header.Get(name), want, "%s", name)
	}
	if r.Header.Get("Retry-After") != "" {
		t.Error("an allowed request got Retry-After")
	}
	want := map[string]any{"attributes": map[string]any{"ip": "192.0.2.1", "endpoint": "/login", "method": "GET"}}
	expect.DeepEqual(t, f.requests()[0].checks[0], want, "f.requests()[0].checks[0]")
}

func TestMiddlewareRefuses(t *testing.T) {
	f := newFake(t)
	f.sendHeaders(nodeHeaders)
	f.set(func() {
		f.decide = func(map[string]any) (int, string) {
			return 429, `{"detail":"Used up.","violated-policies":["r/requests/1m"],` + refused[1:]
		}
	})
	c := connect(t, Options{}, f)
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request has passed") })
	r := get(Middleware(c, MiddlewareOptions{})(never), "/")
	var have map[string]any
	expect.NoError(t, json.NewDecoder(r.Body).Decode(&have))
	want := map[string]any{
		"type":   "https://iana.org/assignments/http-problem-types#quota-exceeded",
		"title":  "Request cannot be satisfied as assigned quota has been exceeded",
		"status": 429.0, "code": "rate-limited", "detail": "Used up.", "violated-policies": []any{"r/requests/1m"},
	}
	if !reflect.DeepEqual(have, want) || r.StatusCode != 429 ||
		r.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("have %d %s %v, want %v", r.StatusCode, r.Header.Get("Content-Type"), have, want)
	}
	if have := r.Header.Get("Retry-After"); have != "6" { // 5.5 s
		t.Errorf("Retry-After: have %q, want 6", have)
	}
	if have := r.Header.Get("RateLimit"); have == "" {
		t.Error("a refusal got no RateLimit")
	}

	own := MiddlewareOptions{NoHeaders: true, OnRefuse: func(w http.ResponseWriter, _ *http.Request, d Decision) {
		http.Error(w, d.Rule, http.StatusTeapot)
	}}
	r = get(Middleware(c, own)(never), "/")
	if r.StatusCode != http.StatusTeapot || text(r) != "r\n" || r.Header.Get("RateLimit") != "" ||
		r.Header.Get("Retry-After") != "6" {
		t.Errorf("OnRefuse: have %d %v", r.StatusCode, r.Header)
	}

	f.set(func() {
		f.decide = func(map[string]any) (int, string) {
			// a node of an older release
			return 429, `{"allowed":false,"rule":"","retry_after_ms":-1,"decided_by":"list"}`
		}
	})
	for range 2 {
		r = get(Middleware(c, MiddlewareOptions{})(never), "/")
		const body = `{"type":"about:blank","title":"The rules deny this","status":403,"code":"denied","detail":"The deny list refuses this."}`
		if have := text(r); r.StatusCode != 403 || r.Header.Get("Retry-After") != "" ||
			have != body+"\n" || r.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("a deny list: have %d, Retry-After %q, %s", r.StatusCode, r.Header.Get("Retry-After"), have)
		}
		f.set(func() { f.decide = func(map[string]any) (int, string) { return 403, denied } })
	}
}

// What the rule says to the end user is the answer. Nothing else may come of
// it, whatever a node says.
func TestMiddlewareAnswersRefusals(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	for _, tt := range []struct {
		refusal           string
		status            int
		contentType, body string
	}{
		{`{"status":402,"headers":{"X-Why":"r","Cache-Control":"private"},"body":"Pay."}`, 402,
			"text/plain; charset=utf-8", "Pay."},
		{`{"status":503,"headers":{"X-Why":"r","Cache-Control":"private"},"body":{"error":"busy"}}`,
			503, "application/json", `{"error":"busy"}`},
		{`{"headers":{"X-Why":"r","Cache-Control":"private"},"title":"Slow","code":"slow"}`, 429,
			"application/problem+json",
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Slow","status":429,"code":"slow","detail":"Used up."}` + "\n"},
		{`{"status":200,"headers":{"X-Why":"r","Cache-Control":"private"},"type":"t","detail":"d"}`,
			429, "application/problem+json",
			`{"type":"t","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"code":"rate-limited","detail":"d"}` + "\n"},
	} {
		f.set(func() {
			f.decide = func(map[string]any) (int, string) {
				return 429, `{"detail":"Used up.","refusal":` + tt.refusal + "," + refused[1:]
			}
		})
		r := get(Middleware(c, MiddlewareOptions{})(ok), "/")
		if got := text(r); r.StatusCode != tt.status ||
			r.Header.Get("Content-Type") != tt.contentType || got != tt.body {
			t.Errorf("%s:\ngot %d %s %s\nwant %d %s %s", tt.refusal, r.StatusCode,
				r.Header.Get("Content-Type"), got, tt.status, tt.contentType, tt.body)
		}
		if r.Header.Get("X-Why") != "r" || r.Header.Get("Cache-Control") != "private" ||
			r.Header.Get("Retry-After") != "6" {
			t.Errorf("%s: got %v", tt.refusal, r.Header)
		}
	}
}

func TestMiddlewareWithoutNodes(t *testing.T) {
	f := newFake(t)
	f.Close()
	for policy, want := range map[OnError]int{Open: 200, Closed: 503} {
		c := connect(t, Options{OnError: policy}, f)
		told := 0
		h := Middleware(c, MiddlewareOptions{OnError: func(_ *http.Request, err error) {
			wantError(t, err, ErrUnavailable)
			told++
		}})(ok)
		r := get(h, "/")
		if r.StatusCode != want || told != 1 {
			t.Errorf("OnError %d: have %d, told %d times, want %d", policy, r.StatusCode, told, want)
		}
		if want == 503 &&
			(r.Header.Get("Retry-After") != "1" || r.Header.Get("Content-Type") != "application/problem+json") {
			t.Errorf("have %v", r.Header)
		}
	}
}

func TestMiddlewareAsks(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	for _, test := range []struct {
		name string
		have MiddlewareOptions
		want map[string]any
	}{
		{
			"key", MiddlewareOptions{Rule: "login", Key: func(r *http.Request) []string { return []string{r.Host} }},
			map[string]any{"rule": "login", "key": "example.com"},
		},
		{
			"attributes",
			MiddlewareOptions{Attributes: func(r *http.Request) map[string]string { return map[string]string{"tenant": r.Host} }},
			map[string]any{"attributes": map[string]any{"tenant": "example.com"}},
		},
		{
			"rule and hops", MiddlewareOptions{Rule: "r", TrustedHops: 1},
			map[string]any{"rule": "r",
				"attributes": map[string]any{"ip": "198.51.100.7", "endpoint": "/", "method": "GET"}},
		},
		{
			"cost",
			MiddlewareOptions{Rule: "r", Key: func(*http.Request) []string { return []string{} },
				Cost: func(*http.Request) map[string]int64 { return map[string]int64{"requests": 5} }},
			map[string]any{"rule": "r", "key": []any{}, "costs": map[string]any{"requests": 5.0}},
		},
		{
			"a request",
			MiddlewareOptions{Rule: "r",
				Request: func(r *http.Request) Request {
					return Request{Key: []string{"user-42"},
						Limits: perMinute(5)}
				}},
			userLimits(nil),
		},
	} {
		r := get(Middleware(c, test.have)(ok), "/", func(r *http.Request) {
			r.Header.Set("X-Forwarded-For", "203.0.113.9, 198.51.100.7")
		})
		all := f.requests()
		if have := all[len(all)-1].checks[0]; r.StatusCode != 200 || !reflect.DeepEqual(have, test.want) {
			t.Errorf("%s: have %d %v, want %v", test.name, r.StatusCode, have, test.want)
		}
	}
	before := len(f.requests())
	skip := MiddlewareOptions{Skip: func(r *http.Request) bool { return r.URL.Path == "/healthz" }}
	if r := get(Middleware(c, skip)(ok), "/healthz"); text(r) != "false " || len(f.requests()) != before {
		t.Error("a skipped request was checked")
	}
	defer func() {
		if recover() == nil {
			t.Error("Key without Rule did not panic")
		}
	}()
	Middleware(c, MiddlewareOptions{Key: func(*http.Request) []string { return nil }})
}

func TestMiddlewareDelays(t *testing.T) {
	f := newFake(t)
	c := connect(t, Options{}, f)
	delay := func(ms int) {
		f.set(func() {
			f.decide = func(map[string]any) (int, string) {
				return 200, strings.Replace(allowed, `"delay_ms":0`, fmt.Sprintf(`"delay_ms":%d`, ms), 1)
			}
		})
	}
	delay(50)
	began := time.Now()
	if r := get(Middleware(c, MiddlewareOptions{})(ok), "/"); r.StatusCode != 200 ||
		time.Since(began) < 50*time.Millisecond {
		t.Errorf("have %d after %v", r.StatusCode, time.Since(began))
	}
	delay(25_000)
	began = time.Now()
	expect.Equal(t, get(Middleware(c, MiddlewareOptions{IgnoreDelay: true})(ok), "/").StatusCode, 200, "ignored")
	r := get(Middleware(c, MiddlewareOptions{MaxDelay: time.Second})(ok), "/")
	if r.StatusCode != 429 || r.Header.Get("Retry-After") != "25" || !strings.Contains(text(r), "25s") {
		t.Errorf("beyond MaxDelay: have %d, Retry-After %q", r.StatusCode, r.Header.Get("Retry-After"))
	}
	// One request is held until its caller gives up. A second one at the same time is too many.
	h := Middleware(c,
		MiddlewareOptions{MaxHeld: 1})(http.HandlerFunc(func(http.ResponseWriter,
		*http.Request) {
		t.Error("the request has passed")
	}))
	ctx, cancel := context.WithCancel(background)
	var one sync.WaitGroup
	one.Go(func() {
		if r := get(h, "/",
			func(r *http.Request) { *r = *r.WithContext(ctx) }); r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("what has not passed: have %d", r.StatusCode)
		}
	})
	process.Eventually(t, "one is held", func() bool { return h.(*guard).held.Load() == 1 })
	expect.Equal(t, get(h, "/").StatusCode, 429, "beyond MaxHeld")
	cancel()
	one.Wait()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	over := func(r *http.Request) { *r = *r.WithContext(ctx) }
	expect.Equal(t, get(h, "/", over).StatusCode, http.StatusServiceUnavailable, "a context that is over")
	expect.Equal(t, h.(*guard).held.Load(), 0, "requests are still held")
}

func TestAddress(t *testing.T) {
	const peer = "192.0.2.1"
	for _, test := range []struct {
		hops    int
		forward []string
		want    string
	}{
		{0, []string{"198.51.100.7"}, peer},
		{-1, []string{"198.51.100.7"}, peer},
		{1, nil, peer},
		{1, []string{"198.51.100.7"}, "198.51.100.7"},
		{1, []string{"6.6.6.6, 198.51.100.7"}, "198.51.100.7"},
		{2, []string{"6.6.6.6, 198.51.100.7, 10.0.0.1"}, "198.51.100.7"},
		{2, []string{"6.6.6.6,198.51.100.7", "10.0.0.1"}, "198.51.100.7"},
		{3, []string{"6.6.6.6", "198.51.100.7", "10.0.0.1"}, "6.6.6.6"},
		{9, []string{"198.51.100.7, 10.0.0.1"}, "198.51.100.7"},
		{9, []string{"198.51.100.7", "10.0.0.1"}, "198.51.100.7"},
		{1, []string{"6.6.6.6, unknown"}, peer},
		{1, []string{"6.6.6.6,"}, peer},
		{1, []string{""}, peer},
		{1, []string{"198.51.100.7:4711"}, "198.51.100.7"},
		{1, []string{"[2001:db8::1]:4711"}, "2001:db8::1"},
		{1, []string{"[2001:db8::1]"}, "2001:db8::1"},
		{1, []string{"2001:DB8::0:1"}, "2001:db8::1"},
		{1, []string{"::ffff:198.51.100.7"}, "198.51.100.7"},
		{1, []string{"fe80::1%eth0"}, "fe80::1"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		for _, line := range test.forward {
			r.Header.Add("X-Forwarded-For", line)
		}
		expect.Equal(t, Address(test.hops)(r), test.want, "%d hops, %q", test.hops, test.forward)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "[2001:db8::2%x]:80"
	expect.Equal(t, Address(0)(r), "2001:db8::2", "Address(0)(r)")
}

// TestHeadersOfABatch: the headers are those that the node would have sent, in
// the style that it reports.
func TestHeadersOfABatch(t *testing.T) {
	limits := `"limits":[{"rule":"r","name":"day","unit":"requests","limit":1000,"window_ms":86400000,"remaining":900,"reset_after_ms":1001,"retry_after_ms":0,"more_after_ms":1001,"allowed":true},` +
		`{"rule":"x","name":"shadow","unit":"requests","limit":1,"window_ms":1000,"remaining":0,"reset_after_ms":1,"allowed":false,"shadow":true},` +
		`{"rule":"r","name":"tokens","unit":"tokens","limit":9007199254740991,"window_ms":60000,"remaining":9007199254740990,"reset_after_ms":1,"retry_after_ms":0,"allowed":true},` +
		`{"rule":"r","name":"a\"ü","unit":"requests","limit":10,"window_ms":100,"remaining":1,"reset_after_ms":10,"retry_after_ms":0,"more_after_ms":10,"allowed":true}]`
	full := map[string]string{
		"RateLimit-Policy":  `"a\"%C3%BC";q=10;w=1, "day";q=1000;w=86400, "tokens";q=999999999999999;qu="tokens";w=60`,
		"RateLimit":         `"a\"%C3%BC";r=1;t=1, "day";r=900;t=2, "tokens";r=999999999999999`,
		"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "9", "X-RateLimit-Reset": "1790000000",
	}
	only := func(names ...string) map[string]string {
		h := map[string]string{}
		for _, n := range names {
			h[n] = full[n]
		}
		return h
	}
	delta := only("X-RateLimit-Limit", "X-RateLimit-Remaining")
	delta["X-RateLimit-Reset"] = "6"
	for name, sent := range map[string]map[string]string{
		"all": full, "none": {}, "ietf": only("RateLimit", "RateLimit-Policy"), "delta": delta,
		"x": only("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"),
	} {
		f := newFake(t)
		c := connect(t, Options{MaxInFlight: 1, Timeout: process.Timeout}, f)
		f.sendHeaders(sent)
		f.set(func() {
			f.decide = func(q map[string]any) (int, string) {
				if q["detail"] == true {
					return 200, allowed[:len(allowed)-1] + "," + limits + "}"
				}
				return 200, allowed
			}
		})
		headed := func(i int) Request {
			q := eachIP(i)
			q.Headers = true
			return q
		}
		plain := f.answer
		release := f.holdAnswers()
		_, _, wait := checkConcurrently(c, 1, eachIP)
		process.Eventually(t, "one is under way", func() bool { return len(f.requests()) == 1 })
		f.set(func() {
			f.answer = plain
			f.style = map[string]string{"all": "ietf x-ratelimit", "ietf": "ietf",
				"x": "x-ratelimit", "delta": "x-ratelimit reset-delta"}[name]
		})
		ds, errs, waitMore := checkConcurrently(c, 5, headed)
		process.Eventually(t, "five wait", func() bool { return c.waiting() == 5 })
		began := time.Now()
		release()
		wait()
		waitMore()
		expect.DeepEqual(t, f.sizes(), []int{1, 5}, "%s: requests checks", name)
		for i := range ds {
			h := http.Header{}
			ds[i].SetHeaders(h)
			if errs[i] != nil || len(h) != len(sent) || ds[i].Limits != nil {
				t.Errorf("%s: have %v, %v, want %v", name, h, errs[i], sent)
			}
			for header, want := range sent {
				have := h.Get(header)
				if header == "X-RateLimit-Reset" && name != "delta" {
					// Six seconds after the decision was made.
					var unix int64
					fmt.Sscan(have, &unix)
					if from, to := began.Add(6*time.Second).Unix(), time.Now().Add(7*time.Second).Unix(); unix < from || unix > to {
						t.Errorf("%s: %s: have %d, want %d to %d", name, header, unix, from, to)
					}
				} else if have != want {
					t.Errorf("%s: %s: have %q, want %q", name, header, have, want)
				}
			}
		}
	}
}

// FuzzAddress: whatever the header contains, the result is an address.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"", ",", "1.2.3.4, [::1]:80", "::ffff:1.2.3.4", "a,b,c", "fe80::1%e"} {
		f.Add(s, 2)
	}
	f.Fuzz(func(t *testing.T, line string, hops int) {
		r := &http.Request{RemoteAddr: "192.0.2.1:5", Header: http.Header{"X-Forwarded-For": {line}}}
		have := Address(hops)(r)
		if a, ok := ipaddr.Parse(have); !ok || a.String() != have {
			t.Errorf("have %q", have)
		}
	})
}
