package limiter

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
)

// Query is what a caller asks of the limiter: a check, or another call, which
// says which fields it reads. The limiter never modifies a Query or anything it
// refers to, and keeps no reference to them after the call.
type Query struct {
	Rule       string            // apply only this rule; empty applies every rule that matches
	Key        []string          // with ByKey: values of the rule's key attributes, in their order
	ByKey      bool              // identify the subject by Key, otherwise by Attributes
	Attributes []rules.Attribute // at most 32
	Costs      []UnitCost        // by unit; in a check, requests default to 1 or to the rule's cost table
	Mode       counters.Mode     // a reservation can neither peek nor count
	// If there are Subjects, Rule, Key, Attributes, Costs and Mode must be zero.
	Subjects []Subject // at most rules.MaxInlineSubjects with limits of their own
	// Slots is how many slots an acquire or a reservation takes of each limit of
	// slots; 0 means the cost in the limit's unit, or 1 if that is 0.
	Slots int64
	// SlotTTL is how long the slots of an acquire last unless they are renewed. It
	// is at most their limit's Window; 0 means the Window.
	SlotTTL time.Duration
	Who     string // names the holder of the slots, in at most MaxWho bytes
	// RequestID makes a reservation, an acquire, a change or a counting check
	// idempotent. It has at most MaxRequestID bytes; empty means none.
	RequestID string
	// AtMost makes a check of one limit take as much of its cost as is left.
	// Answer.Granted says how much that was.
	AtMost bool
	// LimitName restricts an adjustment or a reset to the limit with that name;
	// empty means all limits.
	LimitName string
	// Bill makes an adjustment correct the subject's bill, too.
	Bill bool
	// HolderID restricts a reset to one slot, by the short ID that [Holder] has;
	// see ShortSlotID. Empty means all slots.
	HolderID string
	// OnExpiry says what becomes of a reservation that is not settled in time; nil
	// means that it stays charged.
	OnExpiry *OnExpiry
	// AwaitsLoan means that a check waits up to 200 ms for a loan from another
	// region if only a region's share refuses it.
	AwaitsLoan bool
	// Waits means that the caller waits for its turn if the check is delayed. The
	// Answer of a delayed check then has a QueuePlace, unless its cost could not be
	// given back if the caller stopped waiting.
	Waits bool
	// MatchedBy is the set of rules that Subjects' nodes belong to; nil if no
	// subject has a node. If other rules are in force by now, the check fails with
	// ErrRulesChanged.
	MatchedBy *rules.Set
	// PeeksAreLooks turns peeks into looks. A look takes nothing, but is otherwise
	// treated as a check: a lease or a remembered refusal may answer it, and it
	// counts in the metrics and as demand for leases.
	PeeksAreLooks bool
}

// Peeks reports whether q only peeks. A look does not count as a peek here.
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

// hasCounts reports whether q counts for some subject; see counters.CountMode.
func (q *Query) hasCounts() bool {
	return q.Mode == counters.CountMode ||
		slices.ContainsFunc(q.Subjects, func(subj Subject) bool { return subj.Mode == counters.CountMode })
}

// Subject is a subject that comes with its own limits, or with the node of a
// descriptor tree that it matched.
type Subject struct {
	rules.InlineSubject
	// Node is the node that the descriptor Entries matched. With a Node, only
	// Shadow of InlineSubject is used. It is nil if the subject comes with its own
	// limits.
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
	// ErrRulesChanged means that new rules came into force after Query.Subjects
	// were matched. The caller must match them again.
	ErrRulesChanged = errors.New("the rules have changed since the subjects were matched")
	// ErrLevelTooLow means that some nodes do not support yet what the check needs.
	ErrLevelTooLow = errors.New("the feature level is too low")
	// ErrNamespace means that the rules don't allow inline limits, or the
	// namespace.
	ErrNamespace = rules.ErrNamespace
)

// SubjectError means that one of several subjects in a Query is invalid.
type SubjectError struct {
	Subject int // index in Query.Subjects
	Err     error
}

func (e *SubjectError) Error() string { return fmt.Sprintf("subjects[%d]: %v", e.Subject, e.Err) }

func (e *SubjectError) Unwrap() error { return e.Err }

// Errors of Usage, Adjust and Reset.
var (
	// ErrNoLimitInUnit means that the subject has no limit in the unit of a cost.
	ErrNoLimitInUnit = errors.New("there is no limit in the unit")
	// ErrNoRoom means that the table of counters has no room for another counter.
	ErrNoRoom = counters.ErrNoRoom
	// ErrNoOwner means that this node currently can't reach any node that may read
	// or change the subject's counters. A check returns it only if it has a
	// RequestID; any other check is always decided.
	ErrNoOwner = errors.New("the owner of the subject can't be reached")
)

// part returns the costs and the mode of q's i-th hit, and the index of its
// subject in Subjects. The index is 0 if q has no Subjects.
func (q *Query) part(i int) (subject int, costs []UnitCost, mode counters.Mode) {
	if len(q.Subjects) == 0 {
		return 0, q.Costs, q.Mode
	}
	return i, q.Subjects[i].Costs, q.Subjects[i].Mode
}

// subjectCosts returns the costs of q's only subject.
func (q *Query) subjectCosts() []UnitCost {
	if len(q.Subjects) > 0 {
		return q.Subjects[0].Costs
	}
	return q.Costs
}

// OnExpiry says what becomes of a reservation that nobody settles in time.
type OnExpiry struct {
	// Costs replace what was reserved, as in a settlement: empty ones give all of
	// it back. Each is at most what was reserved.
	Costs []UnitCost
}

// costs returns what the reservation is settled with at its end.
func (e *OnExpiry) costs() []UnitCost {
	if e == nil {
		return nil
	}
	return e.Costs
}

// codeOnExpiry writes or reads e, which may point to nil.
func codeOnExpiry(c *wire.Coder, e **OnExpiry) {
	wire.Optional(c, e, func(e *OnExpiry) { codeCosts(c, &e.Costs) })
}

func codeCosts(c *wire.Coder, costs *[]UnitCost) {
	wire.List(c, costs, MaxReserved, 2, func(cost *UnitCost) {
		c.Text(&cost.Unit, maxUnitBytes)
		wire.Number(c, &cost.Cost, algorithms.MaxAmount)
	})
}

func subjectCosts(subjects []Subject) (list [][]UnitCost) {
	for i := range subjects {
		list = append(list, subjects[i].Costs)
	}
	return list
}
