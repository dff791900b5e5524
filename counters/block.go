package counters

import "github.com/rlnode/rlnode/algorithms"

// decideBlock decides a block; allowed says that its limit allows a cost of 1, that is, that the block is not on. If so,
// op.state is as if the block began now.
func (op *Op) decideBlock(now algorithms.Now, allowed bool) {
	if allowed {
		op.Decision = algorithms.Decision{Allowed: true, Remaining: op.Limit.Capacity()}
		return
	}
	op.Decision = op.Limit.Describe(op.state, now, 1, false)
}

// beginBlocks begins each block of ops whose subject another op refuses, and reports it in the check's decision. A block
// that is already on is not prolonged. The shards must be held.
func (t *Table) beginBlocks(now algorithms.Now, ops []Op, store bool) {
	for i := range ops {
		op := &ops[i]
		if !op.Block || !op.Decision.Allowed || !isSubjectRefused(ops, op.Key.Hi) {
			continue
		}
		d := op.Limit.Peek(op.state, now, 1)
		if !store || t.storeBlock(now, op, d, ops) {
			op.Decision = d
		}
	}
}

// isSubjectRefused reports whether a limit of the subject hi refuses. A table without room does not count as a limit.
func isSubjectRefused(ops []Op, hi uint64) bool {
	for i := range ops {
		if op := &ops[i]; op.Key.Hi == hi && !op.Block && !op.Decision.Allowed && !op.Full {
			return true
		}
	}
	return false
}

// storeBlock stores a block that begins. It returns false if there is no room for it; then the limits alone refuse.
func (t *Table) storeBlock(now algorithms.Now, op *Op, d algorithms.Decision, ops []Op) bool {
	s := t.shardOf(op.Key)
	p := s.find(op.Key)
	if !p.found() {
		if !t.makeRoom(s, op.Key, now.Steady, t.countAdded(s, ops), ops) {
			return false
		}
		p = s.insert(op.Key)
	}
	s.store(p, op.Limit, op.state, refusedLevel, freshAt(now, op.Limit, d.ResetAfter))
	return true
}
