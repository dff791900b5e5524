// Package httpd is the data plane: checks over HTTP/1.1.
//
// Handlers use the package's own small request and response types; only a few
// files use fasthttp. A body that has a form is parsed before its handler runs;
// the handlers of batches and of Envoy's JSON parse their own. A handler returns
// its error. Answers are built in pooled buffers. A plain check that arrives in
// one piece takes the fast path (fastpath.go), which bypasses the library.
package httpd
