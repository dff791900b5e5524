package limiter

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// DecidedBy says how a check was decided.
type DecidedBy uint8

// The ways to decide a check, weakest first. A check decided in several ways reports the weakest.
const (
	ByFallback DecidedBy = iota // here, cut off from owner and standby
	ByStandby                   // by the standby, in place of an owner that can't be reached
	ByForward                   // by the owner, on another node
	ByLease                     // here, from a lease
	ByOwner                     // here: this node owns the subject, or the rule is rules.Local
	ByList                      // by the allow or deny list
	ByNone                      // no rule applied
)

var decidedByNames = [...]string{"fallback", "standby", "forward", "lease", "owner", "list", "none"}

// String returns the API's word for d.
func (d DecidedBy) String() string { return decidedByNames[d] }

// Query is one check. The limiter never modifies a Query or anything it refers to, and keeps no reference to them after the
// call.
type Query struct {
	Rule       string            // apply only this rule; empty applies every rule that matches
	Key        []string          // with ByKey: values of the rule's key attributes, in their order
	ByKey      bool              // identify the subject by Key, otherwise by Attributes
	Attributes []rules.Attribute // at most 32
	Costs      []UnitCost        // by unit; in a check, requests default to 1 or to the rule's cost table
	Mode       counters.Mode     // a reservation can neither peek nor count
	// Subjects come with their own limits, or with the node of a descriptor tree that they matched. If there are any, Rule,
	// Key, Attributes, Costs and Mode are ignored.
	Subjects []Subject // at most rules.MaxInlineSubjects with limits of their own
	// Slots is how many slots an acquire or a reservation holds of each limit of slots; 0: as many as its cost in the
	// limit's unit says, or 1. SlotTTL, for an acquire, is after what time they end unless they are renewed; 0: as the
	// limits say. Who says who holds them, in at most MaxWho bytes.
	Slots   int64
	SlotTTL time.Duration
	Who     string
	// RequestID makes a reservation, a change or a counting check idempotent. It has at most MaxRequestID bytes; empty means
	// none.
	RequestID string
	// AtMost makes a check of one limit take as much of its cost as there is, which Answer.Granted says.
	AtMost bool
	// LimitName restricts an adjustment or a reset to the limit with that name; empty: it concerns all. Bill also
	// corrects the bill by an adjustment.
	LimitName string
	// HolderID restricts a reset to one slot: the short ID that [Holder] has; see ShortSlotID. Empty: it concerns all.
	HolderID string
	Bill     bool
	// OnExpiry says what becomes of a reservation that is not settled in time; nil: it stays charged.
	OnExpiry *OnExpiry
	// AwaitsLoan means that a check waits up to 200 ms for a loan from another region if only a region's share refuses it.
	AwaitsLoan bool
	// Waits means that the caller of a check waits for its turn if it is delayed. The Answer then has a QueuePlace, if
	// the cost can be given back when the caller stops waiting.
	Waits bool
	// Matched is the set of rules that Subjects' nodes belong to; nil if no subject has a node. If other rules are in force by
	// now, the check fails with ErrRulesChanged.
	Matched *rules.Set
	// PeeksAreLooks turns peeks into looks. A look takes nothing, but is otherwise treated as a check: a lease or a remembered
	// refusal may answer it, and it counts in the metrics and as demand for leases.
	PeeksAreLooks bool
}

// Peeks reports whether q only peeks. A look takes nothing either, but is treated as a check.
func (q *Query) Peeks() bool {
	if q.PeeksAreLooks {
		return false
	}
	for i := range q.Subjects {
		if q.Subjects[i].Mode != counters.PeekMode {
			return false
		}
	}
	return len(q.Subjects) > 0 || q.Mode == counters.PeekMode
}

// hasCounts reports whether q has a subject whose cost is taken even if the limit refuses it.
func (q *Query) hasCounts() bool {
	return q.Mode == counters.CountMode || slices.ContainsFunc(q.Subjects, func(s Subject) bool { return s.Mode == counters.CountMode })
}

// Subject is a subject that comes with its own limits, or with the node of a descriptor tree that it matched.
type Subject struct {
	rules.InlineSubject
	// Node is the node that the descriptor Entries matched. With a Node, only Shadow of InlineSubject is used. It is nil if the
	// subject comes with its own limits.
	Node    *rules.EnvoyNode
	Entries []rules.EnvoyEntry
	Costs   []UnitCost
	Mode    counters.Mode
}

