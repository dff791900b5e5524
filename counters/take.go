package counters

import "github.com/rlnode/rlnode/algorithms"

// Verdict is the outcome of a check.
type Verdict uint8

const (
	Refused  Verdict = iota // a limit other than a Shadow limit refused; nothing was taken
	Admitted                // everything was taken, or would have been for a peek
	// Undecided: this node may not decide, for example because the gate of one of
	// the partitions is shut. The Decisions of the ops are meaningless.
	Undecided
)

// String returns "refused", "admitted" or, for Undecided, "shut".
func (v Verdict) String() string { return [...]string{"refused", "admitted", "shut"}[v] }

// Take debits all of ops, or none if any op that is not Shadow refuses. It sets
// each op's Decision and returns the verdict. In a refused check, the limits
// that would have allowed their cost report what remains without it. A refusal
// begins the blocks of its subject. If a gate is shut, Take decides nothing. No
// two ops may have the same Key.
func (t *Table) Take(now algorithms.Instant, ops []Op) Verdict {
	if len(ops) == 1 {
		s := t.shardOf(ops[0].Key)
		s.mu.Lock()
		now = s.advance(now)
		v := Admitted
		if !t.tryTakeOne(s, now, &ops[0]) {
			v = t.take(now, ops, nil, true)
		}
		s.mu.Unlock()
		return v
	}

	// All limits of a rule and subject lie in one shard, so most checks end
	// here and need no list of shards.
	if s := t.soleShard(ops); s != nil {
		s.mu.Lock()
		v := t.take(s.advance(now), ops, nil, true)
		s.mu.Unlock()
		return v
	}

	return t.lockAndTake(now, ops, nil, true)
}

// TakeUngated is Take without the gate check, for a standby or for a node that
// decides alone.
func (t *Table) TakeUngated(now algorithms.Instant, ops []Op) Verdict {
	return t.lockAndTake(now, ops, nil, false)
}

// TakeWithSlots is Take for a check that may acquire slots.
func (t *Table) TakeWithSlots(now algorithms.Instant, ops []Op, attempt *SlotAttempt) Verdict {
	return t.lockAndTake(now, ops, attempt, true)
}

// lockAndTake is take for a caller that holds no shard.
func (t *Table) lockAndTake(now algorithms.Instant, ops []Op, attempt *SlotAttempt, gated bool) Verdict {
	var buf [16]int
	held, now := t.lockShards(now, ops, buf[:0])
	v := t.take(now, ops, attempt, gated)
	t.unlockShards(held)
	return v
}

// tryTakeOne does what take does for the usual check: a single op that an
// existing counter admits. Otherwise it returns false, and the op is still to
// be decided. The caller must hold s, the shard of op.
//
// Most checks end here, so this path is short: a plain token bucket in the
// first group of its search needs hardly any calls. The processor looks only a
// few hundred instructions ahead. If the path is short enough, the caller's
// next counter is fetched while this one still comes from memory.
func (t *Table) tryTakeOne(s *shard, now algorithms.Instant, op *Op) bool {
	l := op.Limit
	d := &op.Decision

	// Blocks have a cost of 0, so this leaves them out. Limits of slots get past
	// this condition, but the search below finds no counter for them.
	if op.Mode != CheckMode || op.Cost == 0 || op.Lends || l.Kind == algorithms.SlidingLog ||
		t.gates.isShut(op.Key.Partition()) {
		return false
	}

	sub := s.subtableOf(op.Key)
	if len(sub.groups) == 0 {
		return false
	}

	i := s.firstGroup(sub, op.Key)
	slot := sub.groups[i].slotOf(op.Key)
	if slot < 0 {
		at := sub.indexOf(op.Key)
		if at < 0 {
			return false
		}
		i, slot = at/groupSize, at%groupSize
	}

	g := &sub.groups[i]

	// A partition's clock differs from now only in Wall, by which windows are
	// counted. A plain bucket drains by Steady, so it does without.
	op.At = now
	if !l.IsPlain() || !g.tryTakePlain(slot, now, op) {
		if s.followedClocks != nil {
			op.At = s.timeIn(op.Key.Partition(), now)
		}

		state, allowed := l.Take(g.entries[slot].state, op.At, op.Cost)
		if !allowed {
			return false
		}

		op.state, op.NoRoom = state, false
		l.DescribeInto(d, state, op.At, op.Cost, true)
		g.set(slot, l.Kind, state, fullnessAfterCheck(l, d), expiryAfter(op.At, l, d.ResetAfter))
	}

	if !g.isDirty(slot, allReaders) {
		s.markDirty(sub.locationAt(i*groupSize+slot), allReaders)
	}

	op.returnedOrLeft = 0
	if l.Kind.IsBucket() && t.notes.HasRates(op.Key.Partition()) {
		op.returnedOrLeft = t.raiseDrainRate(now, op.Key, l)
	}

	return true
}

