//go:build nodebit

package limiter

// debitFirst: see debit_on.go.
const debitFirst = false
