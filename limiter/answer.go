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

// DecidedBy is how a check was decided. Its strings are the API's words.
type DecidedBy uint8

// The ways to decide a check, weakest first. A check decided in several ways reports the weakest.
const (
	ByFallback DecidedBy = iota // here, cut off from owner and standby
	ByStandby                   // by the standby, acting for an owner that can't be reached
	ByForward                   // by the owner, on another node
	ByLease                     // here, from a lease
	ByOwner                     // here: this node owns the subject
	ByList                      // by the allow list or the deny list
	ByNone                      // no rule applied
)

var decidedByNames = [...]string{"fallback", "standby", "forward", "lease", "owner", "list", "none"}

// String returns the API's word for d.
func (d DecidedBy) String() string { return decidedByNames[d] }

// Query is one check. The limiter only reads a Query and what it refers to, and keeps neither after the call.
type Query struct {
	Rule       string            // the only rule to ask; empty for every rule that matches
	Key        []string          // with ByKey: values of the rule's key attributes, in their order
	ByKey      bool              // identify the subject by Key, otherwise by Attributes
	Attributes []rules.Attribute // at most 32
	Costs      []UnitCost        // costs that the caller named; for checks, requests default to 1 or to the rule's cost table
	Mode       counters.Mode     // peek and count are for checks that are not reservations
	// Subjects bring their limits, or the node of a tree that they matched. Then Rule, Key, Attributes, Costs and Mode don't matter.
	Subjects []Subject // of those that bring limits, at most rules.MaxInlineSubjects
	// RequestID has at most MaxRequestID bytes; empty for none. With it, a reservation, a change or a counting check is carried
	// out once.
	RequestID string
	// Matched is the set of rules in which Subjects found their nodes; nil if none did. Once other rules are in force, the check
	// fails with ErrRulesChanged.
	Matched *rules.Set
	// Looks makes subjects with the mode Peek looks: a lease or a remembered refusal answers them, and they count as demand for
	// leases and in the figures, as checks do.
	Looks bool
}

// Peeks reports whether q only peeks. A look takes nothing either, but is treated as a check.
func (q *Query) Peeks() bool {
	if q.Looks {
		return false
	}
	for i := range q.Subjects {
		if q.Subjects[i].Mode != counters.PeekMode {
			return false
		}
	}
	return len(q.Subjects) > 0 || q.Mode == counters.PeekMode
}

// counts reports whether q takes the cost of something whether or not it fits.
func (q *Query) counts() bool {
	return q.Mode == counters.CountMode || slices.ContainsFunc(q.Subjects, func(s Subject) bool { return s.Mode == counters.CountMode })
}

// Subject is a subject that brings its limits, or has matched a node of a tree, with what the check takes of them.
type Subject struct {
	rules.InlineSubject
	// Node is what the descriptor Entries has matched; nil if the subject brings limits. Of InlineSubject then only Shadow counts.
	Node    *rules.EnvoyNode
	Entries []rules.EnvoyEntry
	Costs   []UnitCost
	Mode    counters.Mode
}

// MaxCosts bounds the units of which a caller may name a cost.
const MaxCosts = 16

// UnitCost is a cost in one unit.
type UnitCost struct {
	Unit string
	Cost int64 // 0…algorithms.MaxAmount; of an adjustment, also below zero
}

// Answer is the outcome of a check. It is reused from check to check; its slices are valid until the next check.
type Answer struct {
	Allowed      bool
	Counted      bool // not allowed, but taken all the same: limits that refused were only counted
	DecidedBy    DecidedBy
	RulesVersion int64
	Set          *rules.Set // the rules that decided the check
	Now          algorithms.Now

	// Limits has an entry for each limit that was asked, in document order, shadow limits included.
	Limits []LimitAnswer
	// Tightest indexes the limit that the answer describes: the one that refused (if several did, the one with the longest
	// RetryAfter), otherwise the one with the least remaining relative to its capacity. It is −1 if there is none.
	Tightest int

	scratch scratch
}

// Denied reports whether the deny list refused the check, or no rule applied and the rules' default is to deny. No limit
// has refused it, then.
func (a *Answer) Denied() bool { return !a.Allowed && a.DecidedBy >= ByList }

// Delay returns how long the caller must wait before it goes on with an allowed check: the longest delay of its limits. Shadow
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

