package cluster

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

// promise is a node's promise to take part in founding a cluster. The node
// stores it on disk before sending it.
//
// A proposer founds a cluster once it holds its own promise and one from each
// other node of its set, all for the same attempt. A node gives at most one
// promise at a time. So no node is ever in the sets of two foundings, and two
// foundings by nodes that know the same candidates can't both complete.
type promise struct {
	Proposer ring.NodeID   `json:"proposer"` // zero: no promise
	Attempt  uint64        `json:"attempt"`
	Set      []ring.NodeID `json:"set"` // sorted
	// Decided is set when the proposer holds all promises, before it writes Raft's
	// first entry. After a crash between the two, it shows that the founding can be
	// completed.
	Decided bool `json:"decided"`
	// LastAttempt is the highest attempt that this node ever made as a proposer.
	// Invariant: it never decreases. So each number is used once, and an attempt
	// that was withdrawn does not become valid again.
	LastAttempt uint64 `json:"used"`
}

func (p promise) equal(q promise) bool {
	return p.Proposer == q.Proposer && p.Attempt == q.Attempt && p.Decided == q.Decided && p.LastAttempt == q.LastAttempt &&
		slices.Equal(p.Set, q.Set)
}

// withdrawn returns p with the promise withdrawn.
func (p promise) withdrawn() promise { return promise{LastAttempt: p.LastAttempt} }

// isBy reports whether p is self's own attempt.
func (p promise) isBy(self ring.NodeID) bool { return p.Proposer == self }

// isStillValid reports whether an attempt by self may still found a cluster, or has founded one.
func (p promise) isStillValid(self ring.NodeID, attempt uint64) bool {
	return p.isBy(self) && p.Attempt == attempt
}

// foundingView is a summary of gossip's members for a node whose Raft is empty.
type foundingView struct {
	clusterExists bool          // a cluster exists or is being founded: found none
	set           []ring.NodeID // the nodes to found a cluster, lowest ID first; nil while there are too few
}

// newFoundingView derives a founding view from the members, which include self.
func newFoundingView(self ring.NodeID, expect int, members []gossip.Member) foundingView {
	var view foundingView
	for _, m := range members {
		if m.ID != self && (m.Cluster != [16]byte{} || m.State == gossip.Alive && !m.RaftEmpty) {
			return foundingView{clusterExists: true}
		}
		if m.State == gossip.Alive && m.BootstrapExpect == expect && m.RaftEmpty && expect > 0 {
			view.set = append(view.set, m.ID)
		}
	}

	slices.SortFunc(view.set, ring.NodeID.Compare)
	if len(view.set) < expect {
		view.set = nil
	} else {
		view.set = view.set[:expect]
	}
	return view
}

// foundingStep is an action in a founding.
type foundingStep uint8

const (
	stepWait   foundingStep = iota
	stepCheck               // ask the proposer that holds this node's promise whether its attempt is still valid
	stepGiveUp              // withdraw this node's own attempt
	stepAsk                 // ask the set for promises
)

// nextStep returns the next step of a node whose Raft is empty. For stepAsk and
// stepGiveUp, the caller must store the returned promise before it does
// anything else.
func (p promise) nextStep(self ring.NodeID, view foundingView) (promise, foundingStep) {
	switch {
	case p.isBy(self) && view.clusterExists:
		return p.withdrawn(), stepGiveUp
	case p.isBy(self) && view.set == nil:
		return p, stepWait // missing nodes of the set may come back
	case p.isBy(self) && view.set[0] != self:
		// A lower ID has appeared. It goes first, so that two proposers never hold out
		// against each other.
		return p.withdrawn(), stepGiveUp
	case p.isBy(self) && slices.Equal(view.set, p.Set):
		return p, stepAsk
	case !p.isBy(self) && !p.Proposer.IsZero():
		return p, stepCheck
	case view.clusterExists || view.set == nil || view.set[0] != self:
		return p, stepWait
	}

	return promise{Proposer: self, Attempt: p.LastAttempt + 1, Set: view.set, LastAttempt: p.LastAttempt + 1}, stepAsk
}

type promiseRequest struct {
	Proposer ring.NodeID   `json:"proposer"`
	Attempt  uint64        `json:"attempt"`
	Set      []ring.NodeID `json:"set"`
}

type promiseReply struct {
	Given   bool        `json:"given"`
	Cluster bool        `json:"cluster"` // refused: there is a cluster
	To      ring.NodeID `json:"to"`      // refused: this proposer holds the promise
}

// answer returns the reply to a request. The caller must store the returned
// promise before it sends the reply. inCluster means that the node's Raft has
// data or that the node knows of a cluster.
func (p promise) answer(self ring.NodeID, r promiseRequest, inCluster bool) (promise, promiseReply) {
	switch {
	case inCluster:
		return p, promiseReply{Cluster: true}
	case r.Proposer == self || !slices.Contains(r.Set, self) || !slices.Contains(r.Set, r.Proposer):
		return p, promiseReply{To: p.Proposer}
	case p.Proposer == r.Proposer && (r.Attempt < p.Attempt || r.Attempt == p.Attempt && !slices.Equal(r.Set, p.Set)):
		return p, promiseReply{To: p.Proposer} // the request is outdated
	case p.isBy(self) && !p.Decided && r.Proposer.Compare(self) < 0:
		// This node gives up its own attempt: the proposer with the lower ID goes first.
	case !p.Proposer.IsZero() && p.Proposer != r.Proposer:
		return p, promiseReply{To: p.Proposer}
	}

	return promise{Proposer: r.Proposer, Attempt: r.Attempt, Set: r.Set, LastAttempt: p.LastAttempt}, promiseReply{Given: true}
}

// Keys in Raft's stable store, besides Raft's own.
var (
	keyPromise = "rlnode.promise"
	keyCluster = "rlnode.cluster"
)

// raftTerm is the key under which Raft stores its term.
const raftTerm = "CurrentTerm"

// stableGet returns the value of a key, or nil without an error if the key is missing.
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
