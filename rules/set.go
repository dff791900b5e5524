package rules

import (
	"github.com/rlnode/rlnode/algorithms"
)

// Attribute is what the caller knows about a request.
type Attribute struct{ Name, Value string }

// Hash is the 128-bit hash of a rule and a subject; its first half places the subject in the cluster.
type Hash struct{ Hi, Lo uint64 }

// Listing is what the allow and deny lists say of a check.
type Listing uint8

// The lists' verdicts; deny wins.
const (
	Unlisted Listing = iota
	Allowed
	Denied
)

// Requests is the unit that a check costs 1 of when it names no cost. Its UnitID is 0.
const Requests = "requests"

// Set is a compiled document: immutable, shared by all checks that are decided by one version.
type Set struct {
	Version     int64
	Document    *Document
	Headers     Headers
	DefaultDeny bool     // `default: deny`
	Rules       []*Rule  // in document order
	Units       []string // by UnitID; Units[0] is Requests
}

// Headers says which families of response headers are sent.
type Headers struct {
	IETF       bool
	XRateLimit bool
	ResetDelta bool // X-RateLimit-Reset as seconds from now instead of Unix seconds
}

// Rule is a compiled rule.
type Rule struct {
	Name   string
	Index  int      // in Set.Rules
	Key    []string // names of the key attributes, in order
	Shadow bool
	Tiered bool
}

// Limit is a compiled limit of a rule, be it the rule's own, its tier's or an override's.
type Limit struct {
	algorithms.Limit
	Name   string // its own, else the rule's if the rule has one limit, else rule/unit/window
	Unit   string
	UnitID int
	Window string // as written: "1m", "day"
	// ID is a hash of unit, algorithm and window (with its zone, for calendar windows): with the subject's hash
	// it identifies the counter, so that amounts and names can change without losing what was used.
	ID uint64
}

// Hit is a rule that applies to a check, for one subject.
type Hit struct {
	Rule    *Rule
	Limits  []*Limit
	Subject Hash
	Cost    int64 // of Requests when the check names none: 1, or what the rule's cost table says
}

// Match is the outcome of matching a check. It is reused from check to check without allocating.
type Match struct {
	List Listing
	Hits []Hit // in document order
}

// Rule returns the rule called name, or nil.
func (s *Set) Rule(name string) *Rule { panic("stub") }

// UnitID returns the id of a unit that some limit has.
func (s *Set) UnitID(name string) (int, bool) { panic("stub") }

// Match finds what applies to attrs. only restricts it to one rule; nil asks all. Of attributes named twice the
// first counts.
func (s *Set) Match(attrs []Attribute, only *Rule, m *Match) { panic("stub") }

// MatchKey finds what applies to one subject of r, given by its key attributes' values in order. Match
// conditions and cost tables' attributes are not consulted; the lists see only the key. The error says how the
// number of values is wrong.
func (s *Set) MatchKey(r *Rule, key []string, m *Match) error { panic("stub") }

// SubjectOf returns the values of r's key in attrs as they are counted: normalised, addresses grouped.
func (r *Rule) SubjectOf(attrs []Attribute) []string { panic("stub") }

// NormalKey returns key as it is counted: normalised, addresses grouped.
func (r *Rule) NormalKey(key []string) []string { panic("stub") }