// MoreAfter returns how long until more is available of the i-th limit than now; zero where that is not known, or nothing is
// used. For a sliding window or log it is known only after a refusal, or, for a sliding window, when this node admitted the
// check as its owner.
func (a *Answer) MoreAfter(i int) (more time.Duration) {
	la := &a.Limits[i]
	switch {
	case la.Blocked, la.Full:
	case la.Limit.Kind == algorithms.FixedWindow, la.Limit.Kind == algorithms.FirstWindow:
		more = la.ResetAfter
	case la.Limit.Kind.Bucket():
		if la.Limit.Amount == 0 || a.DecidedBy == ByFallback || la.Rule.Consistency == rules.Local {
			break // a node's share drains more slowly
		}
		// The time of one unit, rounded up.
		more = min((la.Limit.Limit.Window-1)/time.Duration(la.Limit.Amount)+1, la.ResetAfter)
	case la.Limit.Kind == algorithms.SlidingWindow && a.scratch.here && a.Allowed:
		more = a.scratch.ops[i].MoreAfter(a.Now)
	}
	if la.RetryAfter > 0 && (more == 0 || la.RetryAfter < more) {
		more = la.RetryAfter
	}
	return more
}

// LimitAnswer is one limit's part of an answer.
type LimitAnswer struct {
	Rule  *rules.Rule
	Limit *rules.Limit
	algorithms.Decision
	// Full means refused because the table of counters is full of subjects that are being refused.
	Full bool
	// Blocked means that the rule's block is on, begun by this check or an earlier one. All limits of the rule refuse until it
	// ends.
	Blocked bool
	Subject int32 // the index in Query.Subjects; 0 without them
}

// Errors of a Query. Check wraps them with the details.
var (
	// ErrUnknownRule means that no rule has the requested name.
	ErrUnknownRule = errors.New("unknown rule")
	// ErrKey means that the key does not fit the rule's key attributes.
	ErrKey = rules.ErrKey
	// ErrInline means that the limits of the call are wrong.
	ErrInline = rules.ErrInline
	// ErrRulesChanged means that other rules have come into force since Query.Subjects were matched: match them again.
	ErrRulesChanged = errors.New("the rules have changed meanwhile")
	// ErrLevelTooLow means that not all nodes of the cluster know yet what the check asks for.
	ErrLevelTooLow = errors.New("the feature level is too low")
	// ErrNamespace means that the rules do not allow the limits of the call, or not in that namespace.
	ErrNamespace = rules.ErrNamespace
)

// SubjectError means that one of the several subjects of a Query is wrong.
type SubjectError struct {
	Subject int // the index in Query.Subjects
	Err     error
}

// Error names the subject.
func (e *SubjectError) Error() string { return fmt.Sprintf("subjects[%d]: %v", e.Subject, e.Err) }

// Unwrap returns Err.
func (e *SubjectError) Unwrap() error { return e.Err }

// Errors of Usage, Adjust and Reset.
var (
	// ErrNoLimitInUnit means that the subject has no limit in a unit of the costs.
	ErrNoLimitInUnit = errors.New("there is no limit in the unit")
	// ErrFull means that the table of counters has no room for another one.
	ErrFull = counters.ErrFull
	// ErrNoOwner means that no node that may read or change the subject's counters can be reached now. Check never returns it:
	// a check is always decided.
	ErrNoOwner = errors.New("the owner of the subject can't be reached")
)

// InOrder returns which of Limits is the n-th in the order of the document or, of limits that came with the call, of the call.
func (a *Answer) InOrder(n int) int {
	if !a.Limits[n].Rule.Inline {
		return n
	}
	first := 0
	for i := range a.scratch.match.Hits {
		next := min(first+len(a.scratch.match.Hits[i].Limits), len(a.Limits))
		if n < next {
			return first + max(0, slices.IndexFunc(a.Limits[first:next], func(la LimitAnswer) bool { return la.Limit.Place == n-first }))
		}
		first = next
	}
	return n
}

// Tighter reports whether la describes a check better than b, which comes before it. A refusal is tighter than an admission,
// and the longest RetryAfter is the tightest refusal. Otherwise the least remaining relative to capacity is.
func (la *LimitAnswer) Tighter(b *LimitAnswer) bool {
	switch {
	case la.Allowed != b.Allowed:
		return b.Allowed
	case !la.Allowed:
		// As an unsigned number Never (−1) is the longest.
		return uint64(la.RetryAfter) > uint64(b.RetryAfter)
	}
	aHi, aLo := bits.Mul64(uint64(la.Remaining), uint64(b.Limit.Capacity()))
	bHi, bLo := bits.Mul64(uint64(b.Remaining), uint64(la.Limit.Capacity()))
	return aHi < bHi || aHi == bHi && aLo < bLo
}

// comesBefore reports whether la describes a check better than b, an earlier limit: because it is tighter or, of two inline
// limits of one subject, which are sorted, because it comes first in the call.
func (la *LimitAnswer) comesBefore(b *LimitAnswer) bool {
	return la.Tighter(b) || la.Limit.Place < b.Limit.Place && la.Rule == b.Rule && !b.Tighter(la)
}
