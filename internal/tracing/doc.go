// Package tracing sends spans of answered requests to an OpenTelemetry
// collector, by OTLP over HTTP.
//
// A [Tracer] records a request after its answer. A request with a W3C
// traceparent is traced if its caller traces it, as a child of the caller's
// span; of the others a sample is. Spans wait in a bounded queue and are sent
// in batches; a span that does not fit, or can't be sent, is dropped. No
// request waits for a collector. Spans carry the rule and the decision, never
// the subject.
package tracing
