package raftio

import (
	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/ring"
)

// ServerID returns a node's ID in Raft.
func ServerID(id ring.NodeID) raft.ServerID { return raft.ServerID(id.String()) }

// NodeID is the inverse of ServerID. It returns zero if id is not a node's ID.
func NodeID(id raft.ServerID) ring.NodeID {
	n, err := ring.ParseNodeID(string(id))
	if err != nil {
		return ring.NodeID{}
	}
	return n
}
