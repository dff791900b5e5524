package client

import (
	"crypto/sha256"
	"encoding/hex"
)

// Fingerprint returns a stand-in for a secret, such as an API key, to use in Request.Key and Request.Attributes:
// subjects are visible in rlnode's lists, logs, bills and dashboard. It is the first half of the SHA-256 in
// hexadecimal. A profile's fingerprint: setting makes the same value from a header, so a caller is one subject both
// behind a proxy and here.
func Fingerprint(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:sha256.Size/2])
}
