// Package httpd is the data plane: checks over HTTP/1.1.
//
// Handlers use the package's own small request and response types; only a few
// files use fasthttp. The body is parsed before a handler runs, and a handler
// returns its error. Answers are built in pooled buffers. A plain check that
// arrives in one piece takes the fast path (fastpath.go), which bypasses the
// library.
package httpd
