package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/process"
)

// serve starts a gateway between a node and a model, and returns its address.
func serve(t *testing.T, node string, model http.Handler) string {
	t.Helper()
	upstream := httptest.NewServer(model)
	t.Cleanup(upstream.Close)
	target, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := client.New(client.Options{Nodes: []string{node}, Timeout: process.Timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(limiter.Close)
	g := httptest.NewServer(newGateway(limiter, target, slog.New(slog.DiscardHandler)))
	t.Cleanup(g.Close)
	return g.URL
}

// ask makes a call and returns its answer, which the caller closes.
func ask(t *testing.T, ctx context.Context, gateway, key, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+completions, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

const (
	plain     = `{"model":"stub","max_tokens":100,"messages":[{"role":"user","content":"Hello there"}]}`
	streaming = `{"model":"stub","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"Hello there"}]}`
	withUsage = `{"model":"stub","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Hi"}]}`
	prompt    = 7 // tokens of "Hello there", quoted, by count
)

// TestCalls: answers, streamed or not, are forwarded completely, with headers,
// and settled as the model counts them.
func TestCalls(t *testing.T) {
	n := newFakeNode(t)
	g := serve(t, n.URL, stub{})
	r := ask(t, context.Background(), g, "k", plain)
	var a completion
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil || r.StatusCode != 200 ||
		a.Usage.TotalTokens != prompt+int64(len(verse)) {
		t.Fatalf("have %d %+v, %v", r.StatusCode, a.Usage, err)
	}
	for name, want := range map[string]string{
		"x-ratelimit-limit-requests": "20", "x-ratelimit-remaining-requests": "19", "x-ratelimit-reset-requests": "3s",
		"x-ratelimit-limit-tokens":     "2000",
		"x-ratelimit-remaining-tokens": fmt.Sprint(2000 - prompt - 100),
		"x-ratelimit-reset-tokens":     "6m0s",
	} {
		if have := r.Header.Get(name); have != want {
			t.Errorf("%s: have %q, want %q", name, have, want)
		}
	}

	r = ask(t, context.Background(), g, "k", streaming)
	events, err := io.ReadAll(r.Body)
	if err != nil || r.Header.Get("Content-Type") != "text/event-stream" ||
		!strings.HasSuffix(string(events), "data: [DONE]\n\n") ||
		strings.Contains(string(events), "usage") || strings.Count(string(events), "\n\n") != len(verse)+2 {
		t.Errorf("stream: have %s, %v", events, err)
	}
	r = ask(t, context.Background(), g, "k", withUsage)
	events, err = io.ReadAll(r.Body)
	if err != nil || strings.Count(string(events), `"usage"`) != 1 ||
		strings.Count(string(events), "\n\n") != len(verse)+3 {
		t.Errorf("stream with usage: have %s, %v", events, err)
	}
	process.Eventually(t, "all is settled", func() bool {
		settled, open, _ := n.state()
		return len(settled) == 3 && open == 0
	})
	settled, _, left := n.state()
	total := int64(0)
	for i, want := range []int64{prompt + int64(len(verse)), prompt + int64(len(verse)), 4 + int64(len(verse))} {
		if settled[i] != want {
			t.Errorf("call %d: settled %d, want %d", i, settled[i], want)
		}
		total += want
	}
	if left != 2000-total {
		t.Errorf("have %d tokens left, want %d", left, 2000-total)
	}
}

func TestEmbeddings(t *testing.T) {
	n := newFakeNode(t)
	var path string
	g := serve(t, n.URL, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.Path
		stub{}.ServeHTTP(w, r)
	}))
	left := int64(2000)
	for _, test := range []struct {
		body   string
		status int
		want   int64 // tokens
	}{
		{`{"model":"m","input":"Hello there"}`, 200, 3},
		{`{"model":"m","input":["Hello there","and"]}`, 200, 4},
		{`{"model":"m","input":[1,2,3,4,5]}`, 200, 5},
		{`{"model":"m","input":[[1,2],[3]],"dimensions":8}`, 200, 3},
		{`{"model":"m","input":"` + strings.Repeat("word", 3000) + `"}`, 429, 0},
		{`{"model":"m"}`, 400, 0},
		{`{"model":"m","input":7}`, 400, 0},
		{`{"model":"m","Input":"x","input":"y"}`, 400, 0},
	} {
		r, err := http.NewRequest(http.MethodPost, g+"/v1/embeddings", strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer k")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		left -= test.want
		if _, open, have := n.state(); answer.StatusCode != test.status || have != left ||
			open != 0 || test.status == 200 && path != "/v1/embeddings" {
			t.Errorf("%.60s: have %d, %d tokens left, %d open, asked %s; want %d, %d", test.body,
				answer.StatusCode, have, open, path, test.status, left)
		}
	}
	if have := n.asked[0]["endpoint"]; have != "/v1/embeddings" {
		t.Errorf("the node was asked about %q", have)
	}
}

// TestStreamComesAsItIsMade: the first event arrives while the model is still producing the second.
func TestStreamComesAsItIsMade(t *testing.T) {
	n := newFakeNode(t)
	more := make(chan struct{})
	g := serve(t, n.URL, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n")
		http.NewResponseController(w).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
		}
		fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{\"total_tokens\":5}}\n\ndata: [DONE]\n\n")
	}))
	r := ask(t, context.Background(), g, "k", streaming)
	lines := bufio.NewScanner(r.Body)
	if !lines.Scan() || !strings.Contains(lines.Text(), "one") {
		t.Fatalf("have %q", lines.Text())
	}
	close(more)
	rest, err := io.ReadAll(r.Body)
	if err != nil || strings.Contains(string(rest), "usage") {
		t.Errorf("have %q, %v", rest, err)
	}
	process.Eventually(t, "it is settled", func() bool {
		settled, open, _ := n.state()
		return len(settled) == 1 && settled[0] == 5 && open == 0
	})
}

