//go:build !nodebit

package limiter

// debitFirst makes owners debit what they grant or lend before they hand it
// out. The build tag nodebit turns it off, to test that the checkers notice the
// resulting over-admission.
const debitFirst = true
