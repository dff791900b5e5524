package counters

import "github.com/rlnode/rlnode/algorithms"

// Key identifies one counter.
type Key struct {
	Hi uint64 // hash of rule and subject: partition and shard
	Lo uint64 // the same, mixed with the identity of the limit
}

// Op asks one counter about a cost, as part of a check.
type Op struct {
	Key    Key
	Limit  *algorithms.Limit
	Cost   int64 // 0…algorithms.MaxAmount
	Shadow bool  // counts and reports, but never makes the check fail
	// Block: a pause that begins when another op with the same Key.Hi refuses, and lasts for the window of its limit, a
	// token bucket of one. Its Cost is 0: checks take nothing of it, and it refuses while it lasts, whatever they cost.
	Block bool

	// Set by Take and Peek.
	Decision algorithms.Decision
	// Full: refused because the table has no room for one more counter, not by the limit.
	Full bool

	state algorithms.State // after the check, while it is being decided
	at    place
}

// Taken describes what the op took in a check at now that was admitted, for a later Give: in the window, or at the time,
// at which the check goes on. Where the counter's window was already the next one, that gives nothing back, or less.
func (op *Op) Taken(now algorithms.Now) algorithms.Taken {
	l := op.Limit
	if l.MaxDelay > 0 && !l.Kind.Bucket() {
		now.Steady, now.Wall = now.Steady+int64(op.Decision.Delay), now.Wall+int64(op.Decision.Delay)
	}
	if l.Kind.Bucket() || l.Kind == algorithms.SlidingLog {
		return algorithms.Taken{Steady: now.Steady, Amount: l.Amount, Burst: l.Burst}
	}
	return l.Taken(l.Advance(algorithms.State{}, now), now)
}

// Record is a counter on its way to or from disk or another node. Times are of the steady clock of the process
// that holds it.
type Record struct {
	Key     Key
	Kind    algorithms.Kind
	State   algorithms.State   // all kinds but the log
	Log     []algorithms.Entry // the log
	Level   uint8              // used part of the capacity, 0…255; 255 is being refused
	FreshAt int64              // Unix seconds on the steady clock: from then on the counter equals a fresh one
}