// TestHangUp: when the caller hangs up, so does the gateway, and it settles
// what the model has sent until then.
func TestHangUp(t *testing.T) {
	n := newFakeNode(t)
	told := make(chan struct{})
	g := serve(t, n.URL, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // so that the server notices the hang-up
		fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", strings.Repeat("word", 10))
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(told)
	}))
	ctx, cancel := context.WithCancel(context.Background())
	r := ask(t, ctx, g, "k", streaming)
	lines := bufio.NewScanner(r.Body)
	if !lines.Scan() {
		t.Fatal("no event")
	}
	cancel()
	select {
	case <-told:
	case <-time.After(process.Timeout):
		t.Fatal("the model's request does not end")
	}
	process.Eventually(t, "it is settled", func() bool { _, open, _ := n.state(); return open == 0 })
	if settled, _, _ := n.state(); settled[0] != prompt+10 {
		t.Errorf("settled %v, want %d", settled, prompt+10)
	}
}

// TestModelFails: the caller gets an error, and only tokens that are known to be used stay charged.
func TestModelFails(t *testing.T) {
	for _, test := range []struct {
		name   string
		model  http.HandlerFunc
		body   string
		status int
		want   int64
	}{
		{"an error",
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusServiceUnavailable) },
			plain, 503, 0},
		{"no answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, plain, 502, 0},
		{"no usage", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }, plain, 200, prompt + 100},
		{"cut off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "12345678")
		}, plain, 502, prompt + 2},
		{"a stream that is cut off", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"12345678\"}}]}\n\n")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, streaming, 200, prompt + 2},
		{"a stream of other things that is cut off", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w,
				"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"reasoning_content\":\"12345678\",\"tool_calls\":[{\"function\":{\"arguments\":\"12345678\"}}]}}]}\n\n")
		}, streaming, 200, prompt + 4},
		{"a line without end", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "data: ", strings.Repeat("x", 2*maxEvent))
		}, streaming, 200, prompt},
		{"more than reserved", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"usage":{"total_tokens":1500}}`)
		}, plain, 200, 1500},
	} {
		n := newFakeNode(t)
		r := ask(t, context.Background(), serve(t, n.URL, test.model), "k", test.body)
		io.Copy(io.Discard, r.Body)
		process.Eventually(t, test.name+": it is settled",
			func() bool { settled, _, _ := n.state(); return len(settled) == 1 })
		if settled, _, left := n.state(); r.StatusCode != test.status || settled[0] != test.want ||
			left != 2000-test.want {
			t.Errorf("%s: have %d, settled %v, %d left, want %d, %d", test.name, r.StatusCode,
				settled, left, test.status, test.want)
		}
	}
}

// TestRefusals: refusals look like OpenAI's, and the model is not asked.
func TestRefusals(t *testing.T) {
	n := newFakeNode(t)
	g := serve(t, n.URL, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the model was asked") }))
	for _, test := range []struct {
		name, key, body string
		status          int
		kind, code      string
	}{
		{"tokens", "k", strings.Replace(plain, "100", "5000", 1), 429, tokens, "rate_limit_exceeded"},
		{"denied", deniedKey, plain, 403, "invalid_request_error", "denied"},
		{"no key", "", plain, 401, "invalid_request_error", "invalid_api_key"},
		{"no JSON", "k", "{", 400, "invalid_request_error", ""},
		{"no messages", "k", "{}", 400, "invalid_request_error", ""},
		{"negative", "k", strings.Replace(plain, "100", "-5", 1), 400, "invalid_request_error", ""},
		{"too many", "k", strings.Replace(plain, "100", "9000000000000000000", 1), 400, "invalid_request_error", ""},
		{"too many choices", "k",
			strings.Replace(plain, `"max_tokens"`, `"n":1000,"max_tokens"`, 1), 400,
			"invalid_request_error", ""},
		{"too long", "k", `{"messages":[{"content":"` + strings.Repeat("x", maxRequest) + `"}]}`,
			400, "invalid_request_error", ""},
	} {
		r := ask(t, context.Background(), g, test.key, test.body)
		var have struct{ Error apiError }
		if err := json.NewDecoder(r.Body).Decode(&have); err != nil ||
			r.StatusCode != test.status || have.Error.Type != test.kind ||
			have.Error.Code != test.code || have.Error.Message == "" {
			t.Errorf("%s: have %d %+v, %v", test.name, r.StatusCode, have.Error, err)
		}
		if test.status == 429 && (r.Header.Get("Retry-After") != "4" || r.Header.Get("Retry-After-Ms") != "3500" ||
			r.Header.Get("x-ratelimit-remaining-tokens") != "2000") {
			t.Errorf("%s: have %v", test.name, r.Header)
		}
	}
	r, err := http.Get(g + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != 404 {
		t.Errorf("another path: have %d", r.StatusCode)
	}
	if settled, open, left := n.state(); len(settled) > 0 || open > 0 || left != 2000 {
		t.Errorf("have %v, %d, %d: something was taken", settled, open, left)
	}
}

// TestOneReading: the model gets exactly what was counted, and nothing that it
// could read differently.
func TestOneReading(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"Hi"}]`
	for _, test := range []struct {
		body  string
		want  int64  // reserved; 0 if refused
		model string // what the model gets; empty if not checked
	}{
		{`{"max_tokens":100,` + messages + `}`, 4 + 100, ""},
		{`{"max_tokens":1000,"max_tokens":1,` + messages + `}`, 4 + 1, `{"max_tokens":1,` + messages + `}`},
		{`{"max_tokens":1000,"Max_Tokens":1,` + messages + `}`, 0, ""},
		{`{"max_to\u212aens":1,` + messages + `}`, 0, ""}, // some parsers treat the Kelvin sign as a k
		{`{"stream":true,"Stream":false,` + messages + `}`, 0, ""},
		{`{"max_tokens":1000,"max_completion_tokens":1,` + messages + `}`, 4 + 1000, ""},
		{`{"max_completion_tokens":1000,"max_tokens":-1,` + messages + `}`, 0, ""},
		{`{"max_tokens":100,"n":1,"best_of":5,` + messages + `}`, 4 + 500, ""},
		{`{"max_tokens":100,"tools":["` + strings.Repeat("x", 396) + `"],` + messages + `}`, 4 + 100 + 100, ""},
		{`{"max_tokens":100,"messages":[{"role":"` + strings.Repeat("x", 398) +
			`","content":"Hi"}]}`, 4 + 100 + 100, ""},
	} {
		c, err := readCompletion(strings.NewReader(test.body))
		switch {
		case test.want == 0 && err == nil:
			t.Errorf("%.60s: the estimate is %d", test.body, c.estimate())
		case test.want == 0:
		case err != nil || c.estimate() != test.want:
			t.Errorf("%.60s: have %+v, %v, want %d", test.body, c, err, test.want)
		case test.model != "" && string(c.body) != test.model:
			t.Errorf("%.60s: the model gets %s", test.body, c.body)
		}
	}
}

