package ring

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/internal/wire"
)

// ErrNodeID means that the text is not a node ID.
var ErrNodeID = errors.New("not a node ID of 32 hexadecimal digits")

// NodeID identifies a node for as long as its data directory exists. The zero
// value identifies none.
type NodeID [16]byte

// ParseNodeID is the inverse of [NodeID.String]. The error wraps [ErrNodeID].
func ParseNodeID(s string) (NodeID, error) {
	b, err := hex.DecodeString(s[:min(len(s), 2*len(NodeID{})+1)])
	if err != nil || len(b) != len(NodeID{}) {
		return NodeID{}, fmt.Errorf("%w: %.40q, %d bytes", ErrNodeID, s, len(s))
	}
	return NodeID(b), nil
}

// DecodeNodeID reads the 16 bytes of a NodeID.
func DecodeNodeID(d *wire.Decoder) (id NodeID) {
	d.Fill(id[:])
	return id
}

// String returns 32 hexadecimal digits.
func (id NodeID) String() string { return hex.EncodeToString(id[:]) }

// Compare orders IDs by their text. It returns a value below 0 if id comes
// before other, 0 if they are equal, and a value above 0 otherwise.
func (id NodeID) Compare(other NodeID) int { return bytes.Compare(id[:], other[:]) }

// IsZero reports whether id identifies no node.
func (id NodeID) IsZero() bool { return id == NodeID{} }

// MarshalText returns the bytes of String.
func (id NodeID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is the inverse of MarshalText. The error wraps [ErrNodeID].
func (id *NodeID) UnmarshalText(text []byte) error {
	parsed, err := ParseNodeID(string(text))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}
