// Package envoy is the door for Envoy's rate limit service: version 3 of its gRPC protocol, with health checks and reflection.
// What a request means and what it is answered is in package rls.
//
// grpc-go carries the messages. A codec of this package hands requests over as they came, and a connection that has no place
// (see api.Connections) gets only its health checked.
package envoy
