package usage

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// The messages between nodes. Each has a reply.
const (
	MethodInventory peer.Method = 128 + iota // lists what a node holds for a month
	MethodRows                               // reads a page of a ledger's rows
	MethodHandOver                           // hands over a page of a closed ledger
	MethodCopy                               // streams changes of open ledgers, and states what the sender has
	MethodNotes                              // exchanges notes
)

// CodeFailed is the code of a failed call. Callers treat it like any other failure.
const CodeFailed peer.Code = 128

// Bounds on calls between nodes.
const (
	callTimeout = 5 * time.Second // timeout of a call to another node
	// maxServing bounds the calls that this node answers at once. It refuses any more.
	maxServing = 8
)

// Member is a node of the cluster.
type Member struct {
	ID    ring.NodeID
	Name  string
	Zone  string
	Alive bool // gossip says so
	// InRing means that the node may own partitions. A bill names a node that goes
	// without leaving a copy as missing only if it was in the ring: others may
	// never have answered a check.
	InRing bool
}

// Peers carries messages to other nodes. *peer.Peers implements it.
type Peers interface {
	Call(ctx context.Context, to ring.NodeID, m peer.Method, body []byte) ([]byte, error)
	// ProcessGone reports whether no process listens at the node's address any
	// more, as far as this node knows.
	ProcessGone(node ring.NodeID) bool
}

// ask makes a call to another node.
func (t *Totals) ask(ctx context.Context, to Member, m peer.Method, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.peers.Call(ctx, to.ID, m, body)
}

// candidates returns the other members in the order in which this node prefers
// them as holders: those in other zones first, and then by a hash, so that not
// all nodes choose the same one.
func (t *Totals) candidates() []Member {
	self := t.meter.config.Self
	zone := ""
	list := slices.Clone(t.members())
	if i := slices.IndexFunc(list, func(node Member) bool { return node.ID == self }); i >= 0 {
		zone = list[i].Zone
		list = slices.Delete(list, i, i+1)
	}

	rank := func(node Member) uint64 { return xxh3.Hash(append(self[:], node.ID[:]...)) }
	slices.SortFunc(list, func(a, b Member) int {
		switch {
		case a.Zone == zone && b.Zone != zone:
			return 1
		case b.Zone == zone && a.Zone != zone:
			return -1
		}
		return cmp.Compare(rank(a), rank(b))
	})
	return list
}

// everyone returns this node and all other members.
func (t *Totals) everyone() []Member {
	all := []Member{{ID: t.meter.config.Self, Name: t.meter.config.Name}}
	for _, member := range t.members() {
		if member.ID != t.meter.config.Self {
			all = append(all, member)
		}
	}
	return all
}

// isMember reports whether a node is one of the members.
func isMember(members []Member, id ring.NodeID) bool {
	return slices.ContainsFunc(members, func(member Member) bool { return member.ID == id })
}
