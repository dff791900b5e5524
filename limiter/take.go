package limiter

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// takeAsOwner decides ops from this node's counters, as their owner. It checks
// authority before and after (see hasKeptAuthority). Without authority before, it
// takes nothing. If authority ended meanwhile, the verdict is Undecided, and what
// was taken stays taken: this node may no longer own the counters. acq has the
// slots that ops acquire; it may be nil.
func (l *Limiter) takeAsOwner(
	now algorithms.Instant, ops []counters.Op, peek bool, acq *acquisition,
) (verdict counters.Verdict, authorized bool) {
	cp := l.cluster
	var generation int64
	if cp != nil {
		generation, authorized = cp.ReadAuthority()
		if !authorized {
			return counters.Undecided, false
		}
	}

	began := cp.recorderClock()

	verdict = l.takeFromTable(now, ops, peek, acq)

	switch {
	case cp == nil:
	case !cp.hasKeptAuthority(generation):
		return counters.Undecided, false
	case verdict != counters.Undecided:
		cp.recordDecision(ByOwner, ops, began, 1)
	}

	return verdict, true
}

// takeFromTable decides ops from this node's counters, whether or not the node
// has authority. acq is as for takeAsOwner.
func (l *Limiter) takeFromTable(now algorithms.Instant, ops []counters.Op, peek bool, acq *acquisition) counters.Verdict {
	switch {
	case peek:
		return l.table.Peek(now, ops)
	case acq != nil:
		attempt := acq.attempt()
		verdict := l.table.TakeWithSlots(now, ops, attempt)
		acq.isIDReused = attempt.IDReused
		return verdict
	}
	return l.table.Take(now, ops)
}

// recorderClock reads the recorder's clock; zero without a recorder.
func (cp *clusterPart) recorderClock() int64 {
	if cp == nil || cp.Recorder == nil {
		return 0
	}
	return cp.Recorder.Clock()
}

// recordDecision reports decisions on ops, as many as times, to the recorder.
// They began at began, by the recorder's clock.
func (cp *clusterPart) recordDecision(by DecidedBy, ops []counters.Op, began int64, times int) {
	if cp == nil || cp.Recorder == nil {
		return
	}

	ended := cp.Recorder.Clock()
	for first := 0; first < len(ops); first += countSubjectOps(ops[first:]) {
		p := ring.PartitionOf(ops[first].Key.Subject)
		lineage := uint64(0)
		if by == ByOwner {
			lineage = cp.leases.limiter.table.Lineage(p)
		}
		for range times {
			cp.Recorder.Decided(by, p, lineage, began, ended)
		}
	}
}