// tryTakePlain takes op's cost from its plain token bucket. It returns false and
// changes nothing if the bucket refuses, or if the quick arithmetic does not
// suffice.
func (g *group) tryTakePlain(slot int, now algorithms.Instant, op *Op) bool {
	l := op.Limit
	d := &op.Decision
	state, ok := l.DrainQuickly(g.entries[slot].state, now.Steady)
	if !ok {
		state = l.Advance(g.entries[slot].state, now)
		if state.At != now.Steady { // the state is ahead of the clock
			return false
		}
	}

	state.Count += op.Cost
	used := state.Owed()
	reset, ok := l.ResetQuickly(state)
	if !ok || used > l.Burst {
		return false
	}

	op.state, op.NoRoom = state, false
	d.Allowed = true
	d.Remaining = l.Burst - used
	d.Used = used
	d.RetryAfter = 0
	d.ResetAfter = reset
	d.Delay = 0
	d.MoreAfter = l.MoreQuickly(state)
	fullness := min(algorithms.Fullness(d.Remaining, l.Burst), refusedFullness-1) // as fullnessAfterCheck
	g.set(slot, algorithms.TokenBucket, state, fullness, steadyExpiryAfter(now.Steady, reset))

	return true
}

// take decides ops and, if they are admitted, debits them. If gated, it decides
// nothing while a gate is shut. attempt is who acquires slots by ops; nil if
// nobody does. The caller must hold the shards of ops.
func (t *Table) take(now algorithms.Instant, ops []Op, attempt *SlotAttempt, gated bool) Verdict {
	// Take reads the gates under the locks. Shut waits for these locks, so it
	// returns only once this check is decided.
	if gated && t.gates.anyShut(ops) {
		return Undecided
	}

	blocks := false
	for i := range ops {
		op := &ops[i]
		s := t.shardOf(op.Key)
		t.decideOp(s, now, op)
		if op.acquiresSlot() {
			t.adjustForHolder(op, attempt)
			continue
		}

		// Room is made before anything is stored, so the whole check can still be
		// refused if there is none. The room that earlier ops are about to fill is
		// reserved.
		if op.addsCounter() && !t.makeRoom(s, op.Key, now.Steady, t.countAdded(s, ops[:i]), ops) {
			s.refuseForRoom(op, now.Steady)
		}
		// A count that is refused is stored by commit.
		if !op.Decision.Allowed && op.location.found() && (op.Mode != CountMode || op.Block) {
			s.protectRefused(op)
		}

		blocks = blocks || op.Block
	}

	// A refusal begins blocks. They begin before concludeOps, which changes the
	// decisions of ops that did not refuse.
	if blocks {
		t.beginBlocks(ops, true)
	}

	if !t.concludeOps(ops) {
		return Refused
	}

	for i := range ops {
		if ops[i].acquiresSlot() {
			t.commitSlot(&ops[i], attempt)
		} else {
			t.commit(&ops[i])
		}
	}

	return Admitted
}

// Peek decides as Take would, but takes nothing. Remaining is what would be
// left if the cost were taken.
func (t *Table) Peek(now algorithms.Instant, ops []Op) Verdict {
	return t.peek(now, ops, true)
}

// PeekUngated is Peek without the gate check, for a node that decides alone.
func (t *Table) PeekUngated(now algorithms.Instant, ops []Op) Verdict {
	return t.peek(now, ops, false)
}

// peek decides ops without taking anything. If gated, it decides nothing while a gate is shut.
func (t *Table) peek(now algorithms.Instant, ops []Op, gated bool) Verdict {
	var buf [16]int
	held, now := t.lockShards(now, ops, buf[:0])
	defer t.unlockShards(held)

	if gated && t.gates.anyShut(ops) {
		return Undecided
	}
	for i := range ops {
		t.decideOp(t.shardOf(ops[i].Key), now, &ops[i])
	}

	// This stores nothing: the decisions show the blocks that a refusal would
	// begin.
	t.beginBlocks(ops, false)

	if !t.concludeOps(ops) {
		return Refused
	}
	return Admitted
}
