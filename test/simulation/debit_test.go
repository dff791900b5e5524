//go:build !nodebit

package simulation

// debited is explained in nodebit_test.go.
const debited = true
