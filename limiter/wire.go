package limiter

import (
	"iter"
	"math"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
)

// Bounds of messages between limiters. In messages, integers are varints;
// hashes and IDs have a fixed size. Decoding checks every length before it
// allocates memory.

const (
	maxMessageOps = 1000 * 24 // bounds the ops of a question: the limits and blocks of all of a document's rules
	// maxSubjectOps bounds the ops of one subject: a rule's limits, what they lent
	// and borrowed, and its blocks.
	maxSubjectOps = 3*16 + 8
	maxIdentical  = 10_000  // bounds the identical checks in one question
	maxVersion    = 1 << 62 // bounds versions of the rules and revisions of the ring
	// maxResults bounds the results of a question: identical checks × limits.
	maxResults = 32_768
	// minOpBytes is the minimum size of an encoded limit with its cost.
	minOpBytes = 1 + 8 + 3 + 1
)

// Flags of a limit in a message, in addition to the limit's own.
const (
	limitShadow = 1 << 3 // of a shadow rule
	limitBlock  = 1 << 5
	limitMode   = 1 << 7 // a byte with the op's mode, and whether it lends, follows its cost; since feature level 2
)

// codeOps writes or reads a list of ops, in order of their subjects. belowZero
// allows negative costs. When reading, it stores the ops' limits in buf and
// returns buf. The ops are valid until buf is reused.
func codeOps(c *wire.Coder, ops *[]counters.Op, buf []algorithms.Limit, belowZero bool) []algorithms.Limit {
	least := int64(0)
	first := 0
	i := 0

	if belowZero {
		least = -algorithms.MaxAmount
	}

	wire.List(c, ops, maxMessageOps, minOpBytes, func(op *counters.Op) {
		if c.Reads() && i == 0 {
			buf = buf[:0]
			if cap(buf) < len(*ops) {
				buf = make([]algorithms.Limit, 0, len(*ops))
			}
		}

		before := (*ops)[first:i]
		same := i > 0 && op.Key.Subject == before[0].Key.Subject
		if i > 0 {
			c.Bool(&same)
		}

		if same {
			op.Key.Subject = before[0].Key.Subject
		} else {
			wire.Fixed(c, &op.Key.Subject)
			c.Require(i == 0 || op.Key.Subject > before[0].Key.Subject)
			first = i
			before = nil
		}

		wire.Fixed(c, &op.Key.Counter)

		for j := range before {
			c.Require(before[j].Key.Counter != op.Key.Counter)
		}

		if c.Reads() {
			buf = append(buf, algorithms.Limit{}) // never reallocates: the ops' limits stay in place
			op.Limit = &buf[len(buf)-1]
		}

		modeFollows := codeLimit(c, op)
		wire.Varint(c, &op.Cost)
		if modeFollows {
			codeMode(c, op)
		}
		c.Require(op.Cost >= least && op.Cost <= algorithms.MaxAmount &&
			!(op.Block && op.Cost != 0) && len(before) < maxSubjectOps)
		i++
	})
	return buf
}

// opLends is the bit, in the byte after an op's cost, that says that the op
// lends. The lower bits are the op's mode.
const opLends = 1 << 2

// codeMode writes or reads the byte after an op's cost. An op in CheckMode that
// does not lend has no such byte.
func codeMode(c *wire.Coder, op *counters.Op) {
	mode := op.Mode
	if op.Lends {
		mode |= opLends
	}
	wire.Number(c, &mode, opLends+int64(counters.NumModes-1))
	c.Require(mode != counters.CheckMode)
	op.Mode = mode &^ opLends
	op.Lends = mode&opLends != 0
	c.Require(op.Mode < counters.NumModes && !(op.Lends && !op.Limit.Kind.Divisible()))
}

// codeLimit writes or reads an op's limit and flags. It rejects invalid limits.
// modeFollows means that the byte of codeMode follows the op's cost.
func codeLimit(c *wire.Coder, op *counters.Op) (modeFollows bool) {
	if c.Reads() {
		flags := op.Limit.Decode(&c.In, limitShadow|limitBlock|limitMode)
		op.Shadow = flags&limitShadow != 0
		op.Block = flags&limitBlock != 0
		op.Mode = counters.CheckMode
		op.Lends = false

		limit := op.Limit
		c.Require(!op.Block || limit.Kind == algorithms.TokenBucket && limit.Amount == 1 && limit.Burst == 1 &&
			limit.MaxDelay < limit.Window)
		return flags&limitMode != 0
	}

	flags := byte(0)
	if op.Shadow {
		flags |= limitShadow
	}
	if op.Block {
		flags |= limitBlock
	}
	modeFollows = op.Mode != counters.CheckMode || op.Lends
	if modeFollows {
		flags |= limitMode
	}

	c.Out = op.Limit.Append(c.Out, flags)
	return modeFollows
}

// codeLife writes or reads the life of a subject's counters.
func codeLife(c *wire.Coder, life *counters.Life) {
	wire.Fixed(c, &life.Lineage)
	wire.Number(c, &life.Resets, math.MaxInt64)
}

// countSubjectOps returns the number of leading ops that have the same subject.
func countSubjectOps(ops []counters.Op) int {
	n := 1
	for n < len(ops) && ops[n].Key.Subject == ops[0].Key.Subject {
		n++
	}
	return n
}

// subjectOps are the ops of one subject, as a part of ops in order of their
// subjects.
type subjectOps struct {
	index int // of the subject
	first int // index of the first op
	ops   []counters.Op
}

func (so *subjectOps) subject() uint64 { return so.ops[0].Key.Subject }

// bySubject yields the ops of one subject after another.
func bySubject(ops []counters.Op) iter.Seq[subjectOps] {
	return func(yield func(subjectOps) bool) {
		so := subjectOps{}
		for so.first < len(ops) {
			so.ops = ops[so.first : so.first+countSubjectOps(ops[so.first:])]
			if !yield(so) {
				return
			}
			so.first += len(so.ops)
			so.index++
		}
	}
}

// findSubject returns the index of a subject's first op, or −1 if it has none,
// and the index of the subject.
func findSubject(ops []counters.Op, subject uint64) (first, index int) {
	for first < len(ops) {
		if ops[first].Key.Subject == subject {
			return first, index
		}
		first = first + countSubjectOps(ops[first:])
		index = index + 1
	}
	return -1, 0
}

// countSubjects returns the number of subjects in ops.
func countSubjects(ops []counters.Op) (n int) {
	for first := 0; first < len(ops); n++ {
		first += countSubjectOps(ops[first:])
	}
	return n
}
