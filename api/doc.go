// Package api holds what all doors of a node share. A door serves callers over
// one protocol: package httpd serves checks over HTTP, package envoy serves
// Envoy's rate limit service over gRPC, package resp serves clients of Redis,
// package admin serves operators.
//
// [Open] reads the tokens and the certificate and returns [Doors]. Each door
// then binds its own address. It imports this package, and no other door. A
// door authorises callers by their tokens ([Doors.Authorize]), bounds its
// connections ([Connections]) and the memory of large requests and answers
// ([Budget]), asks the [Decider], and reports every error as an [Error] with
// one of the codes in errors.go.
//
// A node starts out not ready. [Doors.Ready] lets checks in. [Readiness.Drain]
// makes load balancers send new callers elsewhere, while checks on open
// connections are still decided. Close the doors first, then call
// [Doors.Close].
//
// openapi.yaml describes both HTTP planes and every code.
//
// # Files
//
// From the bottom up:
//
//   - errors.go: every error that a caller can get, with its code and status;
//   - latency.go, trace.go, openapi.go: how long checks take, what a span says
//     of a decision, and the text of openapi.yaml;
//   - listen.go, listen_linux.go: binding an address, and what the system
//     allows a connection and the process;
//   - budget.go, together.go: the memory that callers tie up, and one request
//     that asks several owners at once;
//   - turns.go, connection.go, connectionwrite.go: one connection, when others
//     go before it, and answers that its caller reads slowly;
//   - seats.go, connections.go, serving.go: all connections of a door, which of
//     them have a seat, and the loop that accepts them;
//   - config.go: what all doors are given;
//   - tokens.go, tokenfile.go, certificate.go: who may do what, the file that
//     lists the tokens, and the certificate for TLS;
//   - readiness.go, health.go: the stages of a node's life, and what probes are
//     answered;
//   - doors.go, doorseats.go: what holds all of these, and how many connections
//     each door may have.
package api
