package peer

import (
	"encoding/binary"
	"errors"

	"github.com/rlnode/rlnode/internal/wire"
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
	b = wire.AppendShortText(b, i.Name[:min(len(i.Name), longestName)])
	b = wire.AppendShortText(b, i.Region[:min(len(i.Region), longestRegion)])
	return wire.AppendShortText(b, i.Release[:min(len(i.Release), longestRelease)])
}

func parseIdentity(b []byte) (Identity, error) {
	d := wire.NewDecoder(b)
	i := Identity{Node: ring.DecodeNodeID(d), Boot: d.BigUint64()}
	d.Fill(i.Cluster[:])
	i.Name, i.Region, i.Release = d.ShortText(longestName), d.ShortText(longestRegion), d.ShortText(longestRelease)
	if d.Failed() {
		return Identity{}, errIdentity
	}
	return i, nil
}
