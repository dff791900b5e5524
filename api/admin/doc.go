// Package admin is the admin plane: operators write rules and inspect a node over HTTP, and the dashboard asks here.
//
// It uses net/http. One table lists its endpoints (admin.go). It depends only on the interfaces in [Config].
package admin
