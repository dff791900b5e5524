package client

import (
	"crypto/sha256"
	"encoding/hex"
)

// Fingerprint returns a stand-in for a secret, such as an API key. Use it in
// Request.Key and Request.Attributes, because subjects are visible in rlnode's
// lists, logs, bills and dashboard. The stand-in is the first half of the
// SHA-256 in hexadecimal. The setting fingerprint: of a profile makes the same
// value from a header, so that a caller is the same subject behind a proxy and
// here. For an empty secret, the stand-in is empty, because a caller without a
// secret is nobody.
func Fingerprint(secret string) string {
	if secret == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:sha256.Size/2])
}
