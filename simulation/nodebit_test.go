//go:build nodebit

package simulation

import (
	"testing"
	"time"
)

// debited: grants are debited before they are handed out.
const debited = false

// With the build tag nodebit grants are handed out without a debit, and the checkers notice.
func TestGrantsWithoutDebitAreFound(t *testing.T) {
	for seed := range uint64(5) {
		c := DefaultConfig()
		c.Seed, c.Duration, c.Calm = 101+seed, 40*time.Second, 0
		for _, v := range run(t, c).Judge() {
			if v.Guarantee == "G2" {
				t.Logf("seed %d: %v", c.Seed, v)
				return
			}
		}
	}
	t.Errorf("nobody noticed")
}

// And loans without one.
func TestLoansWithoutDebitAreFound(t *testing.T) {
	for seed := range uint64(5) {
		c := RegionsConfig()
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
