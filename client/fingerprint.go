package client

import (
	"crypto/sha256"
	"encoding/hex"
)

// Fingerprint returns a stand-in for a secret, such as an API key. Use it in
// Request.Key and Request.Attributes, because subjects are visible in rlnode's
// lists, logs, bills and dashboard. It is the first half of the SHA-256 in
// hexadecimal. The setting fingerprint: of a profile makes the same value from
// a header, so that a caller is the same subject behind a proxy and here. Of an
// empty secret it is empty, because a caller without one is nobody.
func Fingerprint(secret string) string {
	if secret == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:sha256.Size/2])
}
