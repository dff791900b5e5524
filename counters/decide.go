package counters

import (
	"math"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// decideOp finds op's counter and decides op, but stores nothing. The caller
// must hold the shard s.
func (t *Table) decideOp(s *shard, now algorithms.Instant, op *Op) {
	op.NoRoom = false
	op.At = s.timeIn(op.Key.Partition(), now)
	switch op.Limit.Kind {
	case algorithms.SlidingLog:
		t.decideLog(s, op)
		return
	case algorithms.Concurrency:
		t.decideSlot(op)
		return
	}

	var allowed bool
	op.location = s.subtableOf(op.Key).find(op.Key)
	if op.Block {
		op.state, allowed = op.Limit.Take(op.location.state(), op.At, 1)
		op.decideBlock(allowed)
		return
	}

	op.state, allowed = op.Limit.Take(op.location.state(), op.At, op.Cost)
	if !allowed && op.Mode == CountMode {
		op.state = op.Limit.Force(op.state, op.Limit.TakeRecord(op.state, op.At), op.At, op.Cost)
	}
	op.Limit.DescribeInto(&op.Decision, op.state, op.At, op.Cost, allowed)
	if op.Lends {
		s.leaveOutLoans(op.At, op, op.state)
	}
}

// decideLog is decideOp for a log. Only commit adds to the log.
func (t *Table) decideLog(s *shard, op *Op) {
	op.location = location{index: -1, log: s.log(op.Key)}
	log := op.location.logOrFresh()
	before := log.Len()
	op.Decision = log.Peek(op.Limit, op.At, op.Cost)

	// Peek has dropped the entries that left the window.
	if log.Len() != before {
		t.logEntries[op.Key.class()].Add(int64(log.Len() - before))
	}
}

// refuseForRoom refuses an op of a new subject because there is no room.
func (s *shard) refuseForRoom(op *Op, steady int64) {
	s.refused[op.Key.class()]++
	wait := time.Second // retry once another search may have found room
	freeAt := s.subtableOf(op.Key).lastSearch[op.Key.class()].freeAt
	if freeAt < math.MaxInt64 {
		wait = time.Duration(min(max(1, freeAt-steady/1e9), int64(algorithms.MaxWindow/time.Second))) * time.Second
	}
	op.NoRoom = true
	op.Decision = algorithms.Decision{RetryAfter: wait, ResetAfter: wait}
}

// protectRefused keeps a counter that has refused op from being evicted, unless
// the limit could never allow op's cost. It also moves the expiry later if
// necessary: the limit may have changed since the counter was stored.
func (s *shard) protectRefused(op *Op) {
	// Never usually means that the cost can't ever fit. A limit without capacity,
	// as in a region without a share, answers Never for now only, so its counter is
	// protected.
	mayFitLater := op.Decision.RetryAfter != algorithms.Never || op.Limit.Capacity() == 0
	expiry := expiryAfter(op.At, op.Limit, op.Decision.ResetAfter)
	if e := op.location.log; e != nil {
		if mayFitLater {
			e.kindFullness = packKindFullness(algorithms.SlidingLog, refusedFullness)
		}
		e.expiresAt = max(e.expiresAt, expiry)
		return
	}

	g, slot := op.location.group(), op.location.slot()
	if mayFitLater {
		g.kindFullnesses[slot] = packKindFullness(op.Limit.Kind, refusedFullness)
	}

	// A refused call may have changed the rate of a CellBucket. Without the new
	// state, the old rate would apply until a check is admitted.
	rateChanged := op.Mode == CheckMode && op.Limit.ChangesRate(g.entries[slot].state, op.state)
	if rateChanged {
		g.entries[slot].state = op.state
		s.table.raiseDrainRate(op.At, op.Key, op.Limit)
	}

	// Most refusals change neither expiry nor rate. They are not marked as changed:
	// otherwise a flood of refusals would be sent to standbys and written to disk.
	if expiry > g.expiresAt[slot] {
		g.expiresAt[slot] = expiry
	} else if !rateChanged {
		return
	}
	s.markDirty(op.location, allReaders)
}

// concludeOps reports whether ops as a whole are admitted. Nothing is
// stored yet. If one op refuses, the decisions of the others change to say what
// is left without their cost.
func (t *Table) concludeOps(ops []Op) bool {
	for i := range ops {
		if ops[i].Refuses() {
			t.describeUntaken(ops)
			return false
		}
	}
	return true
}

// describeUntaken corrects the decisions of a refused check: each op that would
// have taken its cost now reports what is left without it.
func (t *Table) describeUntaken(ops []Op) {
	for i := range ops {
		op := &ops[i]
		if op.Cost == 0 || !op.Decision.Allowed && op.Mode != CountMode {
			continue
		}

		// A count describes its refusal with its cost; a check what remains without
		// it.
		cost := int64(0)
		if !op.Decision.Allowed {
			cost = op.Cost
		}

		switch {
		case op.acquiresSlot():
			op.Decision = op.Limit.Peek(op.state, op.At, cost)
		case op.Limit.Kind == algorithms.SlidingLog:
			op.Decision = op.location.logOrFresh().Peek(op.Limit, op.At, cost)
		default:
			// op.state includes the cost, which was not taken. The table still has the
			// state without it.
			s := t.shardOf(op.Key)
			state := s.find(op.Key).state()
			op.Decision = op.Limit.Peek(state, op.At, cost)
			if op.Lends {
				s.leaveOutLoans(op.At, op, state)
			}
		}
	}
}

// commit stores the outcome of decideOp. A Shadow limit that refuses takes
// nothing, and neither does a cost of 0.
func (t *Table) commit(op *Op) {
	if !op.Took() {
		return
	}

	s := t.shardOf(op.Key)
	if op.Limit.Kind == algorithms.SlidingLog {
		t.changeLog(s, op.Key, op.At, op.Limit, func(g *algorithms.Log, now algorithms.Instant) {
			if op.Decision.Allowed {
				g.Take(op.Limit, now, op.Cost)
				return
			}
			g.Force(op.Limit, algorithms.TakeRecord{Steady: now.Steady}, now, op.Cost)
			op.Decision = g.Describe(op.Limit, now, op.Cost, false)
		})
		return
	}

	// op.location may be out of date: other ops of this check may have grown the
	// subtable, or freed memory into which it was then moved.
	loc := op.location
	if !loc.found() || loc.moves != loc.subtable.moves {
		loc = s.find(op.Key)
		if !loc.found() {
			loc = s.insert(op.Key)
		}
	}

	fullness := uint8(refusedFullness)
	if op.Decision.Allowed {
		fullness = fullnessAfterCheck(op.Limit, &op.Decision)
	}

	s.store(loc, op.Limit, op.state, fullness, expiryAfter(op.At, op.Limit, op.Decision.ResetAfter))
	op.returnedOrLeft = 0
	if op.Limit.Kind.IsBucket() && t.notes.HasRates(op.Key.Partition()) {
		op.returnedOrLeft = t.raiseDrainRate(op.At, op.Key, op.Limit)
	}
}
