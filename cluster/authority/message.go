package authority

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

const (
	// Term is how long authority lasts, counted by its holder from when it sent the request: "A" in the docs.
	Term = 2 * time.Second
	// Wait is how long a leader waits until authority that it granted has run out for certain: the term and 1 %,
	// by which the clocks of two nodes may differ in pace.
	Wait = Term + Term/100
)

// Methods of the calls between nodes that belong to this package: 32 to 47.
const (
	MethodAsk       = 32 // Request → Reply
	MethodCommitted = 33 // nothing → Reply, whose Index is what has to be applied
)

const (
	// maxReported bounds each of the lists of nodes in a request and in a reply; further ones are left out. They are hints.
	maxReported = 1024
	// maxWhy bounds the bytes of a refusal's reason.
	maxWhy = 255

	// maxRelease bounds the bytes of the names of a release and of a version of time zones.
	maxRelease = 64

	requestVersion = 3

	// Bytes of a reply that say what it is.
	refused = 0
	granted = 1
	differs = 2
	removed = 3

	flagLeaving  = 1
	flagGivingUp = 2
	flagStuck    = 4
	flags        = flagLeaving | flagGivingUp | flagStuck
)

// ErrMessage: bytes that are no request or no reply.
var ErrMessage = errors.New("bytes are no message about authority")

// Request is one node's asking for authority, and what the leader has to know about the node.
type Request struct {
	Node        ring.NodeID
	Boot        uint64        // the process; never 0
	Generation  int64         // of Node, as applied there
	Applied     uint64        // Raft index
	Settled     int64         // the epoch that the node has settled
	Unreachable []ring.NodeID // the peers that it can't reach
	Relayed     []ring.NodeID // those that it reaches only by way of another node
	Leaving     bool          // it wants to leave the ring
	GivingUp    bool          // it gives its authority up, now, and this process asks for none again
	Stuck       bool          // it applies nothing more, and is to have no authority
	// Without is for how long the process has had no authority, in whole milliseconds, at most 49 days; 0 while it has some.
	Without time.Duration

	// What the process knows: the newest feature level, and, for people, its release and the version of its time zones.
	Level   agreement.Level
	Release string
	Zones   string

	// Check is the hash of what the node has applied, as of an index.
	Check agreement.Check
}

// Reply is the leader's answer.
type Reply struct {
	Granted bool
	Why     string // of a refusal, in a few words
	// Differs, with a refusal: a majority has gone another way than the node by the index of its check.
	Differs bool
	// Removed, with a refusal: an operator has removed this process from the cluster.
	Removed bool
	// Index is, with a grant, what the leader had applied; with a refusal of a node that is behind, what that node
	// has to apply before it asks again; else 0.
	Index uint64
	// Behind are the members of the ring that ask for authority and can't be given any.
	Behind []ring.NodeID
}

// AppendBinary appends the request's encoding to b.
func (r Request) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, requestVersion)
	b = append(b, r.Node[:]...)
	b = binary.BigEndian.AppendUint64(b, r.Boot)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Generation))
	b = binary.BigEndian.AppendUint64(b, r.Applied)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Settled))
	var set byte
	for flag, is := range map[byte]bool{flagLeaving: r.Leaving, flagGivingUp: r.GivingUp, flagStuck: r.Stuck} {
		if is {
			set |= flag
		}
	}
	b = binary.BigEndian.AppendUint32(b, uint32(min(r.Without.Milliseconds(), math.MaxUint32)))
	b = append(b, set)
	b = appendNodes(appendNodes(b, r.Unreachable), r.Relayed)
	b = binary.BigEndian.AppendUint32(b, uint32(r.Level))
	b = binary.BigEndian.AppendUint64(b, r.Check.Index)
	b = append(b, r.Check.Hash[:]...)
	for _, text := range []string{r.Release, r.Zones} {
		b = wire.AppendShortText(b, text[:min(len(text), maxRelease)])
	}
	return b, nil
}

// ParseRequest reads what AppendBinary wrote.
func ParseRequest(b []byte) (Request, error) {
	d := wire.NewDecoder(b)
	if d.Byte() != requestVersion {
		d.Failf("unknown version")
	}
	r := Request{
		Node: ring.DecodeNodeID(d), Boot: d.BigUint64(), Generation: int64(d.BigUint64()), Applied: d.BigUint64(),
		Settled: int64(d.BigUint64()), Without: time.Duration(d.BigUint32()) * time.Millisecond,
	}
	set := d.Byte()
	r.Leaving, r.GivingUp, r.Stuck = set&flagLeaving != 0, set&flagGivingUp != 0, set&flagStuck != 0
	if set&^flags != 0 {
		d.Failf("unknown flags")
	}
	r.Unreachable, r.Relayed = decodeNodes(d), decodeNodes(d)
	r.Level, r.Check.Index = agreement.Level(d.BigUint32()), d.BigUint64()
	d.Fill(r.Check.Hash[:])
	r.Release, r.Zones = d.ShortText(maxRelease), d.ShortText(maxRelease)
	if err := d.Done("request"); err != nil {
		return Request{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return r, nil
}

// appendNodes appends a list of at most maxReported nodes.
func appendNodes(b []byte, nodes []ring.NodeID) []byte {
	nodes = nodes[:min(len(nodes), maxReported)]
	b = binary.BigEndian.AppendUint16(b, uint16(len(nodes)))
	for _, id := range nodes {
		b = append(b, id[:]...)
	}
	return b
}

func decodeNodes(d *wire.Decoder) (nodes []ring.NodeID) {
	n := int(d.BigUint16())
	if n > maxReported || n*len(ring.NodeID{}) > d.Len() {
		d.Fail()
		return nil
	}
	for range n {
		nodes = append(nodes, ring.DecodeNodeID(d))
	}
	return nodes
}

// AppendBinary appends the reply's encoding to b.
func (r Reply) AppendBinary(b []byte) ([]byte, error) {
	why := r.Why[:min(len(r.Why), maxWhy)]
	what := byte(refused)
	switch {
	case r.Granted:
		what = granted
	case r.Differs:
		what = differs
	case r.Removed:
		what = removed
	}
	b = append(b, requestVersion, what)
	b = binary.BigEndian.AppendUint64(b, r.Index)
	return appendNodes(wire.AppendShortText(b, why), r.Behind), nil
}

// ParseReply reads what AppendBinary wrote.
func ParseReply(b []byte) (Reply, error) {
	d := wire.NewDecoder(b)
	version, what := d.Byte(), d.Byte()
	if version != requestVersion || what > removed {
		d.Failf("unknown version, or unknown answer")
	}
	r := Reply{
		Granted: what == granted, Differs: what == differs, Removed: what == removed,
		Index: d.BigUint64(), Why: d.ShortText(maxWhy), Behind: decodeNodes(d),
	}
	if err := d.Done("reply"); err != nil {
		return Reply{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return r, nil
}
