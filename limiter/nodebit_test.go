//go:build nodebit

package limiter

import (
	"testing"
	"time"
)

// With the build tag nodebit, lenders don't debit their loans. The sum over all
// regions reveals that.
func TestDebit_OfLoansIsMissed(t *testing.T) {
	e := newTestRegions(t, globalExact, "ap", "eu", "us")
	n := e.flood(byKey("r", "x"), 901, 10*time.Second, "eu")
	n += e.flood(byKey("r", "x"), 901-n, 10*time.Second, "ap", "us")
	if n <= 900 {
		t.Errorf("have %d admitted, want more than 900", n)
	}
}
