// Package codec reads the requests of the HTTP planes and writes their answers:
// strict JSON bodies in; status, headers and body out.
//
// A [Decoder] is a hand-written parser that reads a body as one of the forms in
// read.go without allocating. A [Reply] holds the answer that reports a
// decision or an error. Both are reused from request to request.
//
// The strings of a [Request] point into the body. The decider must not retain them.
package codec
