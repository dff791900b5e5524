// Package api answers HTTP: the data plane, where checks are asked, and the admin plane, where rules are written
// and a node is looked at.
//
// [Open] binds both planes and returns an [API]. Its handlers stand on the interfaces of a [Config], so that what
// decides checks, keeps rules and knows the members can change without this package. A node begins
// answering that it is not ready; [API.Ready] lets checks in, [API.Drain] tells load balancers to leave while checks on open
// connections go on, [API.Close] ends it.
//
// The data plane's handlers are written against a small request and response of their own; fasthttp is named in
// few files. A body is read strictly, by hand and without allocating, as one of the forms in read.go, before its handler
// runs; a handler returns its error. Answers come from pooled buffers. The admin plane is net/http, and its endpoints are one
// table. Every error of either plane is one of the codes in errors.go and documented in openapi.yaml.
//
// Strings of a check refer to the request's buffer. What decides it must not keep them.
package api
