package partitions

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

const (
	// messageSize is the size in bytes at which a message is full and is sent.
	messageSize = 128 << 10
	// maxUnacked is the number of unacknowledged bytes above which a copy target
	// gets no further copies.
	maxUnacked = 4 << 20
	// maxBehind is the number of unacknowledged bytes above which a copy target
	// gets complete copies instead of changes.
	maxBehind = 32 << 20
	// pushTimeout bounds how long an acknowledgement may take.
	pushTimeout = 2 * time.Second
	// probeInterval is the time after which a copy target gets an empty message if
	// there was no other. So each owner notices a copy target that does not answer
	// even while nothing changes.
	probeInterval = time.Second
	// lagTime is how long a copy target may leave messages unanswered before it counts as lagging.
	lagTime = 5 * time.Second
)

// copyTargets are the nodes that get copies of partitions whose tokens are
// here. Keeper.mu guards them, except for the messages being assembled.
type copyTargets struct {
	nodes map[ring.NodeID]*copyTarget
	// mayLackCopies is false if every copy target of every partition whose token
	// is here has a copy, or is getting one. Each event that may leave a copy
	// target without a copy sets it: a new state, a token that arrives, or a copy
	// that is forgotten.
	mayLackCopies bool
}

// copyTarget is what this node knows of one node that gets copies.
type copyTarget struct {
	node     ring.NodeID
	progress [ring.Partitions]*progress // nil if no copy was begun
	unacked  int                        // bytes
	// lastMessage is the number of the last message; inFlight are the numbers of
	// unacknowledged messages, in order.
	lastMessage uint64
	inFlight    []uint64
	// lastSent is when the last message was sent. silentSince is when the target
	// last answered or, if no message was pending then, when the next one was sent.
	// It is zero while no message is unanswered.
	lastSent, silentSince time.Time

	// message is being assembled; Keeper.sendMu guards it.
	message  []byte
	sections []sentSection // the sections in it
}

// progress is the state of a copy target's copy of one partition.
type progress struct {
	complete bool // it has acknowledged the complete copy
	inFlight int  // unacknowledged messages about the partition
}

// sentSection is a section of a message to a copy target.
type sentSection struct {
	p        int
	copy     bool      // part of a complete copy
	ends     bool      // completes a complete copy
	progress *progress // the progress it counts toward; nil if the copy target needs a new copy
}

// targetOf returns node's copyTarget, which it creates if needed.
func (ts *copyTargets) targetOf(node ring.NodeID) *copyTarget {
	if ts.nodes[node] == nil {
		ts.nodes[node] = &copyTarget{node: node}
	}
	return ts.nodes[node]
}

// progressOf returns node's progress with p; nil if no copy was begun.
func (ts *copyTargets) progressOf(p int, node ring.NodeID) *progress {
	if t := ts.nodes[node]; t != nil {
		return t.progress[p]
	}
	return nil
}

// isSynced reports whether node has a complete copy of p; true if node is zero.
func (ts *copyTargets) isSynced(p int, node ring.NodeID) bool {
	pr := ts.progressOf(p, node)
	return node.IsZero() || pr != nil && pr.complete
}

// forgetCopies forgets the copy targets' copies of p, so they get new ones.
func (ts *copyTargets) forgetCopies(p int) {
	for _, t := range ts.nodes {
		ts.forgetCopy(t, p)
	}
}

// forgetCopy forgets t's copy of p, so it gets a new one.
func (ts *copyTargets) forgetCopy(t *copyTarget, p int) {
	t.progress[p] = nil
	ts.mayLackCopies = true
}

// update brings the copy targets of self in line with a new state. It forgets a
// node's progress with partitions that the node no longer follows: if it
// follows them again later, its copies will be out of date. It also forgets
// nodes that restarted or were ended, because they have lost their copies.
func (ts *copyTargets) update(state, before *adoptedState, self ring.NodeID) {
	ts.mayLackCopies = true

	var buf [3]ring.NodeID
	follow := map[ring.NodeID]bool{}
	for p := range ring.Partitions {
		from, to := state.Owner(p)
		if from != self && to != self {
			continue
		}
		for _, node := range state.copyTargetsOf(self, p, buf[:0]) {
			follow[node] = true
		}
	}

	maps.DeleteFunc(ts.nodes, func(node ring.NodeID, t *copyTarget) bool {
		for p := range t.progress {
			if t.progress[p] != nil && !slices.Contains(state.copyTargetsOf(self, p, buf[:0]), node) {
				t.progress[p] = nil
			}
		}
		return !follow[node] || state.Boot(node) != before.Boot(node) ||
			state.Generation(node) != before.Generation(node)
	})
}

