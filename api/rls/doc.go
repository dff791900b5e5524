// Package rls answers Envoy's rate limit service, apart from how its messages travel: package envoy serves it over gRPC, and
// the data plane as JSON.
//
// A [Call] reads a RateLimitRequest, finds the nodes of the domain's tree that its descriptors match, asks the decider about all
// of them at once, and composes the RateLimitResponse. It reads and writes the wire format itself: the messages are small, a
// call is reused, and a program that embeds a node may link Envoy's own generated messages. schema.go describes the messages to
// those who ask.
package rls
