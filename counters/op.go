package counters

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// Key identifies one counter.
type Key struct {
	Subject uint64 // hash of rule and subject; selects partition and shard
	Counter uint64 // the hash of rule and subject, mixed with the identity of the limit
}

// InlineTag marks the Key.Counter of an inline counter, whose limit came with a
// call, in the bits of inlineMask. One in 2^32 other keys has the tag by
// chance. The identity of an inline limit uses none of these bits.
const (
	InlineTag  = 0x696e6c69 << 16
	inlineMask = 0xffffffff << 16
)

// InlineCounter returns counter with the tag of inline counters.
func InlineCounter(counter uint64) uint64 { return counter&^inlineMask | InlineTag }

// IsInline reports whether k is the key of an inline counter.
func (k Key) IsInline() bool { return k.Counter&inlineMask == InlineTag }

// class distinguishes inline counters, which may fill only part of the table, from configured ones.
type class uint8

const (
	configured class = iota
	inline
	numClasses
)

func (k Key) class() class {
	if k.IsInline() {
		return inline
	}
	return configured
}

// Op charges a cost to one counter, as part of a check.
type Op struct {
	Key    Key
	Limit  *algorithms.Limit
	Cost   int64 // 0…algorithms.MaxAmount
	Shadow bool  // counts and reports, but never makes the check fail
	Mode   Mode
	// Block marks the op that enforces a rule's block. The block begins when
	// another op with the same Key.Subject refuses, and lasts for the window of
	// its limit, a token bucket of one token. Its Cost is 0, because checks take
	// nothing from it. While the block lasts, it refuses every check, whatever the
	// cost. It never refuses a count.
	Block bool
	// Lends marks the op of a limit whose parts regions lend each other. Its
	// Decision reports only this region's use.
	Lends bool

	// Full means that the table has no room for another counter or slot, or that
	// another request with its ID holds slots, although the limit did not refuse.
	// Take and Peek set it, and the fields below. (It stands first to fill a gap
	// in the struct.)
	Full     bool
	Decision algorithms.Decision
	At       algorithms.Instant // when op was decided, by the clocks of its partition

	state algorithms.State // after the check, while it is being decided; not of a log
	// returnedOrLeft has two uses that exclude each other. For a bucket, it is
	// what was put back before (see Table.recordTake). For slots, it is how long
	// they are still held (see SlotLeft).
	returnedOrLeft int64
	location       location
}

// Mode is what an op does to its counter.
type Mode uint8

// The modes.
const (
	CheckMode Mode = iota // take the cost, if the whole check is admitted
	PeekMode              // decide as CheckMode does, but take nothing
	// CountMode takes the cost even if it does not fit, which the Decision reports
	// without refusing the check.
	CountMode
	NumModes // the number of modes
)

// Took reports whether op took its cost, given that its check was admitted.
func (op *Op) Took() bool {
	if op.isSlot() && op.Shadow && !op.Full && op.Mode == CheckMode { // a shadow limit of slots counts beyond its limit
		return op.Cost > 0 && (op.Decision.Allowed || op.Limit.CountsInShadow(op.state, op.Cost))
	}
	return op.Cost > 0 && (op.Decision.Allowed && op.Mode != PeekMode || op.Mode == CountMode && !op.Full)
}

// Refuses reports whether op, already decided, makes its check fail.
func (op *Op) Refuses() bool {
	return !op.Decision.Allowed && !op.Shadow && (op.Mode != CountMode || op.Full)
}

// TakeRecord describes what op took, for a later Give. The record refers to the
// window or time in which the check proceeds, after its delay.
func (op *Op) TakeRecord() algorithms.TakeRecord {
	l := op.Limit
	switch {
	case l.Kind == algorithms.SlidingLog:
		return algorithms.TakeRecord{Steady: op.At.Steady + int64(op.Decision.Delay)}
	case l.Kind.IsBucket():
		taken := algorithms.TakeRecord{Steady: op.At.Steady, Amount: l.Amount, Reset: op.Decision.ResetAfter}
		taken.AddReturned(l, op.returnedOrLeft)
		return taken
	}
	return l.TakeRecord(op.state, op.At)
}

// CopyOutcome copies to op how other was decided, under a limit of the same kind and window.
func (op *Op) CopyOutcome(other *Op) {
	op.At = other.At
	op.state = other.state
	op.returnedOrLeft = other.returnedOrLeft
	op.Decision, op.Full = other.Decision, other.Full
}

// Record is a counter in transit to or from disk or another node. Its times are
// on the steady clock of the process that holds it.
type Record struct {
	Key      Key
	Kind     algorithms.Kind
	State    algorithms.State   // for all kinds but the log
	Log      []algorithms.Entry // for the log
	Fullness uint8              // how much of the capacity is used, 0…255; 255 means refusing
	FreshAt  int64              // Unix seconds on the steady clock: when the counter equals a fresh one
	// Note, if not nil, is a note of the partition. The record then stands for the
	// note, not for a counter, and FreshAt is when the note expires.
	Note *notes.Note
}
