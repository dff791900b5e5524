package limiter

import (
	"errors"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// DecidedBy says how a check was decided, in the words of the API.
type DecidedBy uint8

// The ways to decide, weakest first where several took part in one check.
const (
	ByFallback DecidedBy = iota // here, cut off
	ByStandby                   // by the standby, acting for an owner that can't be reached
	ByForward                   // by the owner, which was asked
	ByLease                     // here, from a lease
	ByOwner                     // here: this node owns the subject
	ByList                      // by the allow or the deny list
	ByNone                      // no rule applied
)

var decidedByNames = [...]string{"fallback", "standby", "forward", "lease", "owner", "list", "none"}

// String returns the word that the API uses.
func (d DecidedBy) String() string { return decidedByNames[d] }

// Query is one check. A Query and what it refers to are only read, and not kept after the call.
type Query struct {
	Rule       string            // ask only this rule; empty: every rule that matches
	Key        []string          // with ByKey: the rule's key attributes, in its order
	ByKey      bool              // ask about Key; otherwise about Attributes
	Attributes []rules.Attribute // at most 32
	Costs      []UnitCost        // what the caller named; requests default to 1 or to the rule's cost table
	Peek       bool              // nothing is taken
	RequestID  string            // of a reservation: it is decided once; at most MaxRequestID bytes; empty: none
}

// UnitCost is a cost in one unit.
type UnitCost struct {
	Unit string
	Cost int64 // 0…algorithms.MaxAmount
}

// Answer is the outcome of a check. It is reused from check to check; its slices are valid until the next.
type Answer struct {
	Allowed      bool
	DecidedBy    DecidedBy
	RulesVersion int64
	Set          *rules.Set // the rules it was decided by
	Now          algorithms.Now

	// Limits has an entry for each limit looked at, in document order, shadow limits included.
	Limits []LimitAnswer
	// Tightest indexes the limit that the answer describes: the one that refused (of several, the one with the
	// longest RetryAfter), else the one with the least remaining for its capacity. −1 without any.
	Tightest int

	scratch scratch
}

// Delay is how long the caller has to wait for the turn of an allowed check: the longest of its limits'. Shadow rules
// delay nobody.
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

// LimitAnswer is one limit's part in an answer.
type LimitAnswer struct {
	Rule  *rules.Rule
	Limit *rules.Limit
	algorithms.Decision
	// Full: refused because the table of counters is full of others that are being refused.
	Full bool
	// Blocked: the rule's block is on, begun by this check or by one before; all of the rule's limits refuse until it is
	// over.
	Blocked bool
}

// Errors of a Query. Check wraps them with what is wrong.
var (
	// ErrUnknownRule: no rule has the name asked for.
	ErrUnknownRule = errors.New("unknown rule")
	// ErrKey: the key does not fit the rule's key attributes.
	ErrKey = rules.ErrKey
)

// Errors of Usage, Adjust and Reset.
var (
	// ErrUnit: the rule has no limit in requests.
	ErrUnit = errors.New("rule has no limit in requests")
	// ErrFull: the table of counters has no room for one more.
	ErrFull = counters.ErrFull
	// ErrNoOwner: nobody who may tell or change the counters of the subject can be reached now. Never an error of a
	// check, which is decided in any case.
	ErrNoOwner = errors.New("the owner of the subject can't be reached")
)
