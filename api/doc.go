// Package api serves HTTP on two planes: checks come in on the data plane; operators write rules and inspect a node on
// the admin plane.
//
// [Open] binds both planes and returns an [API]. Its handlers depend only on the interfaces in [Config], so the code
// that decides checks, stores rules and tracks members can change without touching this package. A node starts out
// reporting that it is not ready. [API.Ready] lets checks in. [API.Drain] tells load balancers to leave while checks on
// open connections are still decided. [API.Close] shuts it down.
//
// Data plane handlers use the package's own small request and response types; only a few files name fasthttp. Before a
// handler runs, its body is parsed strictly, by hand and without allocating, as one of the forms in read.go. A handler
// returns its error. Answers come from pooled buffers. The admin plane uses net/http, and one table lists its
// endpoints. Every error of either plane is one of the codes in errors.go and is documented in openapi.yaml.
//
// The strings of a check point into the request's buffer. The decider must not keep them.
package api
