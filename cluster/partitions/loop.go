package partitions

import (
	"time"
)

// restTicks is the number of ticks between two passes over all partitions while
// nothing moves or is missing.
const restTicks = 10

// run is the keeper's loop. It pushes changes at each tick, and earlier if a
// confirmation waits for them. It continues copies, hand-offs and searches
// after each acknowledgement or new state that may concern them. While some are
// unfinished, it also does so at each tick, and otherwise at every restTicks-th
// tick.
func (k *Keeper) run() {
	tick := time.NewTicker(k.config.Interval)
	defer tick.Stop()

	for ticks := 1; ; ticks++ {
		select {
		case <-k.ctx.Done():
			return
		case <-tick.C:
			k.tick(ticks%restTicks == 0)
		case <-k.confirmWake:
			k.sendMu.Lock()
			k.advanceConfirmations()
			k.sendMu.Unlock()
		case <-k.loopWake:
			k.sendMu.Lock()
			k.advanceConfirmations()
			k.advanceMoves()
			k.sendMu.Unlock()
		}
	}
}

// tick does what is due at each tick. It goes on with hand-offs and searches if
// some are unfinished, or if fullPass is set.
func (k *Keeper) tick(fullPass bool) {
	k.sendMu.Lock()
	defer k.sendMu.Unlock()

	// Changes come first: a copy target that gets some needs no ping.
	k.pushChanges()
	k.pingIdleTargets()
	k.reportDebts()
	k.dropUnneeded()
	k.advanceConfirmations()

	if k.unfinished || fullPass {
		k.advanceMoves()
	}
}

// advanceMoves goes on with copies, hand-offs and searches. The caller must
// hold sendMu.
func (k *Keeper) advanceMoves() {
	missing := k.pushCopies()
	k.handOver()
	doubt := k.askDoubtful()
	recovers := k.continueSearches()
	k.unfinished = missing || doubt || recovers || !k.adopted.Load().Settled
}
