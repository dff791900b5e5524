// Package tracing sends spans of answered requests to an OpenTelemetry collector, over OTLP and HTTP.
//
// A [Tracer] is told of a request when it is over. One that came with a W3C traceparent is traced if its caller traces it,
// as a child of the caller's span; of the others a part is. Spans wait in a bounded queue and go in batches; what does not
// fit, or can't be sent, is dropped. No request waits for a collector. Spans tell rule and decision, never the subject.
package tracing
