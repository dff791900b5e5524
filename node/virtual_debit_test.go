//go:build !nodebit

package node

// simDebited: see virtual_nodebit_test.go.
const simDebited = true
