package document

import (
	"slices"

	"github.com/rlnode/rlnode/internal/yaml"
)

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
	Usage    string // UsageMonthly, or empty
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

// UsageMonthly is the value of `usage`.
const UsageMonthly = "monthly"

// ReservationSpec restricts a rule's reservations.
type ReservationSpec struct {
	OnExpiry string // charge: callers may ask for nothing else; empty: they may
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

// position returns the position of a key of the rule, or else that of the rule.
func (spec *RuleSpec) position(key string) yaml.Pos {
	if at, ok := spec.positions[key]; ok {
		return at
	}
	return spec.pos
}

func (spec *RuleSpec) has(key string) bool {
	_, ok := spec.positions[key]
	return ok
}

// HasAlternatives reports whether some part of spec's key has more than one attribute.
func (spec *RuleSpec) HasAlternatives() bool {
	return slices.ContainsFunc(spec.Key, func(p KeyPart) bool { return len(p) > 1 })
}

// keyHas reports whether spec's key names an attribute.
func (spec *RuleSpec) keyHas(attribute string) bool {
	return slices.ContainsFunc(spec.Key, func(p KeyPart) bool { return slices.Contains(p, attribute) })
}

// Choices yields every choice of one attribute for each part of spec's key. It
// overwrites the slice with the next choice.
func (spec *RuleSpec) Choices(yield func(key []string) bool) {
	key := make([]string, len(spec.Key))
	var choose func(i int) bool
	choose = func(i int) bool {
		if i == len(key) {
			return yield(key)
		}

		for _, name := range spec.Key[i] {
			key[i] = name
			if !choose(i + 1) {
				return false
			}
		}

		return true
	}
	choose(0)
}

// DisplacedBy returns the alternatives that come before the attributes of key.
// All of them must be absent for key to be chosen.
func (spec *RuleSpec) DisplacedBy(key []string) (absent []string) {
	for i, part := range spec.Key {
		absent = append(absent, part[:slices.Index(part, key[i])]...)
	}
	return absent
}

// needsLevel2 reports whether spec has a key that builds of level 1 can't read.
func (spec *RuleSpec) needsLevel2() bool {
	return len(spec.Not)+len(spec.Absent)+len(spec.OnTiers) > 0 || spec.HasAlternatives() || len(spec.Block) > 1 ||
		spec.Refusal != nil || spec.Cost != nil && spec.Cost.Unit != ""
}
