package counters

import (
	"github.com/rlnode/rlnode/algorithms"
)

// edit is a change to one counter at a given time. It applies state to a
// counter with a State, and log to a log.
type edit struct {
	state func(algorithms.State, algorithms.Instant) algorithms.State
	log   func(*algorithms.Log, algorithms.Instant)
}

// forceDebit debits cost, whether or not the limit allows it. With oldRate, l's
// rate may be out of date. A bucket then keeps all that it owed at its last
// change: if the rate was lowered since, too much would drain.
func forceDebit(l *algorithms.Limit, cost int64, oldRate bool) edit {
	return edit{
		func(s algorithms.State, now algorithms.Instant) algorithms.State {
			if oldRate && l.Kind.IsBucket() {
				s.At = max(s.At, now.Steady)
			}
			s = l.Advance(s, now)
			return l.Force(s, l.TakeRecord(s, now), now, cost)
		},
		func(g *algorithms.Log, now algorithms.Instant) {
			g.Force(l, algorithms.TakeRecord{Steady: now.Steady}, now, cost)
		},
	}
}

// forceLateDebit debits cost that belongs to a Take at from, unless all that
// was taken then is gone.
func forceLateDebit(l *algorithms.Limit, from algorithms.TakeRecord, cost int64) edit {
	return edit{
		func(s algorithms.State, now algorithms.Instant) algorithms.State {
			if from.Fastest != 0 || !l.Kind.IsBucket() {
				return l.ForceLate(s, from, now, cost)
			}

			// The rate may have changed since, so nothing drains here: see forceDebit.
			// If the cost is dropped, the time since the last change must remain to be
			// drained.
			undrained := s
			undrained.At = max(s.At, now.Steady)
			charged := l.ForceLate(undrained, from, now, cost)
			if charged == undrained {
				return s // the cost was dropped
			}

			return charged
		},
		func(g *algorithms.Log, now algorithms.Instant) { g.Force(l, from, now, cost) },
	}
}

// reward lowers usage by n units.
func reward(l *algorithms.Limit, n int64) edit {
	return edit{
		func(s algorithms.State, now algorithms.Instant) algorithms.State { return l.Reward(s, now, n) },
		func(g *algorithms.Log, now algorithms.Instant) { g.Reward(l, now, n) },
	}
}

// ForceCapped debits cost as of from, but never raises usage above the
// capacity; see [algorithms.Limit.ForceCapped]. A log takes all of the cost. If
// the subject was reset since, nothing is debited. ForceCapped does not check
// the gate, because a standby uses it to change its copy. If it fails with
// ErrFull, nothing changes.
func (t *Table) ForceCapped(
	now algorithms.Instant, k Key, l *algorithms.Limit, from algorithms.TakeRecord, cost int64,
) error {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()
	if t.isResetAfter(now, k, from) {
		return nil
	}
	return t.changeLocked(s, now, k, l, edit{
		func(s algorithms.State, now algorithms.Instant) algorithms.State {
			return l.ForceCapped(s, from, now, cost)
		},
		func(g *algorithms.Log, now algorithms.Instant) { g.Force(l, from, now, cost) },
	})
}

// reset makes a counter fresh. The counter stays in the table, marked as
// changed, until Changed has yielded it, and Replicate too if it is in use, so
// that no older copy comes back. It fails with ErrFull if the counter is not in
// the table and there is no room to record the reset. The caller must hold the
// shard.
func (t *Table) reset(s *shard, now algorithms.Instant, k Key, l *algorithms.Limit) error {
	if l.Kind == algorithms.Concurrency {
		t.releaseAllSlots(now, k)
		return nil
	}

	if l.Kind == algorithms.SlidingLog {
		if s.log(k) == nil && !t.makeRoom(s, k, now.Steady, 0, nil) {
			return ErrFull
		}
		t.changeLog(s, k, now, l, func(g *algorithms.Log, _ algorithms.Instant) { *g = algorithms.Log{} })
		return nil
	}

	loc := s.find(k)
	if !loc.found() {
		if !t.makeRoom(s, k, now.Steady, 0, nil) {
			return ErrFull
		}
		loc = s.insert(k)
	}

	s.store(loc, l, algorithms.State{}, 0, freshAt(now, l, 0))
	return nil
}

