package agreement

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// ErrID: a text is not the ID of a cluster or a request.
var ErrID = errors.New("not an ID of 32 hexadecimal digits")

// ClusterID names a cluster for good. The zero value names none.
type ClusterID [16]byte

// String gives 32 hexadecimal digits.
func (id ClusterID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id names no cluster.
func (id ClusterID) IsZero() bool { return id == ClusterID{} }

// MarshalText gives what String gives.
func (id ClusterID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is the inverse of MarshalText. The error wraps [ErrID].
func (id *ClusterID) UnmarshalText(text []byte) error { return parseID((*[16]byte)(id), text) }

// WorldID names a world for good: the regions that follow one another's rules. The zero value names none.
type WorldID [16]byte

// String gives 32 hexadecimal digits.
func (id WorldID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id names no world.
func (id WorldID) IsZero() bool { return id == WorldID{} }

// MarshalText gives what String gives.
func (id WorldID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is the inverse of MarshalText. The error wraps [ErrID].
func (id *WorldID) UnmarshalText(text []byte) error { return parseID((*[16]byte)(id), text) }

// RequestID tells a write of rules from all others, so that it can be repeated without being made twice.
type RequestID [16]byte

// String gives 32 hexadecimal digits.
func (id RequestID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id names no request.
func (id RequestID) IsZero() bool { return id == RequestID{} }

// MarshalText gives what String gives.
func (id RequestID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is the inverse of MarshalText. The error wraps [ErrID].
func (id *RequestID) UnmarshalText(text []byte) error { return parseID((*[16]byte)(id), text) }

// parseID changes id only if text is one.
func parseID(id *[16]byte, text []byte) error {
	var parsed [16]byte
	if len(text) != 2*len(parsed) {
		return fmt.Errorf("%w: %d bytes", ErrID, len(text))
	}
	if _, err := hex.Decode(parsed[:], text); err != nil {
		return fmt.Errorf("%w: %q", ErrID, text)
	}
	*id = parsed
	return nil
}
