package partitions

import (
	"maps"
	"slices"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

const (
	// maxUnackedForCopy is the number of unacknowledged bytes above which a copy
	// target gets no further copies.
	maxUnackedForCopy = 4 << 20
	// maxUnackedForChanges is the number of unacknowledged bytes above which a copy
	// target gets no changes in a partition: its copy is forgotten. It gets a new
	// one once its unacknowledged bytes are at most maxUnackedForCopy.
	maxUnackedForChanges = 32 << 20
	// pushTimeout bounds how long an acknowledgement may take.
	pushTimeout = 2 * time.Second
	// pingInterval is the time after which a copy target gets an empty message if
	// there was no other. So each owner notices a copy target that does not answer
	// even while nothing changes.
	pingInterval = time.Second
)

// pushChanges sends the changes since the last call to all copy targets. The caller must hold sendMu.
func (k *Keeper) pushChanges() {
	if k.neverHadOthers() {
		return
	}
	k.collect(func(pushing *partitionSet) {
		_ = k.config.Table.Replicate(pushing.has, func(p int, records []counters.Record) error {
			k.queueChanges(p, records)
			return nil
		})
	})
}

// lastPushTimeout bounds how long pushLast waits.
const lastPushTimeout = 500 * time.Millisecond

// pushLast sends the last changes of a node that has stopped deciding, and waits
// until they are acknowledged. Partitions that it could not hand over are
// continued from these copies.
func (k *Keeper) pushLast() {
	k.sendMu.Lock()
	k.pushChanges()
	k.sendMu.Unlock()

	for end := time.Now().Add(lastPushTimeout); k.hasUnacked() && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond) // nothing signals an acknowledgement, and it comes soon
	}
}

// hasUnacked reports whether a copy target has not answered a message.
func (k *Keeper) hasUnacked() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.targets.nodes {
		if len(t.inFlight) > 0 {
			return true
		}
	}
	return false
}

// neverHadOthers reports whether no other node has been in a ring so far. Until
// then, no node needs changes.
func (k *Keeper) neverHadOthers() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.hadOthers
}

// pushPartitions sends the changes in the partitions of list, as pushChanges does.
// The caller must hold sendMu.
func (k *Keeper) pushPartitions(list *partitionSet) {
	if k.neverHadOthers() {
		return
	}

	var records []counters.Record
	k.collect(func(pushing *partitionSet) {
		for p := range ring.Partitions {
			if !list.has(p) || !pushing.has(p) {
				continue
			}

			records = k.config.Table.ReplicatePartition(p, records)
			if len(records) > 0 {
				k.queueChanges(p, records)
			}
		}
	})
}

// collect runs push with the partitions whose changes this node pushes at that
// moment, and sends the changes that push has collected. The caller must hold
// sendMu.
func (k *Keeper) collect(push func(pushing *partitionSet)) {
	k.debitMu.Lock()

	// Set the flag and read the partitions under one lock. So if the Keeper takes
	// over a token later, it sees the flag, and sends complete copies of the
	// partition.
	k.mu.Lock()
	k.collecting = true
	pushing := k.pushing

	// Before counters leave this node, they are marked with its debts.
	for p := range k.debts.byPartition {
		if k.parts[p].phase == owning && k.reachesTarget(p) {
			k.includeOwnDebts(p)
		}
	}
	k.mu.Unlock()

	push(&pushing)

	k.mu.Lock()
	k.collecting = false
	k.mu.Unlock()
	k.debitMu.Unlock()

	k.flushAll()
}

// reachesTarget reports whether this node can send changes in p to a copy target.
// The caller must hold mu.
func (k *Keeper) reachesTarget(p int) bool {
	var buf [3]ring.NodeID
	return slices.ContainsFunc(k.adopted.Load().copyTargetsOf(k.config.Self, p, buf[:0]), k.canSendTo)
}

// queueChanges adds changes in p to the messages for the copy targets that have
// an earlier copy, or are getting one. The caller must hold sendMu.
func (k *Keeper) queueChanges(p int, records []counters.Record) {
	k.mu.Lock()
	k.parts[p].round++
	at := k.parts[p].version
	k.mu.Unlock()

	var buf [3]ring.NodeID
	for _, node := range k.adopted.Load().copyTargetsOf(k.config.Self, p, buf[:0]) {
		k.mu.Lock()
		t := k.targets.targetOf(node)
		progress := t.progress[p]
		if progress != nil && t.unacked > maxUnackedForChanges {
			k.targets.forgetCopy(t, p)
			progress = nil
			k.unfinished = true // makes the next tick look for copies that are missing
		}
		k.mu.Unlock()

		if progress != nil {
			k.appendRecords(t, &section{p: p, version: at}, records)
		}
	}
}

