package agreement

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// ErrID means that a text is not an ID of 32 hexadecimal digits.
var ErrID = errors.New("not an ID of 32 hexadecimal digits")

// ID identifies one thing of a kind permanently. The zero value identifies nothing.
type ID[Kind any] [16]byte

// The kinds of ID.
type (
	ClusterID = ID[ofCluster]
	// WorldID identifies a group of regions that share their rules.
	WorldID = ID[ofWorld]
	// RequestID identifies a write of rules or entries, so that a retry doesn't
	// write twice.
	RequestID = ID[ofRequest]

	ofCluster struct{}
	ofWorld   struct{}
	ofRequest struct{}
)

// String returns 32 hexadecimal digits.
func (id ID[Kind]) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id is the zero value.
func (id ID[Kind]) IsZero() bool { return id == ID[Kind]{} }

// MarshalText returns the digits of String.
func (id ID[Kind]) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is the inverse of MarshalText. The error wraps [ErrID].
func (id *ID[Kind]) UnmarshalText(text []byte) error { return decodeHex(id[:], text) }

// decodeHex decodes text into to. It changes to only if text is valid and has
// exactly the right length.
func decodeHex(to, text []byte) error {
	if len(text) != 2*len(to) {
		return fmt.Errorf("%w: %d bytes", ErrID, len(text))
	}
	parsed, err := hex.AppendDecode(nil, text)
	if err != nil {
		return fmt.Errorf("%w: %q", ErrID, text)
	}
	copy(to, parsed)
	return nil
}
