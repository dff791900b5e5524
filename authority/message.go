package authority

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rlnode/rlnode/agreement"
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
	requestEnd     = 4 + 8 + 32 // bytes of level and check
	requestFixed   = 1 + 16 + 8 + 8 + 8 + 8 + 4 + 1
	replyFixed     = 1 + 1 + 8 + 1

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
		text = text[:min(len(text), maxRelease)]
		b = append(append(b, byte(len(text))), text...)
	}
	return b, nil
}

// ParseRequest reads what AppendBinary wrote.
func ParseRequest(b []byte) (Request, error) {
	var r Request
	if len(b) < requestFixed || b[0] != requestVersion || b[53]&^flags != 0 {
		return r, fmt.Errorf("read request: %w", ErrMessage)
	}
	copy(r.Node[:], b[1:])
	r.Boot = binary.BigEndian.Uint64(b[17:])
	r.Generation = int64(binary.BigEndian.Uint64(b[25:]))
	r.Applied = binary.BigEndian.Uint64(b[33:])
	r.Settled = int64(binary.BigEndian.Uint64(b[41:]))
	r.Without = time.Duration(binary.BigEndian.Uint32(b[49:])) * time.Millisecond
	r.Leaving = b[53]&flagLeaving != 0
	r.GivingUp = b[53]&flagGivingUp != 0
	r.Stuck = b[53]&flagStuck != 0
	var whole, wholeToo bool
	r.Unreachable, b, whole = parseNodes(b[requestFixed:])
	r.Relayed, b, wholeToo = parseNodes(b)
	if !whole || !wholeToo || !r.parseBuild(b) {
		return Request{}, fmt.Errorf("read request: %w", ErrMessage)
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

// parseNodes reads what appendNodes wrote, and returns what is behind it.
func parseNodes(b []byte) (nodes []ring.NodeID, rest []byte, whole bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(b))
	if b = b[2:]; n > maxReported || len(b) < n*len(ring.NodeID{}) {
		return nil, nil, false
	}
	for ; n > 0; n-- {
		nodes = append(nodes, ring.NodeID(b[:len(ring.NodeID{})]))
		b = b[len(ring.NodeID{}):]
	}
	return nodes, b, true
}

// parseBuild reads the end of a request.
func (r *Request) parseBuild(b []byte) bool {
	if len(b) < requestEnd {
		return false
	}
	r.Level, r.Check.Index = agreement.Level(binary.BigEndian.Uint32(b)), binary.BigEndian.Uint64(b[4:])
	copy(r.Check.Hash[:], b[12:])
	b = b[requestEnd:]
	for _, to := range []*string{&r.Release, &r.Zones} {
		if len(b) == 0 || b[0] > maxRelease || int(b[0]) >= len(b) {
			return false
		}
		*to, b = string(b[1:1+b[0]]), b[1+b[0]:]
	}
	return len(b) == 0
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
	b = append(append(b, byte(len(why))), why...)
	return appendNodes(b, r.Behind), nil
}

// ParseReply reads what AppendBinary wrote.
func ParseReply(b []byte) (Reply, error) {
	if len(b) < replyFixed || b[0] != requestVersion || b[1] > removed || len(b) < replyFixed+int(b[10]) {
		return Reply{}, fmt.Errorf("read reply: %w", ErrMessage)
	}
	why := replyFixed + int(b[10])
	behind, rest, whole := parseNodes(b[why:])
	if !whole || len(rest) > 0 {
		return Reply{}, fmt.Errorf("read reply: %w", ErrMessage)
	}
	return Reply{
		Granted: b[1] == granted, Differs: b[1] == differs, Removed: b[1] == removed,
		Index: binary.BigEndian.Uint64(b[2:]), Why: string(b[replyFixed:why]), Behind: behind,
	}, nil
}