// TestOneKey: neither blanks nor other bytes that the model may ignore turn one key into another.
func TestOneKey(t *testing.T) {
	for header, want := range map[string]string{
		"Bearer k1": "k1", "Bearer  k1": "k1", "Bearer k1 ": "k1", "Bearer \tk1": "k1",
		"": "", "Bearer ": "", "bearer k1": "", "Basic k1": "", "Bearer k 1": "",
		"Bearer k\x7f": "", "Bearer k\u00a0": "", "Bearer k1\xff": "",
	} {
		if have, ok := apiKey(header); ok != (want != "") || ok && have != want {
			t.Errorf("%q: have %q, %t, want %q", header, have, ok, want)
		}
	}
	n := newFakeNode(t)
	var sent string
	g := serve(t, n.URL, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = r.Header.Get("Authorization")
		stub{}.ServeHTTP(w, r)
	}))
	r := ask(t, context.Background(), g, "  k1", plain)
	io.Copy(io.Discard, r.Body)
	n.mu.Lock()
	defer n.mu.Unlock()
	if have := n.asked[0]; sent != "Bearer k1" || have["api_key"] != client.Fingerprint("k1") ||
		have["ip"] != "127.0.0.1" {
		t.Errorf("the model gets %q, rlnode %v", sent, have)
	}
}