// messageSent records that t's message is being sent, and returns its number.
func (t *copyTarget) messageSent() uint64 {
	for i := range t.sections {
		section := &t.sections[i]
		section.progress = t.progress[section.p]
		if section.progress != nil {
			section.progress.inFlight++
		}
	}

	t.unacked += len(t.message)
	t.lastSent = time.Now()
	if t.silentSince.IsZero() {
		t.silentSince = t.lastSent
	}

	t.lastMessage++
	t.inFlight = append(t.inFlight, t.lastMessage)
	return t.lastMessage
}

// messageAnswered records t's answer to a message. t gets a new copy of each
// partition that it declined.
func (ts *copyTargets) messageAnswered(
	t *copyTarget, number uint64, size int, sections []sentSection, refused map[int]bool, err error,
) {
	t.unacked -= size
	t.inFlight = slices.DeleteFunc(t.inFlight, func(n uint64) bool { return n == number })
	if isAnswer(err) {
		t.silentSince = time.Time{}
		if len(t.inFlight) > 0 {
			t.silentSince = time.Now()
		}
	}

	for _, section := range sections {
		if section.progress == nil {
			continue
		}

		section.progress.inFlight--

		switch {
		case t.progress[section.p] != section.progress:
			// The copy was begun anew meanwhile. An answer about an earlier copy says
			// nothing about this one.
		case err != nil || refused[section.p]:
			// Without an answer, the changes may be missing there, and later ones
			// would leave a gap.
			ts.forgetCopy(t, section.p)
		case section.ends:
			section.progress.complete = true
		}
	}
}

// copyTargetsOf lists the nodes that should have copies of p while its token is
// here: the standby and, during a move, the other side. If one side is lost,
// the other continues from its copy.
func (state *adoptedState) copyTargetsOf(self ring.NodeID, p int, buf []ring.NodeID) []ring.NodeID {
	from, to := state.Owner(p)
	switch {
	case from == to:
		// Before the ring is settled, the standby in from would take over.
		return appendOthers(self, buf, state.From.Standby(p), state.To.Standby(p))
	case from == self:
		return appendOthers(self, buf, to, state.From.Standby(p))
	}
	return appendOthers(self, buf, from, state.To.Standby(p))
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

// pushesChanges reports whether the copy targets of a partition in this phase
// need this node's changes.
func (ph phase) pushesChanges() bool { return ph == owning || ph == freezing }

// partitionSet is a set of partitions.
type partitionSet [ring.Partitions / 64]uint64

func (set *partitionSet) has(p int) bool { return set[p/64]>>(p%64)&1 != 0 }

func (set *partitionSet) put(p int, in bool) {
	set[p/64] &^= 1 << (p % 64)
	if in {
		set[p/64] |= 1 << (p % 64)
	}
}

// pushChanges sends the changes since the last call to all copy targets. The caller must hold sendMu.
func (k *Keeper) pushChanges() {
	if k.neverHadOthers() {
		return
	}
	k.collect(func(pushing *partitionSet) {
		_ = k.config.Table.Replicate(pushing.has, func(p int, records []counters.Record) error {
			k.pushTo(p, records)
			return nil
		})
	})
}

// pushPartitions sends the changes in the partitions of list, as pushChanges does.
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
				k.pushTo(p, records)
			}
		}
	})
}

