//go:build !nodebit

package simulation

// debited: see nodebit_test.go.
const debited = true
