package client

import (
	"crypto/sha256"
	"encoding/hex"
)

// Fingerprint stands for a secret, such as an API key, in Request.Key and Request.Attributes: subjects show in rlnode's
// lists, logs, bills and dashboard. It is the first half of the SHA-256 in hexadecimal digits, as a profile's
// fingerprint: makes it of a header, so that a caller is one subject behind a proxy and here.
func Fingerprint(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:sha256.Size/2])
}
