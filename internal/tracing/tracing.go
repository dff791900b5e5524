package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Bounds of the send queue and its messages.
const (
	queueSize     = 2048 // spans; more are dropped
	batchSize     = 512  // spans in a message
	batchInterval = 2 * time.Second
	exportTimeout = 5 * time.Second
	// traceparentSize is the length of the only version of traceparent so far;
	// longer ones belong to later versions.
	traceparentSize = 55
	maxTraceparent  = 512
	// failureLogInterval is the minimum time between two log lines about a failing collector.
	failureLogInterval = time.Minute
)

// Config says where spans go.
type Config struct {
	Endpoint string  // URL of the collector; without a path: /v1/traces
	Ratio    float64 // 0…1: the share traced of requests whose caller does not decide
	Node     string  // this node's name
	Version  string  // the program's version
	Region   string
	Logger   *slog.Logger
}

// Validate returns an error that says what is wrong.
func (c *Config) Validate() error {
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("tracing: Endpoint is %.200q, not a URL with http or https", c.Endpoint)
	}
	if !(c.Ratio >= 0 && c.Ratio <= 1) {
		return fmt.Errorf("tracing: Ratio is %v, not in 0…1", c.Ratio)
	}
	if c.Logger == nil {
		return errors.New("tracing: Logger is nil")
	}
	return nil
}

// Tracer makes spans of requests. Its methods are safe for concurrent use.
type Tracer struct {
	ratio    float64
	exporter *otlptrace.Exporter
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	context  propagation.TraceContext
}

// Open starts to send spans. An unreachable collector is not an error.
func Open(c Config) (*Tracer, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}

	u, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("tracing: read the endpoint: %w", err)
	}

	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}

	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(u.String()),
		otlptracehttp.WithTimeout(exportTimeout), otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false}))
	if err != nil {
		return nil, fmt.Errorf("tracing: make the exporter: %w", err)
	}

	about := resource.NewSchemaless(
		attribute.String("service.name", "rlnode"), attribute.String("service.version", c.Version),
		attribute.String("service.instance.id", c.Node), attribute.String("rlnode.region", c.Region),
	)
	t := &Tracer{ratio: c.Ratio, exporter: exporter}
	t.provider = sdk.NewTracerProvider(sdk.WithResource(about), sdk.WithSampler(sdk.AlwaysSample()),
		sdk.WithBatcher(exporter, sdk.WithMaxQueueSize(queueSize), sdk.WithMaxExportBatchSize(batchSize),
			sdk.WithBatchTimeout(batchInterval), sdk.WithExportTimeout(exportTimeout)))
	t.tracer = t.provider.Tracer("github.com/rlnode/rlnode", trace.WithInstrumentationVersion(c.Version))

	return t, nil
}

// LogFailures makes the library log spans that it can't send. The handler for
// that is global to the process.
func LogFailures(log *slog.Logger) { otel.SetErrorHandler(&failures{log: log}) }

// Close sends the waiting spans, until ctx ends, and drops the rest.
func (t *Tracer) Close(ctx context.Context) error {
	err := t.provider.Shutdown(ctx)
	if err != nil {
		// A send in progress would continue; shutting down the exporter ends it.
		return fmt.Errorf("close tracing: %w", errors.Join(err, t.exporter.Shutdown(context.WithoutCancel(ctx))))
	}
	return nil
}

// Sampled decides whether to trace a request with this traceparent; empty: it
// has none. An invalid traceparent counts as none.
func (t *Tracer) Sampled(traceparent string) bool {
	n := len(traceparent)
	if n >= traceparentSize && n <= maxTraceparent {
		parent := t.parent(traceparent, "")
		if parent.IsValid() {
			return parent.IsSampled()
		}
	}
	return rand.Float64() < t.ratio
}

func (t *Tracer) parent(traceparent, tracestate string) trace.SpanContext {
	carrier := propagation.MapCarrier{"traceparent": traceparent}
	if tracestate != "" {
		carrier["tracestate"] = tracestate
	}
	return trace.SpanContextFromContext(t.context.Extract(context.Background(), carrier))
}

// Request is an answered request. Its strings are not kept.
type Request struct {
	Name                    string // of the span: what was asked for
	Traceparent, Tracestate string // as received; empty: none
	Method, Path            string // empty: it did not come over HTTP
	Status                  int    // the HTTP status, or the one that it would have over HTTP
	Began, Ended            time.Time
	Decision                *Decision // nil: none, or many
	Checks                  int       // in a batch
	Token                   string    // the name of the caller's token; empty: none was required
}

// Decision is the decision on a check.
type Decision struct {
	Allowed      bool
	Rule         string // the rule of the tightest limit; empty: no rule
	Limit        string // the name of that limit
	Unit         string
	Remaining    int64
	DecidedBy    string
	RulesVersion int64
	Delay        time.Duration
}

// Record makes a span of a request that Sampled accepted.
func (t *Tracer) Record(r *Request) {
	ctx := context.Background()
	n := len(r.Traceparent)
	if n >= traceparentSize && n <= maxTraceparent {
		state := string([]byte(r.Tracestate))
		if len(state) > maxTraceparent {
			state = ""
		}
		ctx = trace.ContextWithRemoteSpanContext(ctx, t.parent(string([]byte(r.Traceparent)), state))
	}

	_, span := t.tracer.Start(ctx, r.Name, trace.WithTimestamp(r.Began), trace.WithSpanKind(trace.SpanKindServer))
	if r.Method != "" {
		span.SetAttributes(
			attribute.String("http.request.method", string([]byte(r.Method))), attribute.String("url.path", r.Path),
			attribute.Int("http.response.status_code", r.Status),
		)
	}
	if r.Token != "" {
		span.SetAttributes(attribute.String("rlnode.token", r.Token))
	}

	if d := r.Decision; d != nil {
		span.SetAttributes(
			attribute.Bool("rlnode.allowed", d.Allowed), attribute.String("rlnode.decided_by", d.DecidedBy),
			attribute.Int64("rlnode.rules_version", d.RulesVersion),
		)
		if d.Rule != "" {
			span.SetAttributes(attribute.String("rlnode.rule", d.Rule), attribute.String("rlnode.limit", d.Limit),
				attribute.String("rlnode.unit", d.Unit), attribute.Int64("rlnode.remaining", d.Remaining),
				attribute.Int64("rlnode.delay_ms", d.Delay.Milliseconds()))
		}
	}

	if r.Checks > 0 {
		span.SetAttributes(attribute.Int("rlnode.checks", r.Checks))
	}
	if r.Status >= 500 {
		span.SetStatus(codes.Error, "")
	}

	span.End(trace.WithTimestamp(r.Ended))
}

// failures logs the library's failures, at most once per failureLogInterval.
type failures struct {
	log  *slog.Logger
	last atomic.Int64 // when the last line was logged, in nanoseconds
	mu   sync.Mutex   // lets only one of many callers log
}

// Handle implements the library's error handler.
func (f *failures) Handle(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now().UnixNano()
	if now-f.last.Load() > int64(failureLogInterval) {
		f.last.Store(now)
		f.log.Warn("spans are not sent", "error", err)
	}
}
