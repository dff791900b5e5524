package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/memnet"
)

// receivedRequest is a request that a fake node received.
type receivedRequest struct {
	path   string
	checks []map[string]any // a single check, or those of a batch
	header http.Header
}

// fake is a node that answers as the test wants.
type fake struct {
	*httptest.Server
	t *testing.T

	mu     sync.Mutex // guards the rest
	got    []receivedRequest
	decide func(check map[string]any) (status int, body string) // nil: allow
	answer func(w http.ResponseWriter, r *http.Request) bool    // replaces decide; false: answer as usual
	ready  int                                                  // status of /readyz
	style  string                                               // of the headers, as batches report it
}

const allowed = `{"allowed":true,"rule":"r","limit":10,"remaining":9,"unit":"requests","window_ms":60000,"reset_after_ms":6000,` +
	`"retry_after_ms":0,"delay_ms":0,"decided_by":"owner","node":"n1","rules_version":3}`

const refused = `{"allowed":false,"rule":"r","limit":10,"remaining":0,"unit":"requests","window_ms":60000,"reset_after_ms":60000,` +
	`"retry_after_ms":5500,"delay_ms":0,"decided_by":"lease","node":"n1","rules_version":3}`

const denied = `{"type":"about:blank","title":"The rules deny this","status":403,"code":"denied","detail":"The deny list refuses this.",` +
	`"allowed":false,"rule":"","retry_after_ms":-1,"delay_ms":0,"decided_by":"list","node":"n1","rules_version":3}`

func newFake(t *testing.T) *fake {
	f := &fake{t: t, ready: http.StatusOK}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// onVirtualTime runs a test with a fake on virtual time. Clients made by its
// last argument reach the fake.
func onVirtualTime(t *testing.T, name string, test func(t *testing.T, f *fake, connectTo func(Options) *Client)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			host := memnet.New().Host("192.0.2.1")
			ln, err := host.Listen(80)
			expect.NoError(t, err)
			f := &fake{t: t, ready: http.StatusOK}
			f.Server = &httptest.Server{Listener: ln, Config: &http.Server{Handler: f}}
			f.Start()
			t.Cleanup(f.Close)
			test(t, f, func(o Options) *Client {
				c := connect(t, o, f)
				c.transport.DialContext = func(ctx context.Context, _, address string) (net.Conn,
					error) {
					return host.Dial(ctx, address)
				}
				return c
			})
		})
	})
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// requests returns the requests so far, except for /readyz.
func (f *fake) requests() []receivedRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.got)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	ready, decide, answer, style := f.ready, f.decide, f.answer, f.style
	f.mu.Unlock()
	if r.URL.Path == "/readyz" {
		w.WriteHeader(ready)
		return
	}
	body, _ := io.ReadAll(r.Body)
	one := map[string]any{}
	if err := json.Unmarshal(body, &one); err != nil {
		f.t.Errorf("%s is sent %q: %v", r.URL.Path, body, err)
	}
	got := receivedRequest{path: r.URL.Path, header: r.Header, checks: []map[string]any{one}}
	if list, ok := one["checks"].([]any); ok {
		got.checks = nil
		for _, q := range list {
			got.checks = append(got.checks, q.(map[string]any))
		}
	}
	setup := isSetupCheck(&got)
	if !setup {
		f.mu.Lock()
		f.got = append(f.got, got)
		f.mu.Unlock()
	}
	if answer != nil && answer(w, r) {
		return
	}
	if setup {
		io.WriteString(w, `{"results":[]}`)
		return
	}
	if decide == nil {
		decide = func(map[string]any) (int, string) { return 200, allowed }
	}
	if r.URL.Path != "/v1/check/batch" {
		status, text := decide(one)
		w.WriteHeader(status)
		io.WriteString(w, text)
		return
	}
	w.Header().Set("Rlnode-Headers", style)
	io.WriteString(w, `{"results":[`)
	for i, q := range got.checks {
		if i > 0 {
			io.WriteString(w, ",")
		}
		status, text := decide(q)
		if status != 200 && status != 429 && text != denied {
			text = fmt.Sprintf(`{"error":%s}`, text)
		}
		io.WriteString(w, text)
	}
	io.WriteString(w, "]}")
}

// isSetupCheck reports whether a client asks about its token and its rules: in
// a batch of peeks with an empty key. Fakes don't record those, which come at
// any time.
func isSetupCheck(r *receivedRequest) bool {
	return r.path == "/v1/check/batch" && !slices.ContainsFunc(r.checks, func(check map[string]any) bool {
		key, ok := check["key"].([]any)
		return !ok || len(key) > 0 || check["peek"] != true
	})
}

// connect returns a client of nodes, and closes it at the end of the test.
func connect(t *testing.T, o Options, nodes ...*fake) *Client {
	t.Helper()
	for _, f := range nodes {
		o.Nodes = append(o.Nodes, f.URL)
	}
	c, err := New(o)
	expect.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// byIP is a check for tests.
func byIP(ip string) Request { return Request{Attributes: map[string]string{"ip": ip}} }

// wantError fails the test unless err wraps want.
func wantError(t *testing.T, err, want error) {
	t.Helper()
	expect.ErrorIs(t, err, want, "error")
}

// holdAnswers makes f hold all answers back until release is called.
func (f *fake) holdAnswers() (release func()) {
	gate := make(chan struct{})
	f.set(func() {
		f.answer = func(_ http.ResponseWriter, r *http.Request) bool {
			select {
			case <-gate:
			case <-r.Context().Done():
			}
			return false
		}
	})
	return sync.OnceFunc(func() { close(gate) })
}

var background = context.Background()
