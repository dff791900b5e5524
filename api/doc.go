// Package api has what all doors of a node need. A door is one protocol by which callers ask: package httpd serves checks
// over HTTP, package envoy serves Envoy's rate limit service over gRPC, package admin serves operators.
//
// [Open] reads the tokens and the certificate and returns [Doors]. Each door then binds its own address, imports this
// package, and no other door. A door lets callers in by their tokens ([Doors.Permit]), bounds its connections
// ([Connections]) and what large requests and answers hold in memory ([Budget]), asks the [Decider], and reports every
// error as an [Error] with one of the codes in errors.go.
//
// A node starts out reporting that it is not ready. [Doors.Ready] lets checks in. [Readiness.Drain] tells load balancers
// to leave while checks on open connections are still decided. The doors are closed first, then [Doors.Close].
//
// openapi.yaml describes both HTTP planes, and every code.
package api
