package rules

import (
	"time"

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

	byName      map[string]*Rule
	units       map[string]int
	attributes  attributes // those that some part of the set looks at
	rules       index
	deny, allow list
	lists       bool // one of them has entries
	profiles    map[string]*Profile
	globals     globals
	seeds       []hashState // by Rule.Index: what hashing a subject of the rule begins with
	shares      *Shares     // nil: global limits count whole
	division    *division   // of shares; nil without
}

// Headers says which families of response headers are sent.
type Headers struct {
	IETF       bool
	XRateLimit bool
	ResetDelta bool // X-RateLimit-Reset as seconds from now instead of Unix seconds
}

// Consistency says how a rule's checks relate to its counters' owner.
type Consistency uint8

// The words of `consistency`.
const (
	Hybrid Consistency = iota // leases are spent
	Exact                     // the owner is asked each time
	Local                     // each node counts by itself
)

// OnPartition says what happens when neither owner nor standby can be reached.
type OnPartition uint8

// The words of `on_partition`.
const (
	Share           OnPartition = iota // count here, at limit / nodes
	Full                               // count here, at the whole limit
	AllowUncounted                     // allow
	RefuseUncounted                    // deny
)

var partitionWords = [...]string{"share", "full", "allow", "deny"}

func (p OnPartition) String() string { return partitionWords[p] }

// Scope says where a limit holds.
type Scope uint8

// The words of `scope`.
const (
	RegionScope Scope = iota
	GlobalScope
)

// OnLimit says what happens to a check that is over the limit.
type OnLimit uint8

// The words of `on_limit`.
const (
	Refuse OnLimit = iota
	DelayCheck
)

// Lease is a rule's setting for leases.
type Lease struct {
	Threshold float64       // 0.5…0.95: above this part used, checks go to the owner
	TTL       time.Duration // 50ms…5s; 0: a twentieth of the window, within these bounds
	Idle      float64       // above 0, at most 0.5: part of the limit that all grants of a subject may hold above Threshold
}

// Rule is a compiled rule.
type Rule struct {
	Name        string
	Index       int      // in Set.Rules
	Key         []string // names of the key attributes, in order
	Shadow      bool
	Monthly     bool // what it admits is counted by month, for bills; never of a shadow rule
	Tiered      bool
	Consistency Consistency
	OnPartition OnPartition
	Scope       Scope
	Regions     []Region // parts of a global rule; empty: equal
	Lease       Lease
	OnLimit     OnLimit
	MaxDelay    time.Duration // of OnLimit DelayCheck
	Block       time.Duration // 0: none
	IPv6Prefix  int           // bits of an IPv6 address that tell subjects apart
	Adaptive    *Adaptive     // nil: none

	key    []keyAttribute
	match  []condition
	own    []*Limit   // nil for tiered rules
	byTier [][]*Limit // of tiered rules, by number of tier
	// bySubject: limits differ by subject, because of tiers or because the document lists subjects; otherwise they are own.
	bySubject bool
	fallback  int32      // number of the tier for subjects without one, −1 for none
	cost      *costTable // nil: 1
	block     *Limit     // nil: none; see Hit.Block
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
	// Whole is the capacity of the rule's limit of which this one is a region's share; 0 of a limit that is not divided.
	Whole int64
	// Aim is what a region tries to have at hand of a fixed window that regions divide, by loans: its share or, where that is
	// less, what the version in force gives it, or an equal part where that is nothing. 0 of other limits.
	Aim int64

	standing  *standing // how regions divide it in the present window; nil: as the version in force says
	undivided *Limit    // the rule's limit of which this one is a share; nil: none
	dividing  *dividing // of the first limit of a list of a global rule; nil: none
	lowering  *lowering // of the first limit of a list that steps lower; nil: none
}

// Hit is a rule that applies to a check, for one subject.
type Hit struct {
	Rule    *Rule
	Limits  []*Limit
	Subject Hash
	// Block is the rule's block, as a limit that no answer shows: a token bucket of one, taken by a refusal and full again
	// when the block is over. nil: none. It belongs to the rule and the subject, whatever its length.
	Block *Limit
	Cost  int64 // of Requests when the check names none: 1, or what the rule's cost table says
}

// Rule returns the rule called name, or nil.
func (s *Set) Rule(name string) *Rule { return s.byName[name] }

// Profile returns the profile called name, or nil.
func (s *Set) Profile(name string) *Profile { return s.profiles[name] }

// UnitID returns the id of a unit that some limit has.
func (s *Set) UnitID(name string) (int, bool) {
	id, ok := s.units[name]
	return id, ok
}