// change changes one counter, unless the gate of its partition is shut.
func (t *Table) change(now algorithms.Instant, k Key, l *algorithms.Limit, e edit) error {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()
	if t.gates.isShut(k.Partition()) {
		return ErrShut
	}
	return t.changeLocked(s, now, k, l, e)
}

// changeLocked is change without the gate check. The caller must hold the shard.
func (t *Table) changeLocked(s *shard, now algorithms.Instant, k Key, l *algorithms.Limit, e edit) error {
	if l.Kind == algorithms.Concurrency {
		return nil // slots are given back by their IDs
	}

	if l.Kind == algorithms.SlidingLog {
		if s.log(k) == nil {
			// The change is tried on a log outside the table first. If it leaves that
			// log fresh, no counter is needed.
			var fresh algorithms.Log
			e.log(&fresh, now)
			if fresh.Fresh() {
				return nil
			}
			if !t.makeRoom(s, k, now.Steady, 0, nil) {
				return ErrFull
			}
		}

		t.changeLog(s, k, now, l, e.log)
		return nil
	}

	loc := s.find(k)
	next := e.state(loc.state(), now)
	if !loc.found() {
		if next.Fresh() {
			return nil
		}
		if !t.makeRoom(s, k, now.Steady, 0, nil) {
			return ErrFull
		}
		loc = s.insert(k)
	}

	// next is brought up to date only to describe it. The stored state may have to
	// drain at another rate: see giveUndrained.
	d := l.Describe(l.Advance(next, now), now, 0, true)

	if l.Kind.IsBucket() {
		before := loc.state()
		if next.At != before.At { // next is as of now, so before is brought up to now as well
			before = l.Advance(before, now)
		}
		t.recordBucket(now, k, l, before, next)
	}

	s.store(loc, l, next, fullnessAfterChange(l, &d), freshAt(now, l, d.ResetAfter))
	return nil
}

// recordBucket records a change of k, a bucket, other than by a check.
func (t *Table) recordBucket(now algorithms.Instant, k Key, l *algorithms.Limit, before, after algorithms.State) {
	returned := l.Returned(before, after, now)
	if returned > 0 {
		t.recordReturn(now, k, l, returned)
	} else if t.notes.HasRates(k.Partition()) {
		t.recordTake(now, k, l)
	}
}

// ensureLog returns k's log, creating it if needed.
func (t *Table) ensureLog(s *shard, k Key) *logSlot {
	e := s.log(k)
	if e == nil {
		e = &logSlot{}
		s.subtableOf(k).putLog(k, e)
		s.room--
		s.inline += int(k.class())
		t.logs[k.class()].Add(1)
	}
	return e
}

// putLog inserts a log under k, which must not have one.
func (sub *subtable) putLog(k Key, e *logSlot) {
	if sub.logs == nil {
		sub.logs = make(map[Key]*logSlot)
	}
	sub.logs[k] = e
}

// fullnessAfterChange returns a counter's fullness after a change other than a
// check. If nothing is left, the counter counts as refusing.
func fullnessAfterChange(l *algorithms.Limit, d *algorithms.Decision) uint8 {
	if d.Remaining == 0 {
		return refusedFullness
	}
	return fullnessAfterCheck(l, d)
}

// changeLog changes k's log, creating it if needed, and updates the entry
// counts. While the total of log entries is at its bound, a log that grows
// beyond its fair share becomes coarser; it then forgets late, never early.
// Logs that don't grow may keep more than their share, so the total stays under
// twice the bound. Inline logs share half of the bound.
func (t *Table) changeLog(
	s *shard, k Key, now algorithms.Instant, l *algorithms.Limit, change func(*algorithms.Log, algorithms.Instant),
) {
	e := t.ensureLog(s, k)
	before := e.log.Len()
	change(&e.log, now)
	t.updateEntryCount(k.class(), e, before, l)
	d := e.log.Describe(l, now, 0, true)
	e.freshAt = max(e.freshAt, freshAt(now, l, d.ResetAfter)) // see store
	e.kindFullness = packKindFullness(algorithms.SlidingLog, fullnessAfterChange(l, &d))
	s.markLogDirty(k, e, allReaders)
}

