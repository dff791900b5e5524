package partitions

import (
	"time"

	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

// setPhase changes a partition's phase and its gate. The caller must hold mu.
func (k *Keeper) setPhase(p int, next phase) {
	pt := &k.parts[p]
	if pt.phase == next {
		return
	}

	// The gate shuts before the phase changes, and opens after it. So while the
	// phase is not owning, nothing here decides as the owner.
	if pt.phase == owning {
		k.config.Table.Shut(p)
	}
	if next != recovering {
		pt.search = nil
	}
	if !next.acceptsPushes() {
		pt.notResent = nil
	}

	k.enterPhase(p, next)
	if next == owning {
		// Before the gate opens: checks must not be admitted beside debts that the
		// counters lack.
		k.includeOwnDebts(p)
	}
	if next == owning && !k.isStopped() {
		k.config.Table.Open(p, pt.lineage)
	}

	k.announce()
}

// enterPhase records a partition's phase in the partition, and in all that is
// derived from the phase. A push that is arriving then has a gap: see
// isReceiving. The caller must hold mu.
func (k *Keeper) enterPhase(p int, next phase) {
	pt := &k.parts[p]
	k.inPhase[pt.phase]--
	k.inPhase[next]++
	pt.phase = next
	pt.sectionNumber = 0
	k.phases[p].Store(uint32(next))
	k.pushing.put(p, next.pushesChanges())
	k.targets.mayLackCopies = k.targets.mayLackCopies || next.pushesChanges()
}

// markAway marks a partition whose token is no longer here. Without a source,
// the counters are this node's own: they are no copy, so they no longer count
// as complete. The caller must hold mu.
func (k *Keeper) markAway(p int) {
	pt := &k.parts[p]
	if pt.source.IsZero() {
		pt.copyComplete = false
	}
	k.setPhase(p, away)
}

// ownOrSearch continues a partition whose token is certainly here. Unless the
// copy here is known to be the newest, it first searches for newer ones. The
// caller must hold mu.
func (k *Keeper) ownOrSearch(state *adoptedState, p int, newest bool) {
	var buf [3]ring.NodeID
	// Nobody can have newer counters if there is no other holder, and no node was ever ended.
	if newest || len(state.copyHolders(k.config.Self, p, buf[:0])) == 0 && len(state.Generations) == 0 {
		k.beginLineage(p)
		return
	}

	k.parts[p].search = &search{since: time.Now(), found: map[ring.NodeID]copyInfo{}}
	k.setPhase(p, recovering)
}

// beginLineage makes this node the owner of p, in a new lineage: this node may
// lack Takes and Gives of the old one. The caller must hold mu.
func (k *Keeper) beginLineage(p int) {
	pt := &k.parts[p]
	pt.version = version{lineage: newLineage(k.adopted.Load().Revision)}
	pt.source = ring.NodeID{}
	pt.copyComplete = false
	pt.search = nil

	// The copies elsewhere are of the old lineage, and their nodes decline
	// changes of the new one.
	k.targets.forgetCopies(p)
	k.setPhase(p, owning)

	k.stats.LineagesBegun++
}

// includeOwnDebts makes sure that the counters of p, whose token is here,
// include this node's own debts, and that no node that continues from these
// counters debits the debts again. With authority, this node owes the debts to
// itself, and drops them. Without authority, this node may have been ended by
// an entry that it has not applied. So it marks the counters with the debts
// that they include, and still reports the debts later. The caller must hold
// mu.
func (k *Keeper) includeOwnDebts(p int) {
	if k.config.Authority() {
		k.debts.dropOwn(p, k.config.Now())
	} else {
		k.debts.debitIntoCopy(p, k.config.Now())
	}
}

// announce wakes the loop and everyone waiting for a change. The caller must
// hold mu.
func (k *Keeper) announce() {
	close(k.changed)
	k.changed = make(chan struct{})
	k.wake()
}

// wake makes the loop check for work.
func (k *Keeper) wake() { wake.Signal(k.loopWake) }

// isStopped reports whether StopDeciding was called.
func (k *Keeper) isStopped() bool { return k.ctx.Err() != nil }
