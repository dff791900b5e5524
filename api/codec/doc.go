// Package codec reads and writes what the HTTP planes say: strict JSON bodies in; status, headers and body out.
//
// A [Decoder] parses a body by hand and without allocating, as one of the forms in read.go. A [Reply] composes the answer
// to a decision, or to an error. Both are reused from request to request.
//
// The strings of a [Request] point into the body. The decider must not keep them.
package codec
