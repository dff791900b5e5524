package peer

import (
	"encoding/binary"
	"errors"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// Maximum lengths in bytes of the texts in a preamble. Longer names and
// releases are cut; a region is never longer.
const (
	maxName    = 255
	maxRegion  = 100
	maxRelease = 64
)

// Identity is the node, and its process, at one end of a connection.
type Identity struct {
	Node    ring.NodeID
	Boot    uint64   // of the process: differs at each start
	Name    string   // for people
	Region  string   // at most 100 bytes; "" if the node knows of no regions
	Cluster [16]byte // zero if there is none yet
	Release string   // for people
}

var errIdentity = errors.New("not an identity")

// appendBinary appends node, boot and cluster; then name, region and release,
// each preceded by a length byte. Later releases may add fields at the end.
func (i Identity) appendBinary(b []byte) []byte {
	b = append(b, i.Node[:]...)
	b = binary.BigEndian.AppendUint64(b, i.Boot)
	b = append(b, i.Cluster[:]...)
	b = wire.AppendShortText(b, i.Name[:min(len(i.Name), maxName)])
	b = wire.AppendShortText(b, i.Region[:min(len(i.Region), maxRegion)])
	return wire.AppendShortText(b, i.Release[:min(len(i.Release), maxRelease)])
}

func parseIdentity(b []byte) (Identity, error) {
	d := wire.NewDecoder(b)
	i := Identity{Node: ring.DecodeNodeID(d), Boot: d.BigUint64()}
	d.Fill(i.Cluster[:])
	i.Name, i.Region, i.Release = d.ShortText(maxName), d.ShortText(maxRegion), d.ShortText(maxRelease)
	if d.Failed() {
		return Identity{}, errIdentity
	}
	return i, nil
}