// pushCopies sends copies to the copy targets that have none, as long as they
// keep up. It reports whether copies were missing. The caller must hold sendMu.
func (k *Keeper) pushCopies() (wereMissing bool) {
	type target struct {
		node ring.NodeID
		p    int
	}
	var missing []target
	var buf [3]ring.NodeID

	k.mu.Lock()
	state := k.adopted.Load()
	if !state.registered || state.From == nil || !k.hadOthers {
		k.mu.Unlock()
		return false
	}

	for p := 0; k.targets.mayLackCopies && p < ring.Partitions; p++ {
		if !k.pushing.has(p) {
			continue
		}
		for _, node := range state.copyTargetsOf(k.config.Self, p, buf[:0]) {
			if k.targets.progressOf(p, node) == nil {
				missing = append(missing, target{node, p})
			}
		}
	}

	k.targets.mayLackCopies = len(missing) > 0
	k.mu.Unlock()

	for _, m := range missing {
		k.copyTo(state, m.node, m.p)
	}

	k.flushAll()
	return len(missing) > 0
}

// copyTo sends a complete copy of p to node, a copy target in state, unless
// node already has one, or has too many unacknowledged bytes. The caller must
// hold sendMu.
func (k *Keeper) copyTo(state *adoptedState, node ring.NodeID, p int) {
	k.mu.Lock()
	t := k.targets.targetOf(node)
	if k.adopted.Load() != state || t.progress[p] != nil || t.unacked > maxUnackedForCopy || !k.canSendTo(node) {
		k.mu.Unlock()
		return
	}

	// From here on, changes are sent, too; earlier ones are in the copy.
	t.progress[p] = &copyProgress{}
	if k.parts[p].phase == owning {
		k.includeOwnDebts(p)
	}
	s := section{p: p, version: k.parts[p].version, flags: sectionCopy | sectionBegins}
	k.mu.Unlock()

	k.debitMu.Lock()
	_ = k.config.Table.Copy(p, func(records []counters.Record) error {
		k.appendRecords(t, &s, records)
		return nil
	})
	k.debitMu.Unlock()

	// Only now is it known that there are no more batches, so an empty section
	// ends the copy.
	s.flags |= sectionEnds
	k.appendRecords(t, &s, nil)
}

// appendRecords appends records of s.p to t's message, in as many sections as
// needed, and sends the message whenever it is full. Afterwards s describes the
// next section. The caller must hold sendMu.
func (k *Keeper) appendRecords(t *copyTarget, s *section, records []counters.Record) {
	now := k.config.Now()
	s.wall = k.config.Table.WallIn(now, s.p)

	for more := true; more; more = len(records) > 0 {
		if len(t.message) == 0 {
			t.message = k.nextHeader(t.message)
		}

		t.message, records = s.append(t.message, records, now)
		t.sections = append(t.sections, sentSection{
			p: s.p, copy: s.flags&sectionCopy != 0, ends: s.flags&sectionEnds != 0 && len(records) == 0,
		})

		if len(t.message) >= messageSize {
			k.flush(t)
		}
	}
}

// flushAll sends all messages that are not empty. The caller must hold sendMu.
func (k *Keeper) flushAll() {
	k.mu.Lock()
	targets := slices.Collect(maps.Values(k.targets.nodes))
	k.mu.Unlock()

	for _, t := range targets {
		if len(t.message) > 0 {
			k.flush(t)
		}
	}
}

// flush sends t's message. The caller must hold sendMu.
func (k *Keeper) flush(t *copyTarget) {
	size := len(t.message)
	sections := t.sections
	isRoutine := k.adopted.Load().Settled &&
		!slices.ContainsFunc(sections, func(section sentSection) bool { return section.copy })

	// The message is recorded before the call: the answer may come before Go returns.
	k.mu.Lock()
	number := t.messageSent()
	k.stats.PushedBytes += int64(size)
	k.mu.Unlock()

	k.config.Calls.Go(t.node, MethodPush, t.message, pushTimeout, func(reply []byte, err error) {
		var refused map[int]bool
		if err == nil {
			refused, err = parsePartitions(reply)
		}

		k.mu.Lock()
		k.targets.handleMessageReply(t, number, size, sections, refused, err)
		accepted := err == nil && len(refused) == 0
		if !accepted {
			k.backOff(t.node)
		}
		k.finishConfirmations()
		k.mu.Unlock()

		// While nothing moves, an acknowledgement of changes concerns only confirmations.
		if !isRoutine || !accepted {
			k.wake()
		}
	})
	t.message = t.message[:0]
	t.sections = nil
}

// pingIdleTargets sends an empty message to each copy target that has got no
// message for pingInterval. The caller must hold sendMu.
func (k *Keeper) pingIdleTargets() {
	k.mu.Lock()
	var list []*copyTarget
	for _, t := range k.targets.nodes {
		if len(t.inFlight) == 0 && time.Since(t.lastSent) >= pingInterval && k.canSendTo(t.node) {
			list = append(list, t)
		}
	}
	k.mu.Unlock()

	for _, t := range list {
		t.message = k.nextHeader(t.message)
		k.flush(t)
	}
}
