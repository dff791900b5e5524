package counters

import "github.com/rlnode/rlnode/algorithms"

// edit is a change to one counter as of a given time. A counter with a State is
// changed by state, a log by log.
type edit struct {
	state func(algorithms.State, algorithms.Instant) algorithms.State
	log   func(*algorithms.Log, algorithms.Instant)
}

// debitEdit debits cost, whether or not the limit allows it. oldRate says that
// l's rate may be out of date. The rate at which a bucket drained since its
// last change is then unknown, so debitEdit drains nothing for that time.
func debitEdit(l *algorithms.Limit, cost int64, oldRate bool) edit {
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
			// The change is first tried on a log outside the table. If that log stays
			// fresh, as after a Give, the table needs no counter.
			var fresh algorithms.Log
			e.log(&fresh, now)
			if fresh.Fresh() {
				return nil
			}
			if !t.makeRoom(s, k, now.Steady, 0, nil) {
				return ErrNoRoom
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
			return ErrNoRoom
		}
		loc = s.insert(k)
	}

	// next is brought up to now only for its description. What is stored is next
	// itself, which may have to drain later at another rate: see giveUndrained.
	d := l.Describe(l.Advance(next, now), now, 0, true)

	if l.Kind.IsBucket() {
		before := loc.state()
		if next.At != before.At { // next is as of now, so before must be, too
			before = l.Advance(before, now)
		}
		t.updateBucketNote(now, k, l, before, next)
	}

	s.store(loc, l, next, fullnessAfterChange(l, &d), expiryAfter(now, l, d.ResetAfter))
	return nil
}

// updateBucketNote updates the note on k's rates (see rates.go) after a change of
// k, a bucket, that no check made.
func (t *Table) updateBucketNote(now algorithms.Instant, k Key, l *algorithms.Limit, before, after algorithms.State) {
	returned := l.Returned(before, after, now)
	if returned > 0 {
		t.recordReturn(now, k, l, returned)
	} else if t.notes.HasRates(k.Partition()) {
		t.raiseDrainRate(now, k, l)
	}
}
