// Package admin is the admin plane: an HTTP server where operators write rules
// and inspect a node. The dashboard uses it, too.
//
// One table lists its endpoints (admin.go). It reaches the rest of the node
// only through the fields of [Config] and api.Doors.
package admin
