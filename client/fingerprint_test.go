package client

import (
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestFingerprint: the result is the same as for a profile's setting
// fingerprint:. rules.AppendFingerprint has the same test.
func TestFingerprint(t *testing.T) {
	if have := Fingerprint("k1"); have != "6ab9f1eb8f7d3388f4f9d586f66e99fd" {
		t.Errorf("have %s", have)
	}
	expect.Equal(t, Fingerprint(""), "", "of no secret")
}
