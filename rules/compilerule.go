package rules

import (
	"cmp"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/rules/document"
)

// The values of settings that neither the rule nor the document's defaults give.
const (
	defaultThreshold = 0.85
	defaultIdle      = 0.02
)

// A rule whose key has alternatives, as in [[user, ip]], is compiled once for
// each choice among them. Such a variant is a rule like any other, with one
// more condition: the alternatives before the chosen ones must be absent. So at
// most one variant applies to a check. The variant's subjects name the chosen
// attributes: user=ann.

// compileVariants compiles a rule and returns what becomes Set.Rules[index]. It
// adds to the set's variants either this rule or, if its key has alternatives,
// a variant for each choice.
func (c *compiler) compileVariants(spec *document.RuleSpec, index int) *Rule {
	first := len(c.set.variants)
	for key := range spec.Choices {
		r := c.compileRule(spec, key)
		r.Index = index
		r.variantIndex = len(c.set.variants)
		c.set.variants = append(c.set.variants, r)
	}
	if !spec.HasAlternatives() {
		return c.set.variants[first]
	}

	shared := &alternatives{spec.Key, slices.Clone(c.set.variants[first:])}
	for _, r := range shared.variants {
		r.alternatives = shared
	}
	whole := *shared.variants[0]
	whole.Key = nil
	for _, part := range spec.Key {
		whole.Key = append(whole.Key, strings.Join(part, "|"))
	}
	return &whole
}

// compileRule compiles a rule for one choice of the attributes of its key.
func (c *compiler) compileRule(spec *document.RuleSpec, key []string) *Rule {
	r := &Rule{
		Name: spec.Name, Key: slices.Clone(key), Shadow: spec.Shadow,
		CountsMonthly: spec.Usage == document.UsageMonthly && !spec.Shadow, Tiered: spec.Tiered,
		ChargesExpired: spec.Reservations != nil && spec.Reservations.OnExpiry == "charge",
		Regions:        spec.Regions, Adaptive: spec.Adaptive, Refusal: compileRefusal(spec.Refusal),
		fallbackTier: -1, bySubject: spec.Tiered || len(spec.OnTiers) > 0,
	}
	c.applySettings(r, &spec.Settings)

	if spec.Scope == "global" {
		r.Scope = GlobalScope
	}

	for _, name := range key {
		k := keyAttribute{number: c.attributeNumber(name), address: document.HoldsAddresses(name),
			folding: c.foldingOf(name)}
		if c.doc.GroupIndex(name) >= 0 {
			k.subjects = c.subjectTable(name, r.grouping)
			r.bySubject = true
		}
		r.key = append(r.key, k)
	}

	c.compileRequirements(r, spec)
	if spec.Cost != nil {
		r.cost = c.compileCostTable(spec.Cost)
		r.CostUnitID = c.unitID(cmp.Or(spec.Cost.Unit, document.Requests))
	}

	r.Blocks = blockLimits(r.Name, spec.Block)
	if r.Tiered || r.onTiers != nil {
		r.fallbackTier = int32(c.doc.TierIndex(c.doc.DefaultTier))
	}

	if !r.Tiered {
		r.ownLimits = c.compileLimits(spec, r, document.Origin{}, spec.Limits)
		return r
	}

	for _, t := range c.doc.Tiers {
		r.byTier = append(r.byTier, c.compileLimits(spec, r, document.Origin{Kind: "tier", Name: t.Name}, t.Limits))
	}

	return r
}

// compileRequirements compiles what r, whose key is known, requires of a check.
func (c *compiler) compileRequirements(r *Rule, spec *document.RuleSpec) {
	r.match, r.not = c.compileConditions(spec.Match), c.compileConditions(spec.Not)
	absent := spec.Absent
	if spec.HasAlternatives() {
		// The list is copied, because it belongs to the document.
		absent = append(slices.Clone(absent), spec.DisplacedBy(r.Key)...)
	}
	for _, name := range absent {
		r.absent = append(r.absent, c.attributeNumber(name))
	}
	r.hasConditions = len(r.match)+len(r.not)+len(r.absent) > 0

	if len(spec.OnTiers) > 0 {
		r.onTiers = make([]bool, len(c.doc.Tiers))
	}
	for _, name := range spec.OnTiers {
		r.onTiers[c.doc.TierIndex(name)] = true
	}
}

// applySettings sets r's settings from s, which are the rule's own, or else
// from the document's defaults.
func (c *compiler) applySettings(r *Rule, s *document.Settings) {
	d := &c.doc.Defaults.Settings
	r.Consistency = map[string]Consistency{"": Hybrid, "hybrid": Hybrid, "exact": Exact,
		"local": Local}[cmp.Or(s.Consistency, d.Consistency)]

	// Without on_partition, the first of the words holds: share.
	word := slices.Index(document.PartitionWords[:], cmp.Or(s.OnPartition, d.OnPartition))
	r.OnPartition = OnPartition(max(0, word))
	r.OnLimit, r.MaxDelay = c.onLimit(s)

	r.grouping = grouping{
		ipv4: cmp.Or(s.IPv4Prefix, d.IPv4Prefix, document.DefaultIPv4Prefix),
		ipv6: cmp.Or(s.IPv6Prefix, d.IPv6Prefix, document.DefaultIPv6Prefix),
	}

	r.Lease = Lease{
		Threshold: cmp.Or(s.Lease.Threshold, d.Lease.Threshold, defaultThreshold),
		Idle:      cmp.Or(s.Lease.Idle, d.Lease.Idle, defaultIdle),
		TTL:       cmp.Or(s.Lease.TTL.Duration, d.Lease.TTL.Duration),
	}
	if s.Lease.AutoTTL {
		r.Lease.TTL = 0
	}
}