// collect runs push with the partitions whose changes this node pushes at that
// moment, and sends the changes that push has collected.
func (k *Keeper) collect(push func(pushing *partitionSet)) {
	k.debitMu.Lock()

	// The flag is set and the partitions are read under one lock: a token that
	// arrives later sees the flag, and its partition gets complete copies.
	k.mu.Lock()
	k.collecting = true
	pushing := k.pushing
	for p := range k.debts.byPartition {
		if k.parts[p].phase == owning && k.reachesTarget(p) {
			k.settleOwnDebts(p)
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

// pushTo adds changes in p to the messages for the copy targets that have an
// earlier copy, or are getting one.
func (k *Keeper) pushTo(p int, records []counters.Record) {
	k.mu.Lock()
	k.parts[p].round++
	at := k.parts[p].version
	k.mu.Unlock()

	var buf [3]ring.NodeID
	for _, node := range k.adopted.Load().copyTargetsOf(k.config.Self, p, buf[:0]) {
		k.mu.Lock()
		t := k.targets.targetOf(node)
		pr := t.progress[p]
		if pr != nil && t.unacked > maxBehind {
			k.targets.forgetCopy(t, p)
			pr = nil
			k.unfinished = true // makes the next tick look for copies that are missing
		}
		k.mu.Unlock()

		if pr != nil {
			k.appendRecords(t, &section{p: p, version: at}, records)
		}
	}
}

// pushCopies sends copies to the copy targets that have none, as long as they
// keep up. It reports whether copies were missing. The caller must hold sendMu.
func (k *Keeper) pushCopies() (missed bool) {
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
// node already has one, or has too many unacknowledged bytes.
func (k *Keeper) copyTo(state *adoptedState, node ring.NodeID, p int) {
	k.mu.Lock()
	t := k.targets.targetOf(node)
	if k.adopted.Load() != state || t.progress[p] != nil || t.unacked > maxUnacked || !k.canSendTo(node) {
		k.mu.Unlock()
		return
	}

	// From here on, changes are sent, too; earlier ones are in the copy.
	t.progress[p] = &progress{}
	if k.parts[p].phase == owning {
		k.settleOwnDebts(p)
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
// next section.
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

// flush sends t's message.
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
		k.targets.messageAnswered(t, number, size, sections, refused, err)
		accepted := err == nil && len(refused) == 0
		if !accepted {
			k.backOff(t.node)
		}
		k.completeConfirms()
		k.mu.Unlock()

		// While nothing moves, an acknowledgement of changes concerns only confirmations.
		if !isRoutine || !accepted {
			k.wake()
		}
	})
	t.message = t.message[:0]
	t.sections = nil
}

// isAnswer reports whether err, the result of a call, shows that the copy
// target has answered. A target that refuses the message, for example because
// it has not applied the agreed state yet, has answered, too.
func isAnswer(err error) bool {
	remote, ok := errors.AsType[*peer.RemoteError](err)
	return err == nil || ok && (remote.Code == codeBehind || remote.Code == codeRefused)
}

// pingIdleTargets sends an empty message to each copy target that has got no
// message for probeInterval. The caller must hold sendMu.
func (k *Keeper) pingIdleTargets() {
	k.mu.Lock()
	var list []*copyTarget
	for _, t := range k.targets.nodes {
		if len(t.inFlight) == 0 && time.Since(t.lastSent) >= probeInterval && k.canSendTo(t.node) {
			list = append(list, t)
		}
	}
	k.mu.Unlock()

	for _, t := range list {
		t.message = k.nextHeader(t.message)
		k.flush(t)
	}
}

// Lagging lists this node's copy targets that can be reached but have not
// answered for lagTime. If more than half of the reachable copy targets lag,
// the fault is likely here, and the list is empty.
func (k *Keeper) Lagging() []ring.NodeID {
	k.mu.Lock()
	defer k.mu.Unlock()

	list, reached := k.findLagging()
	if 2*len(list) > reached {
		return nil
	}
	return list
}

// findLagging lists the copy targets that can be reached but have not answered
// for lagTime, and counts those that can be reached. The caller must hold mu.
func (k *Keeper) findLagging() (list []ring.NodeID, reached int) {
	for node, t := range k.targets.nodes {
		if !k.config.Calls.Reachable(node) {
			continue
		}

		reached++
		if !t.silentSince.IsZero() && time.Since(t.silentSince) >= lagTime {
			list = append(list, node)
		}
	}
	return list, reached
}
