package partitions

import (
	"context"

	"github.com/rlnode/rlnode/ring"
)

// Location is where a partition's token is, as seen from this node.
type Location uint8

// Places of a token.
const (
	Nowhere   Location = iota // no ring is known
	Here                      // here, with the gate open
	Pending                   // here or in doubt, but it may not decide now: see [Keeper.WaitWhilePending]
	Elsewhere                 // at Route.Owner
)

// Route is the way to a partition: the node to ask, and the alternatives.
type Route struct {
	Epoch     int64
	Revision  int64 // of the agreed state behind the route; a node with an older one may route differently
	Location  Location
	Owner     ring.NodeID // the node that has the token, as far as this node knows
	OtherSide ring.NodeID // the other side of the current move; zero if there is none
	Standby   ring.NodeID // of the owner; zero if there is none
}

// Route returns the route of partition p. It takes no lock.
func (k *Keeper) Route(p int) Route {
	ph := phase(k.phases[p].Load())
	state := k.adopted.Load()
	r := Route{Epoch: state.Epoch, Revision: int64(state.Revision)}
	from, to := state.Owners(p)
	if from.IsZero() {
		return r
	}

	r.Owner = from
	// The gate and the phase change one after the other. If only one of them says
	// that this node decides, the location is Pending. Once setPhase has changed both,
	// it wakes WaitWhilePending.
	switch {
	case ph == owning && k.config.Table.IsOpen(p):
		r.Location, r.Owner = Here, k.config.Self
	case ph == handedOver:
		r.Location, r.Owner = Elsewhere, to
	case ph != away:
		r.Location, r.Owner = Pending, k.config.Self
	default:
		r.Location = Elsewhere
		if from == k.config.Self {
			r.Location = Pending // this node has not taken it over yet
		} else if from != to && k.movedRevision[p].Load() == state.Revision {
			r.Owner = to
		}
	}

	r.Standby = state.From.Standby(p)
	if from != to {
		r.OtherSide = from
		if r.Owner == from {
			r.OtherSide = to
		}
		if r.Owner == to {
			r.Standby = state.To.Standby(p)
		}
	}

	return r
}

// LearnOwner records the reply of another node that owner has the token of p.
// Replies for another revision are ignored.
func (k *Keeper) LearnOwner(p int, revision int64, owner ring.NodeID) {
	state := k.adopted.Load()
	from, to := state.Owners(p)
	switch {
	case revision != int64(state.Revision) || from == to:
	case owner == to:
		k.movedRevision[p].Store(state.Revision)
	case owner == from:
		k.movedRevision[p].Store(0)
	}
}

// WaitWhilePending returns once p is not pending, or ctx ends.
func (k *Keeper) WaitWhilePending(ctx context.Context, p int) {
	k.waitUntil(ctx, func() bool { return k.Route(p).Location != Pending })
}

// waitUntil returns once isDone returns true, or ctx ends. It calls isDone
// again after each change of a phase or the adopted state. After StopDeciding,
// phases change no more, and waitUntil goes on waiting until ctx ends. Its
// callers would only try again until then.
func (k *Keeper) waitUntil(ctx context.Context, isDone func() bool) {
	for {
		// The channel is read before isDone is called: a change that comes in between
		// closes this very channel.
		k.mu.Lock()
		changed := k.changed
		k.mu.Unlock()

		if isDone() {
			return
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// SettledEpoch returns the last epoch that this node has settled: every token
// that the ring moves to or from this node has moved, and the standby of each
// of its partitions has a complete copy.
func (k *Keeper) SettledEpoch() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()

	state := k.adopted.Load()
	if !state.Settled && k.isUnsettled(state) {
		return state.Epoch - 1
	}
	return state.Epoch
}

// isUnsettled reports whether this node has not settled the epoch: some
// partition still has to move or to be copied.
func (k *Keeper) isUnsettled(state *adoptedState) bool {
	for p := range ring.Partitions {
		from, to := state.Owners(p)
		ph := k.parts[p].phase
		if to == k.config.Self && (ph != owning || !k.targets.hasCopy(p, state.To.Standby(p))) {
			return true
		}
		if to != k.config.Self && from == k.config.Self && ph != handedOver {
			return true
		}
	}
	return !state.registered
}

// AdoptedRevision returns the revision of the adopted state: the Raft index of
// its last change of owners.
func (k *Keeper) AdoptedRevision() uint64 { return k.adopted.Load().Revision }

// IsRecovering reports whether this node still searches for the newest counters
// of some of its partitions. The search ends by itself: see Config.Patience.
func (k *Keeper) IsRecovering() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.inPhase[recovering] > 0
}

// LacksCopies reports whether this node, as the standby of some partition, has
// no complete copy of it although the owner can be reached. Until it has one,
// the loss of the owner costs more than the changes since the last push.
func (k *Keeper) LacksCopies() bool {
	k.mu.Lock()
	defer k.mu.Unlock()

	state := k.adopted.Load()
	if !state.registered || state.From == nil {
		return false
	}

	for p := range k.parts {
		pt := &k.parts[p]
		if pt.copyComplete || pt.phase != away || state.From.Standby(p) != k.config.Self {
			continue
		}

		owner, _ := state.Owners(p)
		if k.config.Calls.Reachable(owner) {
			return true
		}
	}

	return false
}
