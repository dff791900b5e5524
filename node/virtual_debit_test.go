//go:build !nodebit

package node

// simDebited is explained in virtual_nodebit_test.go.
const simDebited = true
