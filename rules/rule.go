package rules

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/rules/document"
)

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

func (p OnPartition) String() string { return document.PartitionWords[p] }

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
	// Idle is the fraction of the limit that all grants of a subject together may
	// hold once more than Threshold is used: above 0, at most 0.5.
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
	Regions        []document.Region // parts of a global rule; equal if empty
	Lease          Lease
	OnLimit        OnLimit
	MaxDelay       time.Duration      // if OnLimit is DelayCheck
	Adaptive       *document.Adaptive // nil if it has none
	// Blocks are limits that no answer shows, one for each length of the rule's
	// block; nil if it has none. Each is a token bucket of one unit, which the
	// beginning of a block takes. If the rule has one length, the block is over
	// when the bucket is full again. If it has several, the block is over MaxDelay
	// earlier, and is remembered until the bucket is full. The counters' identities
	// do not include the lengths.
	Blocks     []*Limit
	Refusal    *Refusal  // nil if it has none
	Units      []string  // of the limits of a rule with CountsMonthly, of its tiers and overrides, without repetition
	CostUnitID int       // the unit of Hit.Cost: that of the cost table, or 0
	Inline     bool      // made from limits that came with a call; not in Set.Rules
	Envoy      bool      // made from a node of Envoy's descriptors; not in Set.Rules
	ForOneCall bool      // Inline, and compiled for its call alone: it asks for no lease
	inlineSeed hashState // that of the set that compiled it, if Inline

	variantIndex  int           // in Set.variants
	alternatives  *alternatives // nil if the key has none
	key           []keyAttribute
	grouping      grouping // of addresses in the key
	match, not    []condition
	absent        []int      // attributes that must be absent
	hasConditions bool       // there are match, not or absent
	onTiers       []bool     // by number of tier: the tiers of subjects that the rule applies to; nil for all
	ownLimits     []*Limit   // nil for tiered rules
	byTier        [][]*Limit // for tiered rules, by number of tier
	// bySubject means that limits differ by subject, because of tiers or listed
	// subjects. Otherwise all subjects have ownLimits.
	bySubject    bool
	fallbackTier int32      // number of default_tier, −1 for none, and for rules to which tiers do not matter
	cost         *costTable // nil if every check costs 1
}

// Bills reports whether costs in a unit are part of r's bill.
func (r *Rule) Bills(unit string) bool {
	return r.CountsMonthly && (unit == document.Requests || slices.Contains(r.Units, unit))
}

// variants returns the variants of a rule: the rule itself if its key has no
// alternatives.
func (r *Rule) variants() []*Rule {
	if r.alternatives == nil {
		return []*Rule{r}
	}
	return r.alternatives.variants
}

// isChosen reports whether the i-th attribute of r's key is one of several alternatives.
func (r *Rule) isChosen(i int) bool { return r.alternatives != nil && len(r.alternatives.parts[i]) > 1 }

// keyAttribute is one of a rule's key attributes.
type keyAttribute struct {
	number   int
	address  bool
	folding  *document.Folding // nil if values are taken as they are
	subjects *subjectTable     // nil if none are listed
}

// normalise returns a key's value as rules count it. The result may share memory with text.
func (k *keyAttribute) normalise(text string, by grouping) string {
	if k.folding != nil {
		text, _ = k.folding.Fold(nil, text)
	}
	if k.address {
		if a, ok := ipaddr.Parse(text); ok {
			return by.of(a).String()
		}
	}
	return text
}

// alternatives is what the variants of a rule share with the rule itself.
type alternatives struct {
	parts    []document.KeyPart
	variants []*Rule
}

// costTable is a compiled document.CostTable.
type costTable struct {
	attribute int
	byText    map[string]int64
	fallback  int64
}

// subjectTable finds the listed subject for an attribute's value.
type subjectTable struct {
	byText    map[string]*subject
	byAddress map[netip.Addr]*subject // grouped
}

// subject is a compiled document.SubjectSpec.
type subject struct {
	tier      int32      // number of the tier, −1 for none
	overrides []override // by rule
}

// override is a compiled document.Override.
type override struct {
	rule   int32 // Rule.variantIndex
	limits []*Limit
}

// override returns the limits that replace a rule's for sub, or nil.
func (sub *subject) override(rule int32) []*Limit {
	i, found := slices.BinarySearchFunc(sub.overrides, rule,
		func(o override, rule int32) int { return cmp.Compare(o.rule, rule) })
	if !found {
		return nil
	}
	return sub.overrides[i].limits
}
