package counters

import (
	"errors"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// ErrGone means that the cost can't come back, and that nothing was changed.
// There are three reasons: the counter is gone, because its partition has a new
// lineage or its subject was reset; nobody knows how much of the cost a bucket
// still owes; or there is no room to remember that the cost came back.
var ErrGone = errors.New("the counter that the cost was taken from is gone")

// Life identifies the counters that a cost was taken from, so that the cost
// comes back to no others.
type Life struct {
	Lineage uint64 // of the partition's counters; 0 if nothing may come back
	Resets  uint64 // how many resets the partition had had by then
}

// Life returns the life of the counters of p. Read it before a Take, so that
// the cost is never attributed to a later life.
func (t *Table) Life(p int) Life {
	return Life{Lineage: t.lineages[p].Load(), Resets: t.notes.Resets(p)}
}

// isAlive reports whether k's counters are still those of life. The caller must hold the shard.
func (t *Table) isAlive(now algorithms.Instant, k Key, life Life) bool {
	p := k.Partition()
	if life.Lineage == 0 || t.lineages[p].Load() != life.Lineage {
		return false
	}

	// The caller holds the shard, so k is not being reset now. Resets of other
	// subjects raise the number as well, so a difference is looked into.
	if t.notes.Resets(p) == life.Resets {
		return true
	}

	lp := t.notes.Lock(p, now.Steady)
	defer lp.Unlock()
	return !lp.IsResetSince(k.Subject, k.Counter, life.Resets)
}

// GiveBack puts back cost that was taken at from, in the given life: that of a
// grant, of a check that another limit refused, of a reservation or of a loan.
// It puts back only what is certainly still taken: see [algorithms.Limit.Give].
// If it fails with ErrShut or ErrGone, nothing changes.
func (t *Table) GiveBack(
	now algorithms.Instant, k Key, l *algorithms.Limit, from algorithms.TakeRecord, cost int64, life Life,
) error {
	s, now := t.lock(now, k)
	defer s.mu.Unlock()
	if t.gates.isShut(k.Partition()) {
		return ErrShut
	}
	return t.giveBackLocked(s, now, k, l, from, cost, life)
}

// giveBackLocked is GiveBack for a caller that holds the shard and has looked at the gate.
func (t *Table) giveBackLocked(
	s *shard, now algorithms.Instant, k Key, l *algorithms.Limit, from algorithms.TakeRecord, cost int64, life Life,
) error {
	if !t.isAlive(now, k, life) {
		return ErrGone
	}
	give := edit{
		func(st algorithms.State, now algorithms.Instant) algorithms.State { return l.Give(st, from, now, cost) },
		func(g *algorithms.Log, now algorithms.Instant) { g.Give(l, from, now, cost) },
	}

	if l.Kind.IsBucket() {
		if from.Late && t.hasForgottenRates(now, k, from.Steady) {
			return ErrGone
		}
		past := t.bucketPast(now, k)

		// The caller does not know at which rates the bucket has drained. The note
		// knows them for a reservation, because it was made before the cost was
		// taken. For any other cost, the note may be younger.
		if from.Fastest == 0 && from.Reserved {
			from.Fastest = int64(past.Rank)

			// A cell bucket keeps its rate in its state, so it may be drained.
			if l.Kind != algorithms.CellBucket {
				give.state = giveUndrained(l, &from, cost)
			}
		}
		if from.Fastest == 0 {
			return ErrGone
		}
		from.Fastest = max(from.Fastest, int64(past.Rank), l.Amount)
		from.Returned = int64(past.Minor)

		// The note records what came back. Without it, too much of the next cost
		// would come back.
		if past.Until == 0 && !t.hasRoomForRate(now, k) {
			return ErrGone
		}
	}
	return t.changeLocked(s, now, k, l, give)
}

// giveUndrained is a Give for a bucket whose rate may no longer be l's. It takes
// units off without draining the bucket. The next check drains it by the rate
// then in force, for the whole time since the last change. The order makes no
// difference.
func giveUndrained(
	l *algorithms.Limit, from *algorithms.TakeRecord, cost int64,
) func(algorithms.State, algorithms.Instant) algorithms.State {
	return func(st algorithms.State, now algorithms.Instant) algorithms.State {
		changedAt := st.At
		st.At = max(st.At, now.Steady)
		st = l.Give(st, *from, now, cost)
		st.At = changedAt
		return st
	}
}

// What may still come back to a bucket depends on the rates at which it has
// drained and on what was put back into it. A limit's rate may change, by new
// rules, tiers or steps, or from one caller to the next. And after one cost has
// come back, less of another is left in the bucket than its TakeRecord says.
// The bucket itself remembers neither. So a note of kind notes.Rate keeps both
// for as long as anything may come back.

func rateKey(k Key) notes.Key { return notes.Key{Subject: k.Subject, ID: k.Counter, Kind: notes.Rate} }

// bucketPast returns what is known of k, a bucket.
func (t *Table) bucketPast(now algorithms.Instant, k Key) notes.Note {
	if !t.notes.HasRates(k.Partition()) {
		return notes.Note{}
	}
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	n, _ := lp.Get(rateKey(k))
	return n
}

// hasForgottenRates reports whether k's partition has forgotten rates since a
// steady time that late settlements may need.
func (t *Table) hasForgottenRates(now algorithms.Instant, k Key, since int64) bool {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	return lp.HasForgottenRates(k.Subject, since)
}

// hasRoomForRate reports whether there is room to record what comes back into
// k, a bucket. Rates that no reservation keeps count as those of one rule. So a
// flood of checks that are rolled back takes up only one rule's share of the
// room.
func (t *Table) hasRoomForRate(now algorithms.Instant, k Key) bool {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	return lp.HasRoom(&notes.Note{Key: rateKey(k), Inline: k.IsInline()})
}

// recordTake records that k, a bucket, has drained at the rate of l, and
// returns how much was put back into it so far. The caller must hold the shard.
func (t *Table) recordTake(now algorithms.Instant, k Key, l *algorithms.Limit) (returned int64) {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	n, found := lp.Get(rateKey(k))
	if !found {
		return 0
	}

	raised := n.Rank > 0 && n.Rank < uint64(l.Amount)
	second := now.Steady / 1e9
	ends := n.Minor > 0 && n.Until < second+notes.RateMemory/2 // a Give of what is taken now needs the note

	// The note is put only if it changes: each Put is sent to the standby and
	// written to disk.
	if raised || ends {
		// The Rank of a bucket without reservations is 0, and stays so.
		n.Rank = max(n.Rank, min(n.Rank, 1)*uint64(l.Amount))
		n.Until = max(n.Until, second+notes.RateMemory)
		lp.Put(&n)
	}
	return int64(n.Minor)
}

// recordReturn records that units were put back into k, a bucket under l. The
// caller must hold the shard.
func (t *Table) recordReturn(now algorithms.Instant, k Key, l *algorithms.Limit, units int64) {
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	n, _ := lp.Get(rateKey(k))
	n.Key = rateKey(k)
	n.At = sharedRate
	n.Inline = k.IsInline()
	n.Minor += uint64(units)
	n.Rank = max(n.Rank, min(n.Rank, 1)*uint64(l.Amount))
	n.Until = max(n.Until, now.Steady/1e9+notes.RateMemory)
	lp.Put(&n)
}

// isResetAfter reports whether k was reset after from.
func (t *Table) isResetAfter(now algorithms.Instant, k Key, from algorithms.TakeRecord) bool {
	if t.notes.Resets(k.Partition()) == 0 {
		return false
	}
	lp := t.notes.Lock(k.Partition(), now.Steady)
	defer lp.Unlock()
	return lp.IsResetAfter(k.Subject, k.Counter, from.Steady)
}
