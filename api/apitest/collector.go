package apitest

import (
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	otlp "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/rlnode/rlnode/internal/tracing"
)

// Collector is a fake OpenTelemetry collector that keeps the spans it receives.
type Collector struct {
	Tracer *tracing.Tracer // sends to it

	mu    sync.Mutex // guards the rest
	spans []*trace.Span
	raw   strings.Builder
}

// StartCollector starts a collector, and a tracer that sends to it. ratio is
// the share traced of requests whose caller does not decide.
func StartCollector(t testing.TB, ratio float64) *Collector {
	t.Helper()
	c := &Collector{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		unzipped, err := gzip.NewReader(r.Body)
		var b []byte
		if err == nil {
			b, err = io.ReadAll(unzipped)
		}

		var m otlp.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(b, &m)
		}

		if err != nil {
			t.Error(err)
			return
		}

		c.mu.Lock()
		defer c.mu.Unlock()

		c.raw.Write(b)

		for _, rs := range m.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
	}))
	t.Cleanup(server.Close)
	var err error
	if c.Tracer, err = tracing.Open(tracing.Config{Endpoint: server.URL, Ratio: ratio, Node: "n1",
		Version: "test", Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}

	return c
}

// Close closes the tracer, and returns the spans and the raw bytes that the collector has received.
func (c *Collector) Close(t testing.TB) (spans []*trace.Span, raw string) {
	t.Helper()
	if err := c.Tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans, c.raw.String()
}
