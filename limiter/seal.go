package limiter

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"

	"github.com/rlnode/rlnode/internal/wire"
)

// The ID of a reservation or a slot has all that a node must know to settle,
// renew or release it. A signature proves that this cluster made the ID.

const signatureBytes = 16

// seal packs msg into an ID, which begins with format, and signs it.
func seal(msg wire.Message, format byte, key []byte) string {
	b := wire.Encode([]byte{format}, msg)
	return base64.RawURLEncoding.EncodeToString(append(b, signature(key, b)...))
}

// unseal reads an ID into msg, and reports whether the ID was sealed with this
// format and key.
func unseal(id string, msg wire.Message, format byte, key []byte) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if err != nil || len(raw) <= signatureBytes {
		return false
	}
	b := raw[:len(raw)-signatureBytes]
	return hmac.Equal(raw[len(b):], signature(key, b)) && b[0] == format && wire.Decode(b[1:], msg, "id") == nil
}

func signature(key, b []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(b)
	return h.Sum(nil)[:signatureBytes]
}

// signingKey returns the key that signs IDs of one kind, which purpose names.
// known is false while this node does not know the cluster's secret. It then
// uses a key of its process, as a standalone node does, and no other node can
// verify the signature.
func (rs *reservations) signingKey(purpose string) (key []byte, known bool) {
	if rs.limiter.cluster == nil || rs.limiter.cluster.SigningKey == nil {
		return rs.processKey[:], true
	}
	secret := rs.limiter.cluster.SigningKey()
	if len(secret) == 0 {
		return rs.processKey[:], false
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(purpose))
	return h.Sum(nil), true
}
