// Package httpd is the data plane: checks over HTTP/1.1.
//
// Handlers use the package's own small request and response types; only a few
// files use fasthttp. A body that has a form is parsed before its handler runs;
// the handlers of batches and of Envoy's JSON parse their own. A handler returns
// its error. Answers are built in pooled buffers. A plain check that arrives in
// one piece takes the fast path (fastpath.go), which bypasses the library.
//
// # Files
//
// From the bottom up:
//
//   - config.go, deadline.go: what the data plane is given, and deadlines that
//     seldom touch a timer;
//   - exchange.go, browsers.go: a request with its answer, and requests that
//     web pages make;
//   - data.go, trace.go: the table of routes, what all requests go through, and
//     the plain check;
//   - adjust.go, reserve.go, slots.go, batch.go, auth.go, envoy.go: handlers of
//     usage and its changes, reservations, slots, batches, proxies that ask
//     about their own clients, and Envoy's JSON;
//   - adminchecks.go: the same handlers on the admin plane;
//   - large.go, transport.go: a large answer while it is sent, and a connection
//     that holds little while it waits;
//   - heldreply.go, hangup_linux.go, heldanswers.go, moveup.go: answers that
//     are held back, callers that hang up meanwhile, and those behind them, who
//     move up;
//   - fastpath.go, serving.go, hold.go: a plain request that the library never
//     sees, who serves a connection, and how an answer that is held back takes
//     it from the library;
//   - fasthttp.go, metrics.go: the server over the library, and what it shows.
package httpd
