package counters

import "github.com/rlnode/rlnode/algorithms"

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

	// Take and Peek set the fields from here on. NoRoom comes first of them because
	// it fits a gap. It means that op was refused for another reason than its limit:
	// the table has no room for another counter or slot, or another request with the
	// same ID holds slots.
	NoRoom   bool
	Decision algorithms.Decision
	At       algorithms.Instant // when op was decided, by the clocks of its partition

	state algorithms.State // after the check, while it is being decided; not of a log
	// returnedOrLeft has two uses. Of a bucket, it is how many units had been put
	// back before this check (see Table.raiseDrainRate). Of slots, it is how much
	// longer they are held (see SlotLeft).
	returnedOrLeft int64
	location       location
}

// Mode is what an op does to its counter.
type Mode uint8

const (
	CheckMode Mode = iota // take the cost, if the whole check is admitted
	PeekMode              // decide as CheckMode does, but take nothing
	// CountMode takes the cost even if it does not fit, which the Decision reports
	// without refusing the check.
	CountMode
	NumModes // the number of modes
)

// acquiresSlot reports whether op acquires slots.
func (op *Op) acquiresSlot() bool { return op.Limit.Kind == algorithms.Concurrency }

// Took reports whether op took its cost, given that its check was admitted.
func (op *Op) Took() bool {
	if op.acquiresSlot() && op.Shadow && !op.NoRoom && op.Mode == CheckMode { // a shadow limit of slots counts beyond its limit
		return op.Cost > 0 && (op.Decision.Allowed || op.Limit.CountsInShadow(op.state, op.Cost))
	}
	return op.Cost > 0 && (op.Decision.Allowed && op.Mode != PeekMode || op.Mode == CountMode && !op.NoRoom)
}

// addsCounter reports whether op, already decided, adds a new counter to the
// table if its check is admitted.
func (op *Op) addsCounter() bool { return !op.acquiresSlot() && op.Took() && !op.location.found() }

// Refuses reports whether op, already decided, makes its check fail.
func (op *Op) Refuses() bool {
	return !op.Decision.Allowed && !op.Shadow && (op.Mode != CountMode || op.NoRoom)
}

// TakeRecord describes what op took, for a later Give. If the check is delayed,
// the record of a window or log is of the time when the check proceeds.
func (op *Op) TakeRecord() algorithms.TakeRecord {
	l := op.Limit
	switch {
	case l.Kind == algorithms.SlidingLog:
		return algorithms.TakeRecord{Steady: op.At.Steady + int64(op.Decision.Delay)}
	case l.Kind.IsBucket():
		taken := algorithms.TakeRecord{Steady: op.At.Steady, Amount: l.Amount, ResetAfter: op.Decision.ResetAfter}
		taken.AddReturned(l, op.returnedOrLeft)
		return taken
	}
	return l.TakeRecord(op.state, op.At)
}

// CopyOutcome makes op decided as other was. Their limits must be of the same
// kind and window.
func (op *Op) CopyOutcome(other *Op) {
	op.At = other.At
	op.state = other.state
	op.returnedOrLeft = other.returnedOrLeft
	op.Decision, op.NoRoom = other.Decision, other.NoRoom
}