// TestPlacesAreBounded: calls beyond the bound are refused without being read.
func TestPlacesAreBounded(t *testing.T) {
	n := newFakeNode(t)
	target, err := url.Parse(n.URL)
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := client.New(client.Options{Nodes: []string{n.URL}, Timeout: process.Timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer limiter.Close()
	g := newGateway(limiter, target, slog.New(slog.DiscardHandler))
	for range maxCalls {
		g.slots <- struct{}{}
	}
	r := httptest.NewRequest(http.MethodPost, completions, strings.NewReader(plain))
	r.Header.Set("Authorization", "Bearer k")
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	if w.Code != 503 || w.Header().Get("Retry-After") != "1" {
		t.Errorf("have %d %v", w.Code, w.Header())
	}
}

// TestNoNode: calls pass without the limiter.
func TestNoNode(t *testing.T) {
	n := newFakeNode(t)
	g := serve(t, n.URL, stub{})
	n.Close()
	if r := ask(t, context.Background(), g, "k", plain); r.StatusCode != 200 {
		t.Errorf("have %d", r.StatusCode)
	}
}

func TestDuration(t *testing.T) {
	for have, want := range map[time.Duration]string{
		0: "0s", 120 * time.Millisecond: "120ms", time.Second: "1s", 6 * time.Minute: "6m0s",
		7651 * time.Millisecond: "7.66s", 90 * time.Second: "1m30s",
	} {
		if got := duration(have); got != want {
			t.Errorf("%d: have %s, want %s", have, got, want)
		}
	}
}
