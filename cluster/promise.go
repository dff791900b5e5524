package cluster

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

const (
	maxVoters = 5  // of a cluster; the other nodes only follow
	maxExpect = 64 // nodes that may found a cluster together
)

// promise is what a node has promised about the founding of a cluster. It is on disk before it is sent.
//
// A proposer founds a cluster once it holds its own promise and one from each other node of its set, all for the same
// attempt. A node has at most one promise at a time. So no node is ever in the sets of two foundings, and two foundings by
// nodes that know the same candidates can't both complete.
type promise struct {
	Proposer ring.NodeID   `json:"proposer"` // zero: no promise is given
	Attempt  uint64        `json:"attempt"`
	Set      []ring.NodeID `json:"set"` // sorted
	// Decided is set by the proposer when it holds all promises, before its Raft has its first entry, so that what a crash
	// in between leaves can be recognised.
	Decided bool `json:"decided"`
	// Used is the highest attempt that this node ever made as a proposer. Invariant: it never decreases, so "attempt n does
	// not stand" stays true once said.
	Used uint64 `json:"used"`
}

// same reports whether two promises are equal.
func (p promise) same(q promise) bool {
	return p.Proposer == q.Proposer && p.Attempt == q.Attempt && p.Decided == q.Decided && p.Used == q.Used &&
		slices.Equal(p.Set, q.Set)
}

// none returns p without a promise.
func (p promise) none() promise { return promise{Used: p.Used} }

// own reports whether p is an attempt of self.
func (p promise) own(self ring.NodeID) bool { return p.Proposer == self }

// attempt returns a new attempt of self for a set.
func (p promise) attempt(self ring.NodeID, set []ring.NodeID) promise {
	return promise{Proposer: self, Attempt: p.Used + 1, Set: set, Used: p.Used + 1}
}

// stands reports whether an attempt that self proposed may still found a cluster, or has.
func (p promise) stands(self ring.NodeID, attempt uint64) bool {
	return p.own(self) && p.Attempt == attempt
}

// outlook is what gossip shows a node whose Raft is empty.
type outlook struct {
	cluster bool          // there is a cluster, or one is being founded: found nothing
	set     []ring.NodeID // the nodes to found one, lowest ID first; nil while there are too few
}

// lookOut makes an outlook of the members, which include self.
func lookOut(self ring.NodeID, expect int, members []gossip.Member) outlook {
	var out outlook
	for _, m := range members {
		if m.ID != self && (m.Cluster != [16]byte{} || m.State == gossip.Alive && !m.Empty) {
			return outlook{cluster: true}
		}
		if m.State == gossip.Alive && m.Expect == expect && m.Empty && expect > 0 {
			out.set = append(out.set, m.ID)
		}
	}
	slices.SortFunc(out.set, ring.NodeID.Compare)
	if len(out.set) < expect {
		out.set = nil
	} else {
		out.set = out.set[:expect]
	}
	return out
}

// step is a node's next action in a founding.
type step uint8

const (
	stepWait   step = iota
	stepCheck       // ask the proposer that has this node's promise whether its attempt stands
	stepGiveUp      // take back an attempt of this node's own
	stepAsk         // ask the set for promises
)

// next returns the next step of a node with an empty Raft. For stepAsk and stepGiveUp, the returned promise must replace p
// on disk before anything else happens.
func (p promise) next(self ring.NodeID, out outlook) (promise, step) {
	switch {
	case p.own(self) && out.cluster:
		return p.none(), stepGiveUp
	case p.own(self) && out.set == nil:
		return p, stepWait // missing nodes of the set may come back
	case p.own(self) && out.set[0] != self:
		return p.none(), stepGiveUp
	case p.own(self) && slices.Equal(out.set, p.Set):
		return p, stepAsk
	case !p.own(self) && !p.Proposer.IsZero():
		return p, stepCheck
	case out.cluster || out.set == nil || out.set[0] != self:
		return p, stepWait
	}
	return p.attempt(self, out.set), stepAsk
}

// promiseRequest asks for a promise.
type promiseRequest struct {
	Proposer ring.NodeID   `json:"proposer"`
	Attempt  uint64        `json:"attempt"`
	Set      []ring.NodeID `json:"set"`
}

// promiseReply answers a promiseRequest.
type promiseReply struct {
	Given   bool        `json:"given"`
	Cluster bool        `json:"cluster"` // refused: there is a cluster
	To      ring.NodeID `json:"to"`      // refused: this proposer has the promise
}

// answer returns the reply to a request. The returned promise must be on disk before the reply is sent. taken means that
// the node's Raft isn't empty or that it knows of a cluster.
func (p promise) answer(self ring.NodeID, r promiseRequest, taken bool) (promise, promiseReply) {
	switch {
	case taken:
		return p, promiseReply{Cluster: true}
	case r.Proposer == self || !slices.Contains(r.Set, self) || !slices.Contains(r.Set, r.Proposer):
		return p, promiseReply{To: p.Proposer}
	case p.Proposer == r.Proposer && (r.Attempt < p.Attempt || r.Attempt == p.Attempt && !slices.Equal(r.Set, p.Set)):
		return p, promiseReply{To: p.Proposer} // an old message
	case p.own(self) && !p.Decided && r.Proposer.Compare(self) < 0:
		// Its own attempt ends here: the proposer with the lower ID goes first.
	case !p.Proposer.IsZero() && p.Proposer != r.Proposer:
		return p, promiseReply{To: p.Proposer}
	}
	return promise{Proposer: r.Proposer, Attempt: r.Attempt, Set: r.Set, Used: p.Used}, promiseReply{Given: true}
}

// Keys in Raft's stable store, besides Raft's own.
var (
	keyPromise = "rlnode.promise"
	keyCluster = "rlnode.cluster"
)

// raftTerm is the key of Raft's own term.
const raftTerm = "CurrentTerm"

// stableGet returns nil without an error if there is no such key.
func stableGet(s raft.StableStore, key string) ([]byte, error) {
	b, err := s.Get([]byte(key))
	if err != nil && err.Error() == "not found" { // Raft also recognises it by this text
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s from Raft's store: %w", key, err)
	}
	return b, nil
}

func loadPromise(s raft.StableStore) (promise, error) {
	b, err := stableGet(s, keyPromise)
	if err != nil || len(b) == 0 {
		return promise{}, err
	}
	var p promise
	if err := json.Unmarshal(b, &p); err != nil {
		return promise{}, fmt.Errorf("parse %s in Raft's store: %w", keyPromise, err)
	}
	return p, nil
}

func storePromise(s raft.StableStore, p promise) error {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode a promise: %w", err)
	}
	if err := s.Set([]byte(keyPromise), b); err != nil {
		return fmt.Errorf("store a promise: %w", err)
	}
	return nil
}
