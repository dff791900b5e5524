package counters

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// A rule's block is a token bucket of one token, which is taken when the block
// begins. The block is in force while the bucket refuses.
//
// A rule may have several blocks, one for each length: their ops follow one
// another, for the same subject. Their buckets have a MaxDelay, so each allows
// again that long before it is full. Until it is full, its block is over but
// remembered. The next block to begin is then the one after it.

// decideBlock decides op, a block. allowed says that the bucket allows a cost
// of 1, so the block is not in force. op.state then includes that cost.
func (op *Op) decideBlock(allowed bool) {
	if allowed {
		op.Decision = algorithms.Decision{Allowed: true, Remaining: op.Limit.Capacity()}
		return
	}
	op.Decision = op.Limit.Describe(op.state, op.At, 1, false)
}

// isRemembered reports whether a block is over, but ended not long ago.
func (op *Op) isRemembered() bool { return op.state.Owed() > 1 } // the cost of 1, and some of the last block's

// BlockLeft returns how much longer a block is in force.
func (op *Op) BlockLeft() time.Duration { return max(0, op.Decision.ResetAfter-op.Limit.MaxDelay) }

// beginBlocks begins a block of each subject that another op refuses, and puts
// it into the check's decision. It does not extend a block already in force.
// The caller must hold the shards.
func (t *Table) beginBlocks(ops []Op, store bool) {
	for i := 0; i < len(ops); i++ {
		if !ops[i].Block {
			continue
		}
		first := i
		for i+1 < len(ops) && ops[i+1].Block && ops[i+1].Key.Subject == ops[first].Key.Subject {
			i++
		}
		op := nextBlock(ops[first : i+1])
		if op == nil || !isSubjectRefused(ops, op.Key.Subject) {
			continue
		}

		// The block begins with a fresh bucket. What the bucket still owes for an
		// earlier block would make this one longer.
		op.state, _ = op.Limit.Take(algorithms.State{}, op.At, 1)
		d := op.Limit.Peek(op.state, op.At, 1)
		if !store || t.storeBlock(op, d, ops) {
			op.Decision = d
		}
	}
}

// nextBlock returns the block that begins if the subject is refused now, or nil if one is in force.
func nextBlock(blocks []Op) *Op {
	next := 0
	for i := range blocks {
		switch {
		case !blocks[i].Decision.Allowed:
			return nil
		case blocks[i].isRemembered():
			next = min(i+1, len(blocks)-1)
		}
	}
	return &blocks[next]
}

// isSubjectRefused reports whether a limit of subject refuses. A refusal for
// lack of room or for want of slots does not count: the subject need only wait,
// not do less.
func isSubjectRefused(ops []Op, subject uint64) bool {
	for i := range ops {
		op := &ops[i]
		if op.Key.Subject == subject && !op.Block && !op.acquiresSlot() && !op.Decision.Allowed && !op.NoRoom {
			return true
		}
	}
	return false
}

// storeBlock stores a block that begins. It returns false if there is no room
// for it; the check is then refused without a block.
func (t *Table) storeBlock(op *Op, d algorithms.Decision, ops []Op) bool {
	s := t.shardOf(op.Key)
	loc := s.find(op.Key)
	if !loc.found() {
		if !t.makeRoom(s, op.Key, op.At.Steady, t.countAdded(s, ops), ops) {
			return false
		}
		loc = s.insert(op.Key)
	}
	s.store(loc, op.Limit, op.state, refusedFullness, expiryAfter(op.At, op.Limit, d.ResetAfter))
	return true
}

// BeginBlock begins a block now. If it fails with ErrShut or ErrNoRoom, nothing changes.
func (t *Table) BeginBlock(now algorithms.Instant, k Key, l *algorithms.Limit) error {
	return t.change(now, k, l, edit{state: func(_ algorithms.State, now algorithms.Instant) algorithms.State {
		begun, _ := l.Take(algorithms.State{}, now, 1)
		return begun
	}})
}
