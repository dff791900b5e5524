package tracing

import (
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a collector.
type fake struct {
	*httptest.Server
	mu    sync.Mutex // guards the rest
	spans []*spans.Span
	about map[string]string
	paths map[string]bool
}

func newFake(t *testing.T) *fake {
	f := &fake{about: map[string]string{}, paths: map[string]bool{}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			body, _ = gzip.NewReader(r.Body)
		}
		b, err := io.ReadAll(body)
		var m collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(b, &m)
		}
		if err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.paths[r.URL.Path] = true
		for _, rs := range m.ResourceSpans {
			for _, a := range rs.Resource.Attributes {
				f.about[a.Key] = a.Value.GetStringValue()
			}
			for _, ss := range rs.ScopeSpans {
				f.spans = append(f.spans, ss.Spans...)
			}
		}
	}))
	t.Cleanup(f.Close)
	return f
}

func config(endpoint string) Config {
	return Config{Endpoint: endpoint, Ratio: 1, Node: "n1", Version: "test", Region: "eu",
		Logger: slog.New(slog.DiscardHandler)}
}

func textOf(s *spans.Span, name string) string {
	for _, a := range s.Attributes {
		if a.Key == name {
			return a.Value.String()
		}
	}
	return ""
}

const (
	sampled    = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	notSampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

func TestSpans(t *testing.T) {
	f := newFake(t)
	tracer, err := Open(config(f.URL))
	expect.NoError(t, err)
	began := time.Now().Add(-3 * time.Millisecond)
	ended := began.Add(2 * time.Millisecond)
	tracer.Record(&Request{
		Name: "POST /v1/check", Traceparent: sampled, Tracestate: "vendor=1", Method: "POST",
		Path: "/v1/check", Status: 429,
		Began: began, Ended: ended,
		Decision: &Decision{Rule: "login", Limit: "login", Unit: "requests", DecidedBy: "forward", RulesVersion: 7},
	})
	tracer.Record(&Request{Name: "POST /v1/check/batch", Method: "POST", Path: "/v1/check/batch",
		Status: 503, Began: began, Ended: ended, Checks: 12})
	expect.NoError(t, tracer.Close(t.Context()))
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.spans) != 2 || !f.paths["/v1/traces"] || f.about["service.name"] != "rlnode" ||
		f.about["service.instance.id"] != "n1" {
		t.Fatalf("have %d spans at %v of %v", len(f.spans), f.paths, f.about)
	}
	s := f.spans[0]
	if hex(s.TraceId) != sampled[3:35] || hex(s.ParentSpanId) != sampled[36:52] ||
		s.TraceState != "vendor=1" || s.Kind != spans.Span_SPAN_KIND_SERVER ||
		s.StartTimeUnixNano != uint64(began.UnixNano()) ||
		s.EndTimeUnixNano != uint64(ended.UnixNano()) || s.Name != "POST /v1/check" {
		t.Errorf("have %v", s)
	}
	for name, want := range map[string]string{"rlnode.rule": "login", "rlnode.decided_by": "forward", "rlnode.allowed": "false",
		"http.response.status_code": "429", "rlnode.rules_version": "7"} {
		if have := textOf(s, name); !strings.Contains(have, want) {
			t.Errorf("%s: have %s, want %s", name, have, want)
		}
	}
	if s := f.spans[1]; len(s.ParentSpanId) > 0 ||
		s.Status.GetCode() != spans.Status_STATUS_CODE_ERROR ||
		!strings.Contains(textOf(s, "rlnode.checks"), "12") {
		t.Errorf("have %v", s)
	}
}

func hex(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

func TestSampled(t *testing.T) {
	for _, c := range []struct {
		ratio  float64
		parent string
		want   bool
	}{
		{0, "", false}, {1, "", true}, {0, sampled, true}, {1, notSampled, false},
		{0, "rubbish", false}, {1, "rubbish", true}, {1, strings.Repeat("0", 55), true},
		{0, strings.Repeat("0", 55), false},
		{0, "ff" + sampled[2:], false}, {0, sampled + "-more", false}, {0, strings.Repeat(sampled, 100), false},
		{0, "00-00000000000000000000000000000000-b7ad6b7169203331-01", false}, {0, sampled[:52] + "-zz", false},
	} {
		config := config("http://127.0.0.1:1")
		config.Ratio = c.ratio
		tracer, err := Open(config)
		expect.NoError(t, err)
		expect.Equal(t, tracer.Sampled(c.parent), c.want, "ratio %v, %.60q", c.ratio, c.parent)
		tracer.Close(t.Context())
	}
}

// A collector that hangs or refuses delays no caller: spans beyond the queue
// are dropped, and stopping is bounded.
func TestCollectorHangs(t *testing.T) {
	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer slow.Close()
	defer close(release)
	tracer, err := Open(config(slow.URL))
	expect.NoError(t, err)
	began := time.Now()
	for range 10 * queueSize {
		tracer.Record(&Request{Name: "POST /v1/check", Method: "POST", Path: "/v1/check",
			Status: 200, Began: began, Ended: began})
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("recording took %v", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began = time.Now()
	if err := tracer.Close(ctx); err == nil || time.Since(began) > 3*time.Second {
		t.Errorf("close took %v: %v, want an error soon", time.Since(began), err)
	}
	for end := began.Add(10 * time.Second); exporting() && time.Now().Before(end); {
		runtime.Gosched()
	}
	if exporting() {
		t.Error("the tracer still sends")
	}
}

// exporting reports whether a goroutine of a tracer is left: the one that sends
// batches, or the one that waits for it. Once they have ended, nothing follows;
// after a message in flight, another may.
func exporting() bool {
	b := make([]byte, 1<<20)
	return strings.Contains(string(b[:runtime.Stack(b, true)]), "batchSpanProcessor")
}

func TestValidate(t *testing.T) {
	for endpoint, want := range map[string]bool{"http://127.0.0.1:4318": true, "https://c/x": true, "127.0.0.1:4318": false, "": false,
		"grpc://x": false, "http://": false, "http://a b": false} {
		c := config(endpoint)
		if err := c.Validate(); (err == nil) != want {
			t.Errorf("%q: have %v", endpoint, err)
		}
	}
	for _, ratio := range []float64{-0.1, 1.1} {
		c := config("http://c")
		c.Ratio = ratio
		if c.Validate() == nil {
			t.Errorf("a ratio of %v: want an error", ratio)
		}
	}
}
