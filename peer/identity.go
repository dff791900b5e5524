package peer

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/rlnode/rlnode/ring"
)

// longestName is how many bytes of a name go into a preamble.
const longestName = 255

// longestRegion is how many bytes the name of a region has at most.
const longestRegion = 100

// Identity says who a node is.
type Identity struct {
	Node    ring.NodeID
	Boot    uint64   // of the process: another one after each start
	Name    string   // for people
	Region  string   // at most 100 bytes; "" of a node that knows of no regions
	Cluster [16]byte // zero: none yet
}

var errIdentity = errors.New("not an identity")

// appendBinary adds node, boot, cluster and name; then, of a node that has one, a zero byte and the region. A node that
// knows of no regions takes them for the end of the name.
func (i Identity) appendBinary(b []byte) []byte {
	b = append(b, i.Node[:]...)
	b = binary.BigEndian.AppendUint64(b, i.Boot)
	b = append(b, i.Cluster[:]...)
	room := longestName
	region := i.Region[:min(len(i.Region), longestRegion)]
	if region != "" {
		room -= 1 + len(region)
	}
	b = append(b, i.Name[:min(len(i.Name), room)]...)
	if region != "" {
		b = append(append(b, 0), region...)
	}
	return b
}

func parseIdentity(b []byte) (i Identity, err error) {
	const fixed = 16 + 8 + 16
	if len(b) < fixed || len(b) > fixed+longestName {
		return i, errIdentity
	}
	copy(i.Node[:], b)
	i.Boot = binary.BigEndian.Uint64(b[16:])
	copy(i.Cluster[:], b[24:])
	name, region, has := bytes.Cut(b[fixed:], []byte{0})
	if has && (len(region) == 0 || len(region) > longestRegion) {
		return i, errIdentity
	}
	i.Name, i.Region = string(name), string(region)
	return i, nil
}
