//go:build nodebit

package simulation

import "testing"

// debited means that lenders debit loans before they make them.
const debited = false

// With the build tag nodebit, lenders don't debit loans, and the checkers notice.
func TestLoansWithoutDebitAreFound(t *testing.T) {
	for seed := range uint64(5) {
		c := DefaultConfig()
		c.Seed, c.Calm = 101+seed, 0
		for _, v := range run(t, c).Judge() {
			if v.Guarantee == "G8" {
				t.Logf("seed %d: %v", c.Seed, v)
				return
			}
		}
	}
	t.Errorf("the checkers found no violation of G8")
}
