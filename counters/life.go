package counters

import (
	"errors"

	"github.com/rlnode/rlnode/algorithms"
)

// ErrGone means that the cost can't come back, and that nothing was changed.
// There are three possible reasons. The counter is gone, because its partition
// has a new lineage or its subject was reset. Or nobody knows how much of the
// cost a bucket still owes. Or there is no room to remember that the cost came
// back.
var ErrGone = errors.New("the counter that the cost was taken from is gone")

// Life identifies the counters that a cost was taken from, so that the cost
// comes back to no others.
type Life struct {
	Lineage uint64 // of the partition's counters; 0 if nothing may come back
	Resets  uint64 // how many resets the partition had had when the cost was taken
}

// Life returns the life of the counters of p. Read it before a Take. Otherwise,
// a cost that was taken before a reset could come back after it.
func (t *Table) Life(p int) Life {
	return Life{Lineage: t.lineages[p].Load(), Resets: t.notes.Resets(p)}
}

// isAlive reports whether k's counters are still those of life. The caller must hold the shard.
func (t *Table) isAlive(now algorithms.Instant, k Key, life Life) bool {
	p := k.Partition()
	if life.Lineage == 0 || t.lineages[p].Load() != life.Lineage {
		return false
	}

	// The number counts the resets of all subjects of the partition. If it has
	// grown, the notes tell whether k was reset. The caller holds the shard, so k
	// is not being reset meanwhile.
	if t.notes.Resets(p) == life.Resets {
		return true
	}

	lp := t.notes.Lock(p, now.Steady)
	defer lp.Unlock()
	return !lp.MayBeResetSince(k.Subject, k.Counter, life.Resets)
}

// GiveBack puts back cost, which was taken at from, in the given life: the cost
// of a grant, of a check that another limit refused, or of a reservation. Loans
// do not pass here: see CreditLoan and Unlend. GiveBack puts back only what is
// certainly still taken: see [algorithms.Limit.Give]. The caller must give each
// cost back at most once. If GiveBack fails with ErrShut or ErrGone, nothing
// changes.
func (t *Table) GiveBack(
	now algorithms.Instant, k Key, l *algorithms.Limit, taken algorithms.TakeRecord, cost int64, life Life,
) error {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()
	if t.gates.isShut(k.Partition()) {
		return ErrShut
	}
	return t.giveBackLocked(s, now, k, l, taken, cost, life)
}

// giveBackLocked is GiveBack for a caller that holds the shard and has looked at the gate.
func (t *Table) giveBackLocked(
	s *shard, now algorithms.Instant, k Key, l *algorithms.Limit, taken algorithms.TakeRecord, cost int64, life Life,
) error {
	if !t.isAlive(now, k, life) {
		return ErrGone
	}
	give := edit{
		func(state algorithms.State, now algorithms.Instant) algorithms.State {
			return l.Give(state, taken, now, cost)
		},
		func(g *algorithms.Log, now algorithms.Instant) { g.Give(l, taken, now, cost) },
	}

	if l.Kind.IsBucket() {
		if taken.Late && t.hasForgottenRates(now, k, taken.Steady) {
			return ErrGone
		}
		past := t.bucketPast(now, k)

		// The caller does not know at which rates the bucket has drained since the
		// Take. For a reservation, the note knows: it was made before the cost was
		// taken, so it has every rate since. Other costs may be older than the note.
		if taken.MaxRate == 0 && taken.Reserved {
			taken.MaxRate = int64(past.MaxRate())

			// A CellBucket keeps its rate in its state, so it can be drained now.
			if l.Kind != algorithms.CellBucket {
				give.state = giveUndrained(l, &taken, cost)
			}
		}
		if taken.MaxRate == 0 {
			return ErrGone
		}
		taken.MaxRate = max(taken.MaxRate, int64(past.MaxRate()), l.Amount)
		taken.Returned = int64(past.Returned())

		// The note must record what comes back here. Without that, too much of the next
		// cost would come back.
		if past.UntilSecond == 0 && !t.hasRoomForRate(now, k) {
			return ErrGone
		}
	}
	return t.changeLocked(s, now, k, l, give)
}

// giveUndrained is a Give for a bucket whose rate may no longer be l's. It
// takes units off what the bucket owes, but does not drain it. The next check
// drains it, at the rate then in force, for the whole time since the last
// change. The order does not matter to the result.
func giveUndrained(
	l *algorithms.Limit, from *algorithms.TakeRecord, cost int64,
) func(algorithms.State, algorithms.Instant) algorithms.State {
	return func(state algorithms.State, now algorithms.Instant) algorithms.State {
		changedAt := state.At
		state.At = max(state.At, now.Steady)
		state = l.Give(state, *from, now, cost)
		state.At = changedAt
		return state
	}
}

// debitLateLocked debits cost that belongs to a Take at from, in the given
// life. It drops the cost if that life is over, or all that was taken then is
// gone: see lateDebitEdit. The caller must hold the shard.
func (t *Table) debitLateLocked(
	s *shard, now algorithms.Instant, k Key, l *algorithms.Limit, taken algorithms.TakeRecord, cost int64, life Life,
) error {
	if !t.isAlive(now, k, life) {
		return nil
	}
	return t.changeLocked(s, now, k, l, lateDebitEdit(l, taken, cost))
}

// lateDebitEdit debits cost that belongs to a Take at from, unless all that
// was taken then is gone.
func lateDebitEdit(l *algorithms.Limit, taken algorithms.TakeRecord, cost int64) edit {
	return edit{
		func(s algorithms.State, now algorithms.Instant) algorithms.State {
			if taken.MaxRate != 0 || !l.Kind.IsBucket() {
				return l.ForceLate(s, taken, now, cost)
			}

			// The rate may have changed since, so nothing drains here: see debitEdit. If
			// the cost is dropped, s is returned as it was, so that the time since its last
			// change still drains later.
			undrained := s
			undrained.At = max(s.At, now.Steady)
			charged := l.ForceLate(undrained, taken, now, cost)
			if charged == undrained {
				return s // the cost was dropped
			}

			return charged
		},
		func(g *algorithms.Log, now algorithms.Instant) { g.Force(l, taken, now, cost) },
	}
}

// ForceCapped debits cost as of from, but does not raise usage above the
// capacity, with the exceptions of [algorithms.Limit.ForceCapped]. A log takes
// all of the cost. If the subject was reset after from, nothing is debited.
// ForceCapped ignores the gate, because a standby uses it to change its copy.
// If it fails with ErrNoRoom, nothing changes.
func (t *Table) ForceCapped(
	now algorithms.Instant, k Key, l *algorithms.Limit, taken algorithms.TakeRecord, cost int64,
) error {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()
	if t.isResetAfter(now, k, taken) {
		return nil
	}
	return t.changeLocked(s, now, k, l, edit{
		func(s algorithms.State, now algorithms.Instant) algorithms.State {
			return l.ForceCapped(s, taken, now, cost)
		},
		func(g *algorithms.Log, now algorithms.Instant) { g.Force(l, taken, now, cost) },
	})
}

// isResetAfter reports whether k is known to have been reset after from.
func (t *Table) isResetAfter(now algorithms.Instant, k Key, taken algorithms.TakeRecord) bool {
	if t.notes.Resets(k.Partition()) == 0 {
		return false
	}
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	return lp.IsKnownResetAfter(k.Subject, k.Counter, taken.Steady)
}
