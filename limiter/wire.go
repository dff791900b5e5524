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
	// maxResults bounds what a question may ask for: checks alike times limits.
	maxResults = 32_768
)

// Flags of a limit, beside its own.
const (
	limitShadow = 1 << 3 // it is one of a shadow rule
	limitBlock  = 1 << 5
)

// appendOp writes the limit of an op and what it is to its check.
func appendOp(b []byte, op *counters.Op) []byte {
	flags := byte(0)
	if op.Shadow {
		flags |= limitShadow
	}
	if op.Block {
		flags |= limitBlock
	}
	return op.Limit.Append(b, flags)
}

// decodeOp reads what appendOp wrote; what comes out is legal. The limit is put into l.
func decodeOp(d *wire.Decoder, op *counters.Op, l *algorithms.Limit) {
	flags := l.Decode(d, limitShadow|limitBlock)
	op.Limit, op.Shadow, op.Block = l, flags&limitShadow != 0, flags&limitBlock != 0
	if op.Block && (l.Kind != algorithms.TokenBucket || l.Amount != 1 || l.Burst != 1 || l.MaxDelay != 0) {
		d.Fail()
	}
}
