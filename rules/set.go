package rules

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// Attribute is one fact that the caller knows about a request.
type Attribute struct{ Name, Value string }

// Hash is the 128-bit hash of a rule and a subject. Its first half selects the
// subject's partition and shard.
type Hash struct{ Hi, Lo uint64 }

// Hash implements entries.Key: h itself is a hash that nobody can predict.
func (h Hash) Hash() uint64 { return h.Lo }

// Listing is the verdict of the allow and deny lists on a check.
type Listing uint8

// The verdicts of the lists; deny takes precedence.
const (
	Unlisted Listing = iota
	Allowed
	Denied
)

// Requests is the default unit: a check that gives no cost takes 1 request. Its UnitID is 0.
const Requests = "requests"

// Set is a compiled document. It is immutable; all checks that are decided by its version share it.
type Set struct {
	Version     int64
	Document    *Document
	Headers     Headers
	DefaultDeny bool     // `default: deny`
	Rules       []*Rule  // in document order
	Units       []string // by UnitID; Units[0] is Requests

	byName     map[string]*Rule
	units      map[string]int
	attributes attributes // those that any part of the set uses
	// variants are the rules that can apply to attributes: Rules, but with its
	// variants in place of each rule whose key has alternatives.
	variants         []*Rule
	rules            index // of the variants
	deny, allow      list
	hasLists         bool // at least one of the lists has entries, in the document or beside it
	hasZero          bool // some limit is 0: see Limit.RefusesAll
	namesDecide      bool // the names of a check's attributes alone say which rules may apply
	profiles         map[string]*Profile
	globals          globals
	slotTTLs         map[uint64]time.Duration // of the document's limits of slots, by Limit.Source
	seeds            []hashState              // by Rule.number: the initial state for hashing the rule's subjects
	inlineSeed       hashState                // the initial state for hashing subjects with inline limits
	inline           *inlineSets
	inlineNamespaces *Namespaces           // of the document; nil without its section
	inlineNames      map[string]inlineName // by namespace; "" for all that the document does not name
	names            []string              // see Names
	envoy            *envoyTrees           // nil without the section
	shares           *Shares               // nil if global limits are not divided
	division         *division             // of shares; nil without shares
	overlay          *overlay              // what entries add; nil without entries
	compiled         *byte                 // identifies the call of Compile that all copies of the set come from
	key              hashKey               // of seeds
}

// Headers says which families of response headers to send.
type Headers struct {
	IETF       bool
	XRateLimit bool
	ResetDelta bool // X-RateLimit-Reset as seconds from now instead of Unix seconds
}

// Consistency says how nodes count a rule's checks together.
type Consistency uint8

// The values of `consistency`.
const (
	Hybrid Consistency = iota // nodes spend leases
	Exact                     // nodes ask the owner each time
	Local                     // each node counts by itself
)

// OnPartition says what a node does if it can reach neither owner nor standby.
type OnPartition uint8

// The values of `on_partition`.
const (
	Share           OnPartition = iota // count here, against limit / nodes
	Full                               // count here, against the whole limit
	AllowUncounted                     // allow without counting
	RefuseUncounted                    // refuse without counting
)

var partitionWords = [...]string{"share", "full", "allow", "deny"}

func (p OnPartition) String() string { return partitionWords[p] }

// Scope says whether a limit holds in one region or over all of them.
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
	Threshold float64       // 0.5…0.95: once more than this fraction of the limit is used, checks go to the owner
	TTL       time.Duration // 50ms…5s; 0 means a twentieth of the window, within these bounds
	// Idle is the fraction of the limit that all grants of a subject may hold
	// above Threshold: above 0, at most 0.5.
	Idle float64
}

