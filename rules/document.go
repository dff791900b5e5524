package rules

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/internal/yaml"
)

// MaxDocument bounds a document's text, in bytes.
const MaxDocument = 8 << 20

// Bounds of a document's parts.
const (
	maxRules         = 1000
	maxLimits        = 16   // of a rule, tier or override
	maxNameBytes     = 128  // of a rule, limit, unit, tier, attribute, region, profile
	maxValueBytes    = 1024 // of an attribute
	maxAttributes    = 32   // of a check, and so of a key, a match or a profile
	maxAdaptiveSteps = 100
	maxTrustedHops   = 32
	maxRegions       = 32   // of a rule
	maxZones         = 1000 // different names of time zones; there are about 600
	// maxTierLimits bounds tiered rules times limits of tiers: each pair is a limit of its own.
	maxTierLimits = 1_000_000
)

// Document is a rules file, complete and valid. It is immutable: [Document.Apply] returns a changed copy that
// shares what did not change. In texts "" and in numbers 0 say that something was left out.
type Document struct {
	Defaults    Defaults
	Default     string // allow or deny
	Headers     *Headers
	Deny, Allow []*Entry
	Rules       []*RuleSpec
	Tiers       []*TierSpec
	DefaultTier string
	Subjects    []*Group
	Profiles    []*ProfileSpec

	source string // the whole text it was parsed from; empty after a change
	asJSON bool   // source is JSON
	size   int    // of the document when it is written, roughly; at least that of its longest rendering
	at     places
	// atDefaults is where the keys of the defaults stand.
	atDefaults places
}

// places remembers where keys stand in the text.
type places map[string]yaml.Pos

// Settings are what defaults and rules both have; a rule's go before.
type Settings struct {
	Consistency string // exact, hybrid or local
	OnPartition string // share, full, allow or deny
	OnLimit     string // refuse or delay
	MaxDelay    Span
	Lease       LeaseSpec
	IPv6Prefix  int // bits
	TZ          string
}

// Defaults hold for every limit and rule that doesn't say otherwise.
type Defaults struct {
	Algorithm string
	Settings
}

// LeaseSpec says how a hybrid rule's leases work.
type LeaseSpec struct {
	Threshold float64 // 0.5…0.95: above this part used, checks go to the owner
	TTL       Span    // 50ms…5s
	AutoTTL   bool    // ttl: auto, a twentieth of the window
	Idle      float64 // above 0, at most 0.5
}

// Span is a duration with the text that it was written as.
type Span struct {
	Text string
	time.Duration
}

// Entry is an entry of the allow or the deny list: conditions that must all hold.
type Entry struct{ Match []Condition }

// Condition says that an attribute has one of some values: a string, a glob with *, or a CIDR.
type Condition struct {
	Attribute string
	Values    []string
	single    bool // written without brackets
}

// RuleSpec is a rule as written.
type RuleSpec struct {
	Name     string
	Match    []Condition
	Key      []string
	Limits   []*LimitSpec
	Tiered   bool
	Cost     *CostTable
	Scope    string // region or global
	Regions  []Region
	Shadow   bool
	Usage    string // usageMonthly, or empty
	Block    Span
	Adaptive *Adaptive
	Settings

	pos    yaml.Pos
	at     places
	broken bool // was no map: there is nothing in it to check
}

// usageMonthly is the word of `usage`.
const usageMonthly = "monthly"

// LimitSpec is a limit as written.
type LimitSpec struct {
	Name      string
	Limit     int64
	Per       string
	Algorithm string
	Burst     int64
	Unit      string
	TZ        string

	window time.Duration // of Per; a calendar word's is its nominal length
	pos    yaml.Pos
}

// CostTable weighs checks by the value of an attribute.
type CostTable struct {
	By      string
	Values  []ValueCost
	Default int64 // 1 when left out
}

// ValueCost is what a check with this value costs, 0…2^53−1.
type ValueCost struct {
	Value string
	Cost  int64
}

// Region is a region's part of a global limit, 0…1.
type Region struct {
	Name string
	Part float64
}

// Adaptive lowers a rule's limits while a source reports load.
type Adaptive struct {
	Source string
	Steps  []AdaptiveStep // by rising Above
}

// AdaptiveStep is a factor for limits while the load is above a figure.
type AdaptiveStep struct{ Above, Factor float64 }

// TierSpec is a named set of limits.
type TierSpec struct {
	Name   string
	Limits []*LimitSpec
	pos    yaml.Pos
}

// Group is the subjects that are listed of one attribute, by rising value.
type Group struct {
	Attribute string
	Subjects  []*SubjectSpec
	pos       yaml.Pos
}

// SubjectSpec gives a subject a tier, limits of its own for some rules, or both.
type SubjectSpec struct {
	Value     string // addresses in their usual writing
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

// ProfileSpec says which of a proxied request's headers become attributes.
type ProfileSpec struct {
	Name        string
	Sources     []ProfileSource
	TrustedHops int // 0 when left out, which means 1
	pos         yaml.Pos
}

// ProfileSource is an attribute and where its value comes from, such as header:X-Api-Key.
type ProfileSource struct{ Attribute, Source string }

// Size counts a document's pieces.
type Size struct {
	Rules, Tiers, Subjects, Denied, Allowed int
	Bytes                                   int // when written, roughly
}

// Size counts the pieces of d.
func (d *Document) Size() Size {
	n := Size{Rules: len(d.Rules), Tiers: len(d.Tiers), Denied: len(d.Deny), Allowed: len(d.Allow), Bytes: d.size}
	for _, g := range d.Subjects {
		n.Subjects += len(g.Subjects)
	}
	return n
}

// Weight is how many bytes a document takes at most when it is kept as a text, comments and all.
func (d *Document) Weight() int { return max(d.size, len(d.source)) }

func (d *Document) rule(name string) int {
	return slices.IndexFunc(d.Rules, func(r *RuleSpec) bool { return r.Name == name })
}

func (d *Document) tier(name string) int {
	return slices.IndexFunc(d.Tiers, func(t *TierSpec) bool { return t.Name == name })
}

func (d *Document) group(attribute string) int {
	return slices.IndexFunc(d.Subjects, func(g *Group) bool { return g.Attribute == attribute })
}
