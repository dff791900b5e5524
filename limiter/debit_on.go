//go:build !nodebit

package limiter

// debitFirst: what is granted is debited before. Without it, with the build tag nodebit, tests see whether their
// checkers find what is then admitted too much.
const debitFirst = true
