package partitions

import (
	"slices"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// adoptedState is the agreed state as the keeper last adopted it.
type adoptedState struct {
	*agreement.State
	registered bool // this process may have tokens: its boot is the registered one
}

// hasOtherMembers reports whether a ring has members other than self.
func (state *adoptedState) hasOtherMembers(self ring.NodeID) bool {
	isOther := func(id ring.NodeID) bool { return id != self }
	return slices.ContainsFunc(state.From.Members(), isOther) || slices.ContainsFunc(state.To.Members(), isOther)
}

// isCurrent reports whether this process and the sender's are the registered
// ones, and the sender has applied its last end.
func (state *adoptedState) isCurrent(from peer.Identity, generation int64) bool {
	return state.registered && state.Boot(from.Node) == from.Boot && state.Generation(from.Node) == generation
}

// copyTargetsOf lists the nodes that should have copies of p while its token is
// here: the standby and, during a move, the other side. If one side is lost,
// the other continues from its copy.
func (state *adoptedState) copyTargetsOf(self ring.NodeID, p int, buf []ring.NodeID) []ring.NodeID {
	from, to := state.Owners(p)
	switch {
	case from == to:
		// Before the ring is settled, the standby in from would take over.
		return appendOthers(self, buf, state.From.Standby(p), state.To.Standby(p))
	case from == self:
		return appendOthers(self, buf, to, state.From.Standby(p))
	}
	return appendOthers(self, buf, from, state.To.Standby(p))
}

// copyHolders lists the nodes that may have a copy of p: both sides of a move,
// and their standbys. If one side was ended, its former standbys are now in its
// place.
func (state *adoptedState) copyHolders(self ring.NodeID, p int, buf []ring.NodeID) []ring.NodeID {
	from, to := state.Owners(p)
	return appendOthers(self, buf, state.From.Standby(p), to, state.To.Standby(p), from)
}

// appendOthers appends to buf the nodes that are neither zero nor self, each once.
func appendOthers(self ring.NodeID, buf []ring.NodeID, nodes ...ring.NodeID) []ring.NodeID {
	for _, id := range nodes {
		if !id.IsZero() && id != self && !slices.Contains(buf, id) {
			buf = append(buf, id)
		}
	}
	return buf
}

// mayHaveLost reports whether a process that had counters of p may be gone. In
// a new cluster, there is no such process.
func (state *adoptedState) mayHaveLost(self ring.NodeID, p int) bool {
	if len(state.Generations) > 0 {
		return true
	}
	var buf [8]ring.NodeID
	for _, node := range append(state.copyHolders(self, p, buf[:0]), self) {
		if len(state.Processes[node].Former) > 0 {
			return true
		}
	}
	return false
}
