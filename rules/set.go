package rules

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// Attribute is one fact the caller knows about a request.
type Attribute struct{ Name, Value string }

// Hash is the 128-bit hash of a rule and a subject. Its first half places the subject in the cluster.
type Hash struct{ Hi, Lo uint64 }

// Listing is what the allow and deny lists say about a check.
type Listing uint8

// The verdicts of the lists; deny takes precedence.
const (
	Unlisted Listing = iota
	Allowed
	Denied
)

// Requests is the unit of which a check that names no cost takes 1. Its UnitID is 0.
const Requests = "requests"

// Set is a compiled document. It is immutable and shared by all checks decided by its version.
type Set struct {
	Version     int64
	Document    *Document
	Headers     Headers
	DefaultDeny bool     // `default: deny`
	Rules       []*Rule  // in document order
	Units       []string // by UnitID; Units[0] is Requests

	byName           map[string]*Rule
	units            map[string]int
	attributes       attributes // those that any part of the set looks at
	rules            index
	deny, allow      list
	lists            bool // at least one of the lists has entries
	profiles         map[string]*Profile
	globals          globals
	seeds            []hashState // by Rule.Index: the state from which hashing a subject of the rule starts
	inlineSeed       hashState   // the state from which hashing a subject with inline limits starts
	inline           *inlineSets
	inlineNamespaces *Namespaces           // of the document; nil without its section
	inlineNames      map[string]inlineName // by namespace; "" for all others
	names            []string              // see Names
	envoy            *envoyTrees           // nil without the section
	shares           *Shares               // nil if global limits count whole
	division         *division             // of shares; nil without shares
}

// Headers says which families of response headers to send.
type Headers struct {
	IETF       bool
	XRateLimit bool
	ResetDelta bool // X-RateLimit-Reset as seconds from now instead of Unix seconds
}

// Consistency says how a rule's checks are counted across nodes.
type Consistency uint8

// The values of `consistency`.
const (
	Hybrid Consistency = iota // nodes spend leases
	Exact                     // the owner is asked each time
	Local                     // each node counts by itself
)

// OnPartition says what happens if neither owner nor standby can be reached.
type OnPartition uint8

// The values of `on_partition`.
const (
	Share           OnPartition = iota // count here, against limit / nodes
	Full                               // count here, against the whole limit
	AllowUncounted                     // allow without counting
	RefuseUncounted                    // deny without counting
)

var partitionWords = [...]string{"share", "full", "allow", "deny"}

func (p OnPartition) String() string { return partitionWords[p] }

// Scope says where a limit holds.
type Scope uint8

// The values of `scope`.
const (
	RegionScope Scope = iota
	GlobalScope
)

// OnLimit says what happens to a check over the limit.
type OnLimit uint8

// The values of `on_limit`.
const (
	Refuse OnLimit = iota
	DelayCheck
)

// Lease is a rule's settings for leases.
type Lease struct {
	Threshold float64       // 0.5…0.95: when more than this part is used, checks go to the owner
	TTL       time.Duration // 50ms…5s; 0 means a twentieth of the window, within these bounds
	Idle      float64       // above 0, at most 0.5: the part of the limit that all grants of a subject may hold above Threshold
}

// Rule is a compiled rule.
type Rule struct {
	Name        string
	Index       int      // in Set.Rules; if it is not in there, in Set.Names
	Key         []string // names of the key attributes, in order
	Shadow      bool
	Monthly     bool // what it admits is counted by month, for bills; never set for a shadow rule
	Tiered      bool
	Consistency Consistency
	OnPartition OnPartition
	Scope       Scope
	Regions     []Region // parts of a global rule; equal if empty
	Lease       Lease
	OnLimit     OnLimit
	MaxDelay    time.Duration // if OnLimit is DelayCheck
	Block       time.Duration // 0 if it has none
	IPv6Prefix  int           // how many bits of an IPv6 address tell subjects apart
	Adaptive    *Adaptive     // nil if it has none
	Inline      bool          // it stands for limits that came with a call, and is not in Set.Rules
	Envoy       bool          // it is of a node of Envoy's, and not in Set.Rules
	Uninterned  bool          // Inline, and compiled for its call alone: it takes no lease
	inlineSeed  hashState     // of the set that compiled it; if Inline

	key    []keyAttribute
	match  []condition
	own    []*Limit   // nil for tiered rules
	byTier [][]*Limit // for tiered rules, by number of tier
	// bySubject is set if limits differ by subject, because of tiers or listed subjects; if not, all subjects have own.
	bySubject bool
	fallback  int32      // number of the tier for subjects without one, −1 for none
	cost      *costTable // nil if every check costs 1
	block     *Limit     // nil if it has none; see Hit.Block
}

// Limit is a compiled limit of a rule, whether the rule's own, its tier's or an override's.
type Limit struct {
	algorithms.Limit
	Name   string // its own, or the rule's if the rule has one limit, or rule/unit/window
	Unit   string
	UnitID int
	Window string // as written: "1m", "day"
	// ID is a hash of the unit, the algorithm and the window (for calendar windows, with the zone). Together with the
	// subject's hash it identifies the counter, so amounts and names can change without losing what was used.
	ID uint64
	// Whole is the capacity of the undivided limit if this is a region's share; otherwise 0.
	Whole int64
	// Aim is how much of a fixed window divided among regions a region tries to have available by borrowing: its share,
	// or, if larger, what the version in force gives it, or an equal part if both are 0. It is 0 for other limits.
	Aim int64
	// Place is the limit's place in the call, if it came with one: those limits are sorted.
	Place int

	inWindow  *windowDivision // how regions divide it in the present window; nil if as in the version in force
	undivided *Limit          // the limit of which this is a share; nil if it isn't one
	dividing  *dividing       // set for the first limit of a global rule's list; else nil
	lowering  *lowering       // set for the first limit of a list that steps lower; else nil
}

// UndividedCapacity returns the capacity that answers show: that of all regions together, if regions divide the limit.
func (l *Limit) UndividedCapacity() int64 {
	if l.Whole > 0 {
		return l.Whole
	}
	return l.Capacity()
}

// Hit is a rule that applies to a check, for one subject.
type Hit struct {
	Rule    *Rule
	Limits  []*Limit
	Subject Hash
	// Block is the rule's block as a limit that no answer shows: a token bucket of one, which a refusal takes and which
	// is full again when the block is over. It is nil if the rule has none. It belongs to the rule and the subject,
	// whatever its length.
	Block *Limit
	Cost  int64 // of Requests if the check names none: 1, or as the rule's cost table says
}

// Rule returns the rule with this name, else that of the node of Envoy's with this path, or nil.
func (s *Set) Rule(name string) *Rule {
	r := s.byName[name]
	if r == nil && s.envoy != nil {
		if n := s.envoy.paths[name]; n != nil {
			r = n.Rule
		}
	}
	return r
}

// Profile returns the profile with this name, or nil.
func (s *Set) Profile(name string) *Profile { return s.profiles[name] }

// UnitID returns the ID of a unit. It reports whether any limit uses the unit.
func (s *Set) UnitID(name string) (int, bool) {
	id, ok := s.units[name]
	return id, ok
}
