package rules

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/internal/yaml"
)

// MaxDocument bounds a document's text, in bytes.
const MaxDocument = 8 << 20

// Bounds of a check, and so of a key, a match or a profile.
const (
	MaxAttributes = 32   // attributes, and values of a key
	MaxValueBytes = 1024 // of an attribute's value
)

// MaxShownBytes bounds a value of a key as rules count and show it, in bytes:
// folding may make a value longer, and the name of an alternative may stand
// before it.
const MaxShownBytes = maxNameBytes + len("=") + 5*MaxValueBytes

// Bounds of the parts of a document.
const (
	maxRules         = 1000
	maxLimits        = 16  // of a rule, tier or override
	maxNameBytes     = 128 // of a rule, limit, unit, tier, attribute, region, profile
	maxAdaptiveSteps = 100
	maxTrustedHops   = 32
	maxRegions       = 32   // of a rule
	maxZones         = 1000 // different names of time zones; about 600 exist
	// maxTierLimits bounds the number of tiered rules times the number of tier
	// limits: each pair compiles to its own limit.
	maxTierLimits = 1_000_000
)

// Document is a complete and valid rules file. It is immutable:
// [Document.Apply] returns a changed copy that shares the unchanged parts. An
// empty string or a 0 means that the key was left out.
type Document struct {
	Attributes  []*AttributeSpec // nil if left out: any attribute may be named
	Defaults    Defaults
	Default     string // allow or deny
	Headers     *Headers
	Deny, Allow []*Entry
	Rules       []*RuleSpec
	Tiers       []*TierSpec
	DefaultTier string
	Subjects    []*Group
	Profiles    []*ProfileSpec
	Inline      *InlineSpec // nil if left out: calls may bring any limits
	Envoy       []*EnvoySpec

	declared  map[string]*AttributeSpec // Attributes by name; nil if left out
	source    string                    // the text it was parsed from; empty after a change
	asJSON    bool                      // source is JSON
	days      bool                      // some duration was written in days
	positions positions
	loose     []Error // values that are written as neither text nor plain integers
}

// positions records the positions of keys in the text.
type positions map[string]yaml.Pos

// Settings may be given in the defaults and in rules; a rule's take precedence.
type Settings struct {
	Consistency string // exact, hybrid or local
	OnPartition string // share, full, allow or deny
	OnLimit     string // refuse or delay
	MaxDelay    Span
	Lease       LeaseSpec
	IPv4Prefix  int // bits
	IPv6Prefix  int // bits
	TZ          string
}

// Defaults apply to every limit and rule that doesn't override them.
type Defaults struct {
	Algorithm string
	Settings
}

// LeaseSpec says how a hybrid rule's leases work.
type LeaseSpec struct {
	Threshold float64 // 0.5…0.95: once more than this fraction of the limit is used, checks go to the owner
	TTL       Span    // 50ms…5s
	AutoTTL   bool    // ttl: auto, a twentieth of the window
	Idle      float64 // above 0, at most 0.5
}

// Span is a duration and the text it was written as.
type Span struct {
	Text string
	time.Duration
}

// Entry is an entry of the allow or deny list: conditions that must all hold.
type Entry struct {
	Match []Condition
	pos   yaml.Pos
}

// Condition requires that an attribute has one of several values: each a
// string, a glob with *, or a CIDR.
type Condition struct {
	Attribute string
	Values    []string
	single    bool // written without brackets
}

// ReservationSpec restricts a rule's reservations.
type ReservationSpec struct {
	OnExpiry string // charge: callers may ask for nothing else; empty: they may
}

// RuleSpec is a rule as written.
type RuleSpec struct {
	Name     string
	Match    []Condition
	Not      []Condition // none of which may hold; an absent attribute meets none
	Absent   []string    // attributes that must be absent
	OnTiers  []string    // the tiers of subjects that the rule applies to; all if empty
	Key      []KeyPart
	Limits   []*LimitSpec
	Tiered   bool
	Cost     *CostTable
	Scope    string // region or global
	Regions  []Region
	Shadow   bool
	Usage    string // usageMonthly, or empty
	Block    []Span // of a subject's first block, of the next one, and so on; the last length repeats
	Adaptive *Adaptive
	// Reservations restricts the rule's reservations; nil if left out.
	Reservations *ReservationSpec
	Refusal      *RefusalSpec
	Settings

	pos       yaml.Pos
	positions positions
	malformed bool // not a mapping, so validation skips it
}

// usageMonthly is the value of `usage`.
const usageMonthly = "monthly"

