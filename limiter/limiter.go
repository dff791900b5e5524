package limiter

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

type scratch struct{}

// Limiter decides checks. All methods may be called concurrently.
type Limiter struct{}

// New returns a limiter over table. It decides nothing until Use gives it rules.
func New(table *counters.Table, clock *Clock) *Limiter { panic("stub") }

// Use makes set the rules in force; checks that have begun end by the rules they began with.
func (l *Limiter) Use(set *rules.Set) { panic("stub") }

// Rules returns the rules in force, nil before the first Use.
func (l *Limiter) Rules() *rules.Set { panic("stub") }

// Clock returns the limiter's clock.
func (l *Limiter) Clock() *Clock { panic("stub") }

// Check decides q now. The error wraps ErrUnknownRule or ErrKey; the answer is then not to be used.
func (l *Limiter) Check(q *Query, a *Answer) error { panic("stub") }

// CheckAt decides q at now.
func (l *Limiter) CheckAt(now algorithms.Now, q *Query, a *Answer) error { panic("stub") }

// Adjust adds n (−MaxAmount…MaxAmount) to what the subject has used of the rule's limits in requests: a penalty
// that may become a debt, or a reward. It returns the usage afterwards.
func (l *Limiter) Adjust(rule string, key []string, n int64) (*Usage, error) { panic("stub") }

// Usage tells what a subject has used of each of its limits.
func (l *Limiter) Usage(rule string, key []string) (*Usage, error) { panic("stub") }

// Reset makes a subject's counters fresh.
func (l *Limiter) Reset(rule string, key []string) error { panic("stub") }

// Usage is what one subject has used.
type Usage struct {
	Rule   *rules.Rule
	Key    []string // as counted: normalised
	Limits []LimitUsage
	Hash   rules.Hash // of rule and subject
}

// LimitUsage is what a subject has used of one limit.
type LimitUsage struct {
	Limit      *rules.Limit
	Window     time.Duration // true length of the current one
	Used       int64         // rounded up; above the capacity in debt
	Remaining  int64
	ResetAfter time.Duration
}

// TopSubject is one of the subjects refused most. Counts start when the subject entered the list and may be
// too high by what it displaced.
type TopSubject struct {
	Rule    string
	Key     []string
	Refused int64
	Checks  int64
}

// Top returns the n subjects refused most since the start, most refused first.
func (l *Limiter) Top(n int) []TopSubject { panic("stub") }

// Decisions, as RuleStats counts them.
const (
	DecisionAllowed = iota
	DecisionRefused
	DecisionShadowRefused // allowed, though a shadow rule would have refused
)

// RuleStats is a copy of one rule's counts since the process began.
type RuleStats struct {
	Rule     string               // empty: checks decided by a list, by the default, or by no rule
	Checks   [3][ByNone + 1]int64 // by decision and DecidedBy
	Headroom [11]int64            // checks by ceil(10 × remaining ÷ capacity) of the tightest limit afterwards
}

// Stats returns the counts of each rule in force, and those of no rule last.
func (l *Limiter) Stats() []RuleStats { panic("stub") }
