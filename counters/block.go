package counters

import "github.com/rlnode/rlnode/algorithms"

// decideBlock decides a block. allowed says that its limit allows a cost of 1, which means that no block is in force;
// op.state is then as if the block began now.
func (op *Op) decideBlock(allowed bool) {
	if allowed {
		op.Decision = algorithms.Decision{Allowed: true, Remaining: op.Limit.Capacity()}
		return
	}
	op.Decision = op.Limit.Describe(op.state, op.At, 1, false)
}

// beginBlocks begins each block of ops whose subject another op refuses, and puts it into the check's decision. It does not
// extend a block already in force. The caller must hold the shards.
func (t *Table) beginBlocks(ops []Op, store bool) {
	for i := range ops {
		op := &ops[i]
		if !op.Block || !op.Decision.Allowed || !isSubjectRefused(ops, op.Key.Subject) {
			continue
		}
		d := op.Limit.Peek(op.state, op.At, 1)
		if !store || t.storeBlock(op, d, ops) {
			op.Decision = d
		}
	}
}

// isSubjectRefused reports whether a limit of subject refuses. A refusal for lack of room does not count.
func isSubjectRefused(ops []Op, subject uint64) bool {
	for i := range ops {
		if op := &ops[i]; op.Key.Subject == subject && !op.Block && !op.Decision.Allowed && !op.Full {
			return true
		}
	}
	return false
}

// storeBlock stores a block that begins. It returns false if there is no room for it; the check is then refused without a
// block.
func (t *Table) storeBlock(op *Op, d algorithms.Decision, ops []Op) bool {
	s := t.shardOf(op.Key)
	loc := s.find(op.Key)
	if !loc.found() {
		if !t.makeRoom(s, op.Key, op.At.Steady, t.countAdded(s, ops), ops) {
			return false
		}
		loc = s.insert(op.Key)
	}
	s.store(loc, op.Limit, op.state, refusedFullness, freshAt(op.At, op.Limit, d.ResetAfter))
	return true
}
