package httpd

import (
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/internal/tracing"
)

// trace records an answered request, if it is sampled and not a probe.
func (h *handlers) trace(r *route, x *exchange) {
	if r.need == api.Anyone || !h.tracer.Sampled(x.traceparent) {
		return
	}

	t := tracing.Request{
		Name: x.method + " " + r.path, Traceparent: x.traceparent, Tracestate: x.tracestate,
		Method: x.method, Path: r.path,
		Status: x.Status, Began: x.began, Ended: time.Now(),
	}
	if x.decided {
		t.Decision = api.TracedDecision(&x.answer)
	}

	t.Checks = x.checks
	if x.token != nil {
		t.Token = x.token.Name
	}

	h.tracer.Record(&t)
}
