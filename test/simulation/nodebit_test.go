//go:build nodebit

package simulation

import "testing"

// debited: loans are debited before they are made.
const debited = false

// With the build tag nodebit loans are made without a debit, and the checkers notice.
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
	t.Errorf("nobody noticed")
}
