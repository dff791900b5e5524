//go:build !nodebit

package main

// simDebited: see virtual_nodebit_test.go.
const simDebited = true