// Rule is a compiled rule.
type Rule struct {
	Name          string
	Index         int      // in Set.Rules; for a rule that is not in there, in Set.Names
	Key           []string // names of the key attributes, in order; user|ip for alternatives, unless this is a variant
	Shadow        bool
	CountsMonthly bool // admitted cost is counted by month, for bills; never set for a shadow rule
	// ChargesExpired means that what is reserved and never settled stays charged,
	// whatever the caller asks for.
	ChargesExpired bool
	Tiered         bool
	Consistency    Consistency
	OnPartition    OnPartition
	Scope          Scope
	Regions        []Region // parts of a global rule; equal if empty
	Lease          Lease
	OnLimit        OnLimit
	MaxDelay       time.Duration // if OnLimit is DelayCheck
	Adaptive       *Adaptive     // nil if it has none
	// Blocks are limits that no answer shows, one for each length of the rule's
	// block; nil if it has none. Each is a token bucket of one unit, which the
	// beginning of a block takes. The block of a rule with one length is over when
	// the bucket is full again. With several lengths, it is over MaxDelay earlier,
	// and is remembered until the bucket is full. Counters depend on the rule and
	// the subject, not on the lengths.
	Blocks     []*Limit
	Refusal    *Refusal  // nil if it has none
	Units      []string  // of the limits of a rule with CountsMonthly, of its tiers and overrides, without repetition
	CostUnitID int       // the unit of Hit.Cost: that of the cost table, or 0
	Inline     bool      // made from limits that came with a call; not in Set.Rules
	Envoy      bool      // made from a node of Envoy's descriptors; not in Set.Rules
	Uninterned bool      // Inline, and compiled for its call alone: it takes no lease
	inlineSeed hashState // that of the set that compiled it, if Inline

	number       int           // in Set.variants
	alternatives *alternatives // nil if the key has none
	key          []keyAttribute
	grouping     grouping // of addresses in the key
	match, not   []condition
	absent       []int      // attributes that must be absent
	conditional  bool       // there are match, not or absent
	onTiers      []bool     // by number of tier: the tiers of subjects that the rule applies to; nil for all
	ownLimits    []*Limit   // nil for tiered rules
	byTier       [][]*Limit // for tiered rules, by number of tier
	// bySubject means that limits differ by subject, because of tiers or listed
	// subjects. Otherwise all subjects have ownLimits.
	bySubject    bool
	fallbackTier int32      // number of default_tier, −1 for none, and for rules to which tiers do not matter
	cost         *costTable // nil if every check costs 1
}

// Limit is a compiled limit of a rule, whether the rule's own, its tier's or an override's.
type Limit struct {
	algorithms.Limit
	Name   string // its own, or what [Document.limitName] makes
	Unit   string
	UnitID int
	Window string // as written: "1m", "day"
	// ID is a hash of the unit, the algorithm and the window (for calendar windows,
	// with the zone). Together with the subject's hash it identifies the counter.
	// Amounts and names are not part of it, so they can change without losing what
	// was used.
	ID uint64
	// WholeCapacity and WholeAmount are the capacity and the Amount of the
	// undivided limit if this is a region's share; otherwise 0.
	WholeCapacity, WholeAmount int64
	// BorrowTarget is the amount that a region tries to keep available by
	// borrowing, for a fixed window divided among regions: its share or, if larger,
	// what the version in force gives it, or an equal part if both are 0. It is 0
	// for other limits.
	BorrowTarget int64
	// Source identifies what gives a limit of slots: the rule, a tier, a listed
	// subject or an entry. Set.SlotTTL finds the present ttl by it. It means
	// nothing for limits that came with a call.
	Source uint64
	// Unlimited means that there is no limit in Unit, which is empty for all units.
	// Only Name and Unit are set.
	Unlimited bool
	// CallIndex is the index of an inline limit in its call. Inline limits are sorted by ID.
	CallIndex int

	inWindow     *windowDivision // how regions divide it in the current window; nil if as in the version in force
	undivided    *Limit          // the limit of which this is a share; nil if it is no share
	configured   *Limit          // see Configured; nil if it is this one
	shareCache   *shareCache     // only for the first limit of each list of a global rule; else nil
	loweredCache *loweredCache   // only for the first limit of each list of a rule with `adaptive`; else nil
}

// HasZero reports whether some limit of s is 0; see [Limit.RefusesAll].
func (s *Set) HasZero() bool { return s.hasZero }

// RefusesAll reports whether l is configured to be 0: nothing but a cost of 0
// is allowed, whatever region or node decides.
func (l *Limit) RefusesAll() bool { return l.Configured().Capacity() == 0 && !l.Unlimited }

// Bills reports whether costs in a unit are part of r's bill.
func (r *Rule) Bills(unit string) bool {
	return r.CountsMonthly && (unit == Requests || slices.Contains(r.Units, unit))
}

// Hit is a rule that applies to a check, for one subject.
type Hit struct {
	Rule    *Rule
	Limits  []*Limit
	Subject Hash
	// Cost is in the unit Rule.CostUnitID, for a check that gives none: 1, or
	// the value from the rule's cost table.
	Cost int64
}

// Rule returns the rule with this name, or else the rule of the EnvoyNode with this path, or nil.
func (s *Set) Rule(name string) *Rule {
	r := s.byName[name]
	if r == nil && s.envoy != nil {
		if n := s.envoy.paths[name]; n != nil {
			r = n.Rule
		}
	}
	return r
}

// SameRules reports whether both sets have the same rules, with the same nodes
// of Envoy's, whatever entries are beside them.
func (s *Set) SameRules(o *Set) bool {
	return s.compiled == o.compiled && s.envoy == o.envoy && s.shares == o.shares
}

// Profile returns the profile with this name, or nil.
func (s *Set) Profile(name string) *Profile { return s.profiles[name] }

// UnitID returns the ID of a unit, and whether any limit uses the unit.
func (s *Set) UnitID(name string) (int, bool) {
	id, ok := s.units[name]
	return id, ok
}
