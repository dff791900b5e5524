package peer

import (
	"encoding/binary"
	"errors"

	"github.com/rlnode/rlnode/ring"
)

// longestName is how many bytes of a name go into a preamble.
const longestName = 255

// Identity says who a node is.
type Identity struct {
	Node    ring.NodeID
	Boot    uint64   // of the process: another one after each start
	Name    string   // for people
	Cluster [16]byte // zero: none yet
}

var errIdentity = errors.New("not an identity")

func (i Identity) appendBinary(b []byte) []byte {
	b = append(b, i.Node[:]...)
	b = binary.BigEndian.AppendUint64(b, i.Boot)
	b = append(b, i.Cluster[:]...)
	return append(b, i.Name[:min(len(i.Name), longestName)]...)
}

func parseIdentity(b []byte) (i Identity, err error) {
	const fixed = 16 + 8 + 16
	if len(b) < fixed || len(b) > fixed+longestName {
		return i, errIdentity
	}
	copy(i.Node[:], b)
	i.Boot = binary.BigEndian.Uint64(b[16:])
	copy(i.Cluster[:], b[24:])
	i.Name = string(b[fixed:])
	return i, nil
}
