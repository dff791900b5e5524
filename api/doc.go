// Package api holds what all doors of a node share. A door serves callers over
// one protocol: package httpd serves checks over HTTP, package envoy serves
// Envoy's rate limit service over gRPC, package resp serves clients of Redis,
// package admin serves operators.
//
// [Open] reads the tokens and the certificate and returns [Doors]. Each door
// then binds its own address. It imports this package, and no other door. A
// door authorises callers by their tokens ([Doors.Permit]), bounds its
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
package api
