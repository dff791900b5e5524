package partitions

import "github.com/rlnode/rlnode/ring"

// dropUnneeded drops the counters of partitions that this node neither owns nor
// has copies of as a standby.
func (k *Keeper) dropUnneeded() {
	k.mu.Lock()
	state := k.adopted.Load()
	due := k.dropPending && state.registered && state.From != nil && state.Settled
	k.dropPending = k.dropPending && !due
	k.mu.Unlock()

	// This ends early if the adopted state changes: a new one sets dropPending again.
	for p := 0; due && p < ring.Partitions; p++ {
		due = k.dropIfUnneeded(state, p)
	}
}

// dropIfUnneeded drops the counters of p if they don't concern this node. If
// state is no longer the adopted one, a copy of p may be arriving, so
// dropIfUnneeded does nothing and returns false.
func (k *Keeper) dropIfUnneeded(state *adoptedState, p int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()

	pt := &k.parts[p]
	owner, _ := state.Owners(p)
	switch {
	case k.adopted.Load() != state:
		return false
	case pt.phase == away && owner != k.config.Self && state.From.Standby(p) != k.config.Self:
		pt.source = ring.NodeID{}
		pt.copyComplete = false
		pt.notResent = nil
		k.config.Table.Drop(p)
		k.debts.markDropped(p)
	}

	return true
}
