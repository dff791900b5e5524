//go:build nodebit

package node

import (
	"testing"
	"time"
)

// simDebited is set if grants are debited before they are handed out.
const simDebited = false

// With the build tag nodebit, grants are handed out without a debit, and the checkers must notice.
func TestGrantsWithoutDebitAreFoundInOneProcess(t *testing.T) {
	checkSabotageFound(t, "G2", 40*time.Second, nil)
}

// Neither are loans to other regions debited.
func TestLoansWithoutDebitAreFoundInOneProcess(t *testing.T) {
	checkRegionsSabotageFound(t, nil)
}
