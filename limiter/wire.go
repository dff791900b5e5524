package limiter

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
)

// Messages between limiters: whole numbers are varints, hashes and identities are as they are. All lengths are looked at before
// anything is allocated for them.

const (
	maxMessageOps = 1000 * 17 // of a question: those of all rules that a document may have, and their blocks
	maxSubjectOps = 3*16 + 1  // of one subject: the limits of a rule, what was lent and borrowed of them, and its block
	maxAlike      = 10_000    // checks that one question may stand for
	maxVersion    = 1 << 62   // of rules, and of the ring
	// maxResults bounds what a question may ask for: checks alike times limits.
	maxResults = 32_768
	// leastOp is the fewest bytes that a limit and its cost take.
	leastOp = 1 + 8 + 3 + 1
)

// Flags of a limit, beside its own.
const (
	limitShadow = 1 << 3 // it is one of a shadow rule
	limitBlock  = 1 << 5
)

// codeOps is a list of ops, in the order of their subjects; below zero says whether costs may be. room has the limits that ops refer
// to when they are read; it is returned, for the next time.
func codeOps(c *wire.Coder, ops *[]counters.Op, room []algorithms.Limit, belowZero bool) []algorithms.Limit {
	least, first, i := int64(0), 0, 0
	if belowZero {
		least = -algorithms.MaxAmount
	}
	wire.List(c, ops, maxMessageOps, leastOp, func(op *counters.Op) {
		if c.Reads() && i == 0 {
			if room = room[:0]; cap(room) < len(*ops) {
				room = make([]algorithms.Limit, 0, len(*ops))
			}
		}
		before := (*ops)[first:i]
		same := i > 0 && op.Key.Hi == before[0].Key.Hi
		if i > 0 {
			c.Bool(&same)
		}
		if same {
			op.Key.Hi = before[0].Key.Hi
		} else {
			wire.Fixed(c, &op.Key.Hi)
			c.Require(i == 0 || op.Key.Hi > before[0].Key.Hi)
			first, before = i, nil
		}
		wire.Fixed(c, &op.Key.Lo)
		for j := range before {
			c.Require(before[j].Key.Lo != op.Key.Lo)
		}
		if c.Reads() {
			room = append(room, algorithms.Limit{}) // has room: no op's limit moves
			op.Limit = &room[len(room)-1]
		}
		codeLimit(c, op)
		wire.Varint(c, &op.Cost)
		c.Require(op.Cost >= least && op.Cost <= algorithms.MaxAmount && !(op.Block && op.Cost != 0) && len(before) < maxSubjectOps)
		i++
	})
	return room
}

// codeLimit is the limit of an op, and what it is to its check. What is read is legal.
func codeLimit(c *wire.Coder, op *counters.Op) {
	if c.Reads() {
		flags := op.Limit.Decode(&c.In, limitShadow|limitBlock)
		op.Shadow, op.Block = flags&limitShadow != 0, flags&limitBlock != 0
		l := op.Limit
		c.Require(!op.Block || l.Kind == algorithms.TokenBucket && l.Amount == 1 && l.Burst == 1 && l.MaxDelay == 0)
		return
	}
	flags := byte(0)
	if op.Shadow {
		flags |= limitShadow
	}
	if op.Block {
		flags |= limitBlock
	}
	c.Out = op.Limit.Append(c.Out, flags)
}
