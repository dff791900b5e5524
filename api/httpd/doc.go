// Package httpd is the data plane: checks over HTTP/1.1.
//
// Handlers use the package's own small request and response types; only a few files name fasthttp. Before a handler runs,
// its body is parsed. A handler returns its error. Answers come from pooled buffers. A plain check that arrived in one
// piece is answered the quick way (quick.go), and the library never sees it.
package httpd
