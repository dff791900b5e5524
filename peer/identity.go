package peer

import (
	"encoding/binary"
	"errors"

	"github.com/rlnode/rlnode/ring"
)

// How many bytes of a name, and of the name of a release, go into a preamble; and of that of a region, which has no more.
const (
	longestName    = 255
	longestRegion  = 100
	longestRelease = 64
)

// Identity says who a node is.
type Identity struct {
	Node    ring.NodeID
	Boot    uint64   // of the process: another one after each start
	Name    string   // for people
	Region  string   // at most 100 bytes; "" of a node that knows of no regions
	Cluster [16]byte // zero: none yet
	Release string   // for people
}

var errIdentity = errors.New("not an identity")

// appendBinary adds node, boot and cluster; then name, region and release, each behind a byte with its length. Later releases
// may add something at the end.
func (i Identity) appendBinary(b []byte) []byte {
	b = append(b, i.Node[:]...)
	b = binary.BigEndian.AppendUint64(b, i.Boot)
	b = append(b, i.Cluster[:]...)
	for _, text := range []string{i.Name[:min(len(i.Name), longestName)], i.Region[:min(len(i.Region), longestRegion)], i.Release[:min(len(i.Release), longestRelease)]} {
		b = append(append(b, byte(len(text))), text...)
	}
	return b
}

func parseIdentity(b []byte) (i Identity, err error) {
	const fixed = 16 + 8 + 16
	if len(b) < fixed {
		return i, errIdentity
	}
	copy(i.Node[:], b)
	i.Boot = binary.BigEndian.Uint64(b[16:])
	copy(i.Cluster[:], b[24:])
	b = b[fixed:]
	for _, text := range []struct {
		to   *string
		most int
	}{{&i.Name, longestName}, {&i.Region, longestRegion}, {&i.Release, longestRelease}} {
		if len(b) == 0 || int(b[0]) > text.most || int(b[0]) >= len(b) {
			return Identity{}, errIdentity
		}
		end := 1 + int(b[0])
		*text.to, b = string(b[1:end]), b[end:]
	}
	return i, nil
}