// MaxCosts bounds the units for which a caller may give a cost.
const MaxCosts = 16

// UnitCost is a cost in one unit.
type UnitCost struct {
	Unit string
	Cost int64 // 0…algorithms.MaxAmount; may be negative in an adjustment
}

// Answer is the outcome of a check. Callers reuse Answers; the slices are valid until the Answer's next check.
type Answer struct {
	Allowed      bool
	Counted      bool  // not allowed, but the cost was taken anyway, because every op that was refused has CountMode
	IsAtMost     bool  // the check took at most its cost: Granted
	Granted      int64 // 0 if it is refused
	DecidedBy    DecidedBy
	RulesVersion int64
	Set          *rules.Set // the rules that decided the check
	Now          algorithms.Instant

	// Limits has an entry for each limit of the check, in document order, including shadow limits.
	Limits []LimitAnswer
	// TightestIndex indexes the limit that describes the answer: the refusing limit with the longest RetryAfter or, if none
	// refused, the limit with the least remaining relative to its capacity. It is −1 if there is none.
	TightestIndex int

	queuePlace *QueuePlace
	scratch    scratch
}

// Denied reports whether the deny list or the default refused the check, rather than a limit.
func (a *Answer) Denied() bool { return !a.Allowed && a.DecidedBy >= ByList }

// Delay returns how long the caller must wait before it proceeds with an allowed check: the longest delay of its limits. Shadow
// rules do not delay.
func (a *Answer) Delay() (longest time.Duration) {
	if !a.Allowed {
		return 0
	}
	for i := range a.Limits {
		if la := &a.Limits[i]; !la.Rule.Shadow {
			longest = max(longest, la.Delay)
		}
	}
	return longest
}

// LimitAnswer is one limit's part of an answer.
type LimitAnswer struct {
	Rule  *rules.Rule
	Limit *rules.Limit
	algorithms.Decision
	// Full means that the table of counters had no room for the counter, because it is full of subjects that are being refused.
	Full bool
	// Blocked means that this check or an earlier one triggered the rule's block. All limits of the rule refuse until the block
	// ends.
	Blocked bool
	// ByHand means that an entry beside the rules blocks the subject.
	ByHand bool
	alone  bool // decided within this node's share, without the owner
	lack   lack // whose share has refused
	// isCutOff means that a region's share has refused, and that the region reaches no other.
	isCutOff bool
	Subject  int32 // index in Query.Subjects; 0 if there are none
	Cost     int64 // that the check has in the limit's unit
}

// share returns how much of the limit there is to use at once where it was decided: in a region, with what it has borrowed and
// without what it has lent.
func (la *LimitAnswer) share() int64 { return max(0, la.Limit.Capacity()+la.Loaned) }

// Errors in a Query. Check wraps them with details.
var (
	// ErrUnknownRule means that no rule has the requested name.
	ErrUnknownRule = errors.New("unknown rule")
	// ErrKey means that the key does not match the rule's key attributes.
	ErrKey = rules.ErrKey
	// ErrMissing means that a value of the key is empty.
	ErrMissing = rules.ErrMissing
	// ErrInline means that the limits in the call are invalid.
	ErrInline = rules.ErrInline
	// ErrRulesChanged means that new rules came into force after Query.Subjects were matched. The caller must match them again.
	ErrRulesChanged = errors.New("the rules have changed since the subjects were matched")
	// ErrLevelTooLow means that some nodes of the cluster do not support yet what the check needs.
	ErrLevelTooLow = errors.New("the feature level is too low")
	// ErrNamespace means that the rules do not allow limits in the call, or not in this namespace.
	ErrNamespace = rules.ErrNamespace
)

// SubjectError means that one of several subjects in a Query is invalid.
type SubjectError struct {
	Subject int // index in Query.Subjects
	Err     error
}

// Error names the subject.
func (e *SubjectError) Error() string { return fmt.Sprintf("subjects[%d]: %v", e.Subject, e.Err) }

// Unwrap returns Err.
func (e *SubjectError) Unwrap() error { return e.Err }

