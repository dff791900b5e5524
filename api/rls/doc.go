// Package rls implements Envoy's rate limit service independently of the
// transport: package envoy serves it over gRPC, and the data plane as JSON.
//
// A [Call] reads a RateLimitRequest, finds the nodes of the domain's tree that
// its descriptors match, asks the decider about all of them at once, and
// composes the RateLimitResponse. It encodes and decodes the wire format
// itself: the messages are small, a call is reused, and generated messages
// would conflict with Envoy's own in a program that embeds a node. schema.go
// describes the messages, for reflection and JSON.
package rls
