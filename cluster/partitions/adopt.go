package partitions

import (
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

// Adopt replaces the agreed state that this node follows. Calls must be in the
// order of the states; states may be skipped.
func (k *Keeper) Adopt(s *agreement.State) {
	k.mu.Lock()
	defer k.mu.Unlock()

	before := k.adopted.Load()
	state := &adoptedState{State: s, registered: s.Boot(k.config.Self) == k.config.Boot}
	if s.Generation(k.config.Self) != before.Generation(k.config.Self) || !state.registered {
		k.forgetAll()
	}

	k.adopted.Store(state)
	// Only a registered process has an index. Under the index of another process,
	// the numbers of debts could repeat.
	k.debts.bootIndex = 0
	if state.registered {
		k.debts.bootIndex = state.Processes[k.config.Self].Index
	}
	k.hadOthers = k.hadOthers || state.hasOtherMembers(k.config.Self)
	k.targets.update(state, before, k.config.Self)

	for p := range ring.Partitions {
		k.updatePart(state, p)
	}

	k.dropPending = true
	k.announce()
}

// forgetAll gives up every token and copy: this process was ended or replaced, and
// other nodes continue from their copies, or it is not registered yet, and has
// none. The caller must hold mu.
func (k *Keeper) forgetAll() {
	for p := range k.parts {
		if k.parts[p].phase == owning {
			k.config.Table.Shut(p)
		}

		hadCounters := k.parts[p].hasCounters()
		// declined stays: an earlier flip may still arrive, and must be declined.
		k.enterPhase(p, away)
		k.parts[p] = partState{declined: k.parts[p].declined}

		// Without a token or a copy, the counters here come from a checkpoint. This
		// process needs them once it is registered.
		if hadCounters {
			k.config.Table.Drop(p)
			k.debts.markDropped(p)
		}
	}

	clear(k.targets.nodes)
	clear(k.backoffUntil)
}

// updatePart brings a partition in line with a new state. The caller must hold
// mu.
func (k *Keeper) updatePart(state *adoptedState, p int) {
	if !state.registered {
		return
	}

	self := k.config.Self
	pt := &k.parts[p]
	from, to := state.Owners(p)

	switch pt.phase {
	case owning, freezing, recovering, doubtful:
		if from != self && (to != self || pt.phase != owning) {
			// The move has settled, or another node was promoted while this one was in
			// doubt: the token is not here.
			k.markAway(p)
			return
		}

		if pt.phase == freezing && to != pt.receiver {
			k.setPhase(p, owning) // the other side has changed, and no flip was sent yet
		}

		// The move was taken back, so the token is here. But the other side may
		// have had it, and then its counters are newer.
		if pt.phase == doubtful && to == self {
			k.ownOrSearch(state, p, false)
		}

	case flipping, handedOver:
		switch {
		case from != self:
			k.markAway(p)
		case to != pt.receiver || pt.receiverReplaced(state):
			// The other node can no longer decide. If it took the token, it may have pushed
			// changes to its standby that never arrived here. If it did not take it, the
			// counters here are still all that there were at the freeze.
			pt.copyComplete = pt.copyComplete || pt.phase == flipping
			k.ownOrSearch(state, p, false)
		}

	case away:
		if from == self {
			k.beginOwnership(state, p)
		}
	}
}

// beginOwnership handles a partition that from assigns to this node while it is
// unknown whether the token is here. If an earlier owner may have handed the
// token over, this node asks the other side. If this node has no copy, it
// fetches one. The caller must hold mu.
func (k *Keeper) beginOwnership(state *adoptedState, p int) {
	pt := &k.parts[p]
	from, to := state.Owners(p)
	if from != to {
		// A late answer to an earlier flip or question must not count as the
		// answer to the next question.
		pt.flipNumber++
		pt.receiver = ring.NodeID{}
		k.setPhase(p, doubtful)
		return
	}

	// Without a move, nobody but this node can have become the owner; its complete
	// copy is the newest.
	k.ownOrSearch(state, p, pt.copyComplete)
}