// LimitSpec is a limit as written.
type LimitSpec struct {
	Name      string
	Limit     int64
	Per       string // or ttl, in a limit of slots
	Algorithm string
	Burst     int64
	Unit      string
	TZ        string
	From      string // "first": a fixed window begins with its first hit; empty or "clock": with the clock
	Unlimited bool   // there is no limit in Unit, which is empty for all units; the other fields are empty

	window time.Duration // of Per; for a calendar word, its nominal length
	pos    yaml.Pos
}

// CostTable sets a check's cost in one unit by the value of an attribute.
type CostTable struct {
	By      string
	Unit    string // Requests if left out
	Values  []ValueCost
	Default int64 // 1 if left out
}

// ValueCost is the cost of a check with this value: 0…2^53−1.
type ValueCost struct {
	Value string
	Cost  int64
}

// Region is a region's part of a global limit: 0…1.
type Region struct {
	Name string
	Part float64
}

// Adaptive lowers a rule's limits while a source reports load.
type Adaptive struct {
	Source string
	Steps  []AdaptiveStep // sorted by Above
}

// AdaptiveStep is the factor that multiplies limits while the load is above a threshold.
type AdaptiveStep struct{ Above, Factor float64 }

// TierSpec is a named set of limits.
type TierSpec struct {
	Name   string
	Limits []*LimitSpec
	pos    yaml.Pos
}

// Group holds the listed subjects of one attribute, sorted by value.
type Group struct {
	Attribute string
	Subjects  []*SubjectSpec
	pos       yaml.Pos
}

// SubjectSpec gives a subject a tier, its own limits for some rules, or both.
type SubjectSpec struct {
	Value     string // addresses in canonical notation
	Tier      string
	Overrides []Override
	pos       yaml.Pos
}

// Override replaces a rule's limits.
type Override struct {
	Rule   string
	Limits []*LimitSpec
	pos    yaml.Pos
}

// ProfileSpec says which headers of a proxied request become attributes.
type ProfileSpec struct {
	Name        string
	Sources     []ProfileSource
	TrustedHops int // 0 if left out, which means 1
	pos         yaml.Pos
}

// ProfileSource is an attribute and the source of its value, such as header:X-Api-Key.
type ProfileSource struct{ Attribute, Source string }

// FeatureLevel returns the feature level that every node of a cluster must
// support to read d; see package agreement.
func (d *Document) FeatureLevel() int {
	if d.days || d.Inline != nil || len(d.Envoy) > 0 || d.Attributes != nil ||
		slices.ContainsFunc(d.Rules, (*RuleSpec).needsLevel2) {
		return 2
	}

	level := 1
	note := func(_ string, _ origin, limits []*LimitSpec) {
		if slices.ContainsFunc(limits, (*LimitSpec).needsLevel2) {
			level = 2
		}
	}
	d.eachLimits("", note)
	for _, t := range d.Tiers { // a tier that no rule uses counts, too
		note("", origin{}, t.Limits)
	}

	return level
}

// needsLevel2 reports whether spec has a key that builds of level 1 can't read.
func (spec *RuleSpec) needsLevel2() bool {
	return len(spec.Not)+len(spec.Absent)+len(spec.OnTiers) > 0 || spec.hasAlternatives() || len(spec.Block) > 1 ||
		spec.Refusal != nil || spec.Cost != nil && spec.Cost.Unit != ""
}

// needsLevel2 reports whether l has a key or value that builds of level 1 can't read.
func (l *LimitSpec) needsLevel2() bool {
	return l.Unlimited || l.Limit == 0 || l.From != "" || l.isSlots()
}

// eachLimits yields each list of limits that the document gives a rule, for any
// subject, with its origin. If only is not empty, it yields those of that rule.
func (d *Document) eachLimits(only string, yield func(rule string, from origin, limits []*LimitSpec)) {
	for _, r := range d.Rules {
		if only != "" && r.Name != only {
			continue
		}
		yield(r.Name, origin{}, r.Limits)
		for _, t := range d.Tiers {
			if r.Tiered {
				yield(r.Name, origin{"tier", "", t.Name}, t.Limits)
			}
		}
	}

	for _, g := range d.Subjects {
		for _, s := range g.Subjects {
			for _, o := range s.Overrides {
				if only == "" || o.Rule == only {
					yield(o.Rule, origin{"listed", g.Attribute, s.Value}, o.Limits)
				}
			}
		}
	}
}

// TextSize returns the length of the text that d was parsed from, in bytes.
func (d *Document) TextSize() int { return len(d.source) }

func (d *Document) ruleIndex(name string) int {
	return slices.IndexFunc(d.Rules, func(r *RuleSpec) bool { return r.Name == name })
}

func (d *Document) tierIndex(name string) int {
	return slices.IndexFunc(d.Tiers, func(t *TierSpec) bool { return t.Name == name })
}

func (d *Document) groupIndex(attribute string) int {
	return slices.IndexFunc(d.Subjects, func(g *Group) bool { return g.Attribute == attribute })
}