// Errors of Usage, Adjust and Reset.
var (
	// ErrNoLimitInUnit means that the costs name a unit in which the subject has no limit.
	ErrNoLimitInUnit = errors.New("there is no limit in the unit")
	// ErrFull means that the table of counters has no room for another counter.
	ErrFull = counters.ErrFull
	// ErrNoOwner means that this node currently can't reach any node that may read or change the subject's counters. Check
	// never returns it: a check is always decided.
	ErrNoOwner = errors.New("the owner of the subject can't be reached")
)

// IndexInOrder returns the index in Limits of the n-th limit in document order. The limits of an inline subject are in
// the order of the call.
func (a *Answer) IndexInOrder(n int) int {
	if !a.Limits[n].Rule.Inline {
		return n
	}
	first := 0
	for i := range a.scratch.match.Hits {
		next := min(first+len(a.scratch.match.Hits[i].Limits), len(a.Limits))
		if n < next {
			return first + max(0, slices.IndexFunc(a.Limits[first:next], func(la LimitAnswer) bool { return la.Limit.CallIndex == n-first }))
		}
		first = next
	}
	return n
}

// Tighter reports whether la describes a check better than b, an earlier limit. A refusal is tighter than an admission. Of two
// refusals, the one with the longer RetryAfter is tighter; of two admissions, the one with less remaining relative to its
// capacity.
func (la *LimitAnswer) Tighter(b *LimitAnswer) bool {
	switch {
	case la.Allowed != b.Allowed:
		return b.Allowed
	case !la.Allowed:
		// Unsigned, so that Never (−1) is the longest.
		return uint64(la.RetryAfter) > uint64(b.RetryAfter)
	}
	aHi, aLo := bits.Mul64(uint64(la.Remaining), uint64(b.Limit.Capacity()))
	bHi, bLo := bits.Mul64(uint64(b.Remaining), uint64(la.Limit.Capacity()))
	return aHi < bHi || aHi == bHi && aLo < bLo
}

// tightestOf returns the tightest of limits.
func tightestOf(limits []LimitAnswer) *LimitAnswer {
	tightest := &limits[0]
	for i := range limits {
		if limits[i].Tighter(tightest) {
			tightest = &limits[i]
		}
	}
	return tightest
}

// comesBefore reports whether la describes a check better than b, an earlier limit: because la is tighter or, between equally
// tight inline limits of one subject, because la comes first in the call. Inline limits are sorted, so b's CallIndex may be
// higher.
func (la *LimitAnswer) comesBefore(b *LimitAnswer) bool {
	return la.Tighter(b) || la.Limit.CallIndex < b.Limit.CallIndex && la.Rule == b.Rule && !b.Tighter(la)
}

// conclude copies the counters' decisions into the answer and finds the tightest limit. If an admitted check counted a cost
// that a limit refused, the answer is not allowed.
func (a *Answer) conclude(l *Limiter) {
	if a.scratch.hasBlocks {
		a.foldBlocks()
	}
	if a.scratch.byHand {
		a.foldHandBlocks()
	}

	limits, ops := a.Limits, a.scratch.ops[:len(a.Limits)]
	if a.scratch.soleCounts != nil && a.Allowed {
		limits[0].set(&ops[0])
		a.TightestIndex = 0
		return
	}

	a.resolveNever(0, len(limits))

	for i := range limits {
		la, op := &limits[i], &ops[i]
		la.concludeZero(op)
		if la.set(op); !la.Allowed {
			a.concludeRefusal(l, la, op)
		}
		if !la.Rule.Shadow && (a.TightestIndex < 0 || la.comesBefore(&a.Limits[a.TightestIndex])) {
			a.TightestIndex = i
		}
	}
}

// set copies op's outcome, field by field: copying the whole struct right after it was written would stall the processor.
func (la *LimitAnswer) set(op *counters.Op) {
	d := &op.Decision
	la.Allowed = d.Allowed
	la.Remaining = d.Remaining
	la.Used = d.Used
	la.Full = op.Full
	la.RetryAfter = d.RetryAfter
	la.ResetAfter = d.ResetAfter
	la.MoreAfter = d.MoreAfter
	la.Delay = d.Delay
	la.Reduced, la.Loaned = d.Reduced, d.Loaned
}

// concludeRefusal is what conclude does besides for a limit that refuses.
func (a *Answer) concludeRefusal(l *Limiter, la *LimitAnswer, op *counters.Op) {
	l.adviseReturn(a, la, op)
	if a.Allowed && op.Mode == counters.CountMode && !la.Rule.Shadow {
		a.Allowed, a.Counted = false, true
	}
}
