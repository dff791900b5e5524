//go:build !nodebit

package limiter

// debitFirst makes owners debit what they grant or lend before they hand it out. The build tag nodebit turns that off, so that
// tests can see whether their checkers notice the excess that is then admitted.
const debitFirst = true
