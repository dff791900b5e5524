// Package envoy is the door for Envoy's rate limit service: version 3 of its
// gRPC protocol, with health checks and reflection. Package rls interprets the
// requests and composes the answers.
//
// grpc-go transports the messages. This package's codec passes requests on
// undecoded. On a connection with a spare seat (see seats.go in package api),
// only health checks are answered.
package envoy