// updateEntryCount updates the count of entries after a change to a log of
// class c, which had before entries. If necessary, it makes the log coarser;
// see changeLog.
func (t *Table) updateEntryCount(c class, e *logSlot, before int, l *algorithms.Limit) {
	if e.log.Len() > before {
		bound := t.maxLogEntries / 2
		if c == configured {
			bound = t.maxLogEntries - min(t.logEntries[inline].Load(), bound)
		}
		if t.logEntries[c].Load() >= bound {
			fair := max(bound/max(1, t.logs[c].Load()), minLogShare)
			if int64(e.log.Len()) > fair {
				// The log shrinks to half of its share. Otherwise it would soon exceed its
				// share again.
				e.log.Coarsen(l, fair/2)
			}
		}
	}
	t.logEntries[c].Add(int64(e.log.Len() - before))
}

func (t *Table) dropLog(s *shard, k Key) {
	sub := s.subtableOf(k)
	e := sub.logs[k]
	t.logEntries[k.class()].Add(int64(-e.log.Len()))
	s.markLogClean(e, allReaders)
	delete(sub.logs, k)
	s.room++
	s.inline -= int(k.class())
	t.logs[k.class()].Add(-1)
	if len(sub.logs) == 0 {
		sub.logs = nil // release the memory: a map never shrinks
	}
}

// InlineOps returns an op for each inline counter of subject that is in use, at
// most bound of them. The op's limit has the counter's kind, but placeholders
// for amount and window, which the counter does not store. InlineOps locks the
// shard for one subtable at a time.
func (t *Table) InlineOps(subject uint64, bound int) (ops []Op) {
	add := func(k Key, kind algorithms.Kind) {
		if len(ops) < bound {
			ops = append(ops,
				Op{Key: k, Limit: &algorithms.Limit{Kind: kind, Amount: 1, Burst: 1, Window: algorithms.MinWindow}})
		}
	}
	t.shardOf(Key{Subject: subject}).forEach(func(sub *subtable) {
		for loc := range sub.used() {
			k := loc.key()
			if k.Subject == subject && k.IsInline() && !loc.state().Fresh() {
				add(k, loc.group().kindFullnesses[loc.slot()].kind())
			}
		}

		for k, e := range sub.logs {
			if k.Subject == subject && k.IsInline() && !e.log.Fresh() {
				add(k, algorithms.SlidingLog)
			}
		}
	})
	return append(ops, t.inlineSlotOps(subject, bound-len(ops))...)
}

// Usage returns how much of a limit is used, rounded up, and the decision for a
// check of cost 0. Usage exceeds the capacity when the counter is in debt.
func (t *Table) Usage(now algorithms.Instant, k Key, l *algorithms.Limit) (int64, algorithms.Decision) {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()
	d := t.usageLocked(s, now, k, l)
	return d.Used, d
}

// ReadUsage sets op's Decision to that for a check of cost 0.
func (t *Table) ReadUsage(now algorithms.Instant, op *Op) {
	s, now := t.lock(now, op.Key)
	defer s.mu.Unlock()
	op.Decision = t.usageLocked(s, now, op.Key, op.Limit)
	if op.Lends {
		s.leaveOutLoans(now, op, s.find(op.Key).state())
	}
}

// usageLocked is Usage for a caller that holds the shard.
func (t *Table) usageLocked(s *shard, now algorithms.Instant, k Key, l *algorithms.Limit) algorithms.Decision {
	if l.Kind == algorithms.SlidingLog {
		var log algorithms.Log
		if e := s.log(k); e != nil {
			log = *e.log.Clone()
		}
		return log.Peek(l, now, 0)
	}
	if l.Kind == algorithms.Concurrency {
		return l.Peek(t.slotState(now, k, l, 0), now, 0)
	}
	return l.Peek(s.find(k).state(), now, 0)
}
