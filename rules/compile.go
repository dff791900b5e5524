package rules

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/algorithms"
)

// The values of settings that neither the rule nor the document's defaults give.
const (
	defaultThreshold = 0.85
	defaultIdle      = 0.02
	defaultMaxDelay  = 5 * time.Second
)

// Compile compiles doc for matching checks. The result depends only on the
// document and the version number, so all nodes that compile a version get the
// same Set.
func Compile(doc *Document, version int64) (*Set, error) {
	s := &Set{
		Version: version, Document: doc,
		Headers:     Headers{IETF: true, XRateLimit: true},
		DefaultDeny: doc.Default == "deny",
		Units:       []string{Requests},
		byName:      make(map[string]*Rule, len(doc.Rules)),
		units:       map[string]int{Requests: 0},
		slotTTLs:    map[uint64]time.Duration{},
		attributes:  newAttributes(doc.Attributes),
		inline:      &inlineSets{},
		compiled:    new(byte),
	}
	if doc.Headers != nil {
		s.Headers = *doc.Headers
	}

	c := &compiler{set: s, doc: doc, tables: map[tableKey]*subjectTable{}, listed: map[*SubjectSpec]*subject{}}
	c.compileRules()
	c.noteSlotTTLs()
	// The names of rules come before those of inline limits, as in Names.
	s.nameInline(doc.Inline)
	c.compileEnvoy()
	s.seed(hashKey{})
	c.fillSubjectTables()

	if c.err != nil {
		return nil, fmt.Errorf("compile rules: %w", c.err)
	}

	// The summary comes after the subjects, because their own limits are part of
	// it.
	s.globals = c.summarizeGlobals()
	variants := make([]indexed, len(s.variants))
	for i, r := range s.variants {
		variants[i] = indexed{r.match, r.key}
	}

	s.rules = buildIndex(variants)
	s.deny, s.allow = c.compileList(doc.Deny), c.compileList(doc.Allow)
	s.noteLists()
	s.namesDecide = !slices.ContainsFunc(s.rules.attributes, func(a attributeIndex) bool { return !a.presenceOnly })
	s.profiles = compileProfiles(doc.Profiles)

	return s, nil
}

// compiler is one Compile in progress.
type compiler struct {
	set         *Set
	doc         *Document
	tables      map[tableKey]*subjectTable
	tiers       map[string]int32          // their numbers; nil until the first is needed
	listed      map[*SubjectSpec]*subject // filled only if there are global rules
	globalLists int32                     // number of limit lists of global rules
	extends     bool                      // the set's tables of attributes and units are shared with other sets
	err         error                     // the first error
}

func (c *compiler) attributeNumber(name string) int {
	if n := c.set.attributes.find(name); n >= 0 {
		return n
	}
	c.extend()
	return c.set.attributes.add(name)
}

func (c *compiler) unitID(name string) int {
	n, ok := c.set.units[name]
	if !ok {
		c.extend()
		n = len(c.set.Units)
		c.set.units[name] = n
		c.set.Units = append(c.set.Units, name)
	}
	return n
}

func (c *compiler) compileRules() {
	units := c.doc.unitsOfRules()
	for i, spec := range c.doc.Rules {
		r := c.compileVariants(spec, i)
		for _, variant := range r.all() {
			variant.Units = units[spec.Name]
		}
		c.set.Rules = append(c.set.Rules, r)
		c.set.byName[r.Name] = r
	}
}

// compileRule compiles a rule for one choice of the attributes of its key.
func (c *compiler) compileRule(spec *RuleSpec, key []string) *Rule {
	r := &Rule{
		Name: spec.Name, Key: slices.Clone(key), Shadow: spec.Shadow,
		CountsMonthly: spec.Usage == usageMonthly && !spec.Shadow, Tiered: spec.Tiered,
		ChargesExpired: spec.Reservations != nil && spec.Reservations.OnExpiry == "charge",
		Regions:        spec.Regions, Adaptive: spec.Adaptive, Refusal: compileRefusal(spec.Refusal),
		fallbackTier: -1, bySubject: spec.Tiered || len(spec.OnTiers) > 0,
	}
	c.applySettings(r, &spec.Settings)

	if spec.Scope == "global" {
		r.Scope = GlobalScope
	}

	for _, name := range key {
		k := keyAttribute{number: c.attributeNumber(name), address: holdsAddresses(name), folding: c.foldingOf(name)}
		if c.doc.groupIndex(name) >= 0 {
			k.subjects = c.subjectTable(name, r.grouping)
			r.bySubject = true
		}
		r.key = append(r.key, k)
	}

	c.compileRequirements(r, spec)
	if spec.Cost != nil {
		r.cost = c.compileCostTable(spec.Cost)
		r.CostUnitID = c.unitID(cmp.Or(spec.Cost.Unit, Requests))
	}

	r.Blocks = blockLimits(r.Name, spec.Block)
	if r.Tiered || r.onTiers != nil {
		r.fallbackTier = int32(c.doc.tierIndex(c.doc.DefaultTier))
	}

	if !r.Tiered {
		r.ownLimits = c.compileLimits(spec, r, origin{}, spec.Limits)
		return r
	}

	for _, t := range c.doc.Tiers {
		r.byTier = append(r.byTier, c.compileLimits(spec, r, origin{"tier", "", t.Name}, t.Limits))
	}

	return r
}

// compileRequirements compiles what r, whose key is known, requires of a check.
func (c *compiler) compileRequirements(r *Rule, spec *RuleSpec) {
	r.match, r.not = c.compileConditions(spec.Match), c.compileConditions(spec.Not)
	absent := spec.Absent
	if spec.hasAlternatives() {
		// The list is copied, because it belongs to the document.
		absent = append(slices.Clone(absent), spec.displacedBy(r.Key)...)
	}
	for _, name := range absent {
		r.absent = append(r.absent, c.attributeNumber(name))
	}
	r.conditional = len(r.match)+len(r.not)+len(r.absent) > 0

	if len(spec.OnTiers) > 0 {
		r.onTiers = make([]bool, len(c.doc.Tiers))
	}
	for _, name := range spec.OnTiers {
		r.onTiers[c.doc.tierIndex(name)] = true
	}
}

// applySettings sets r's settings: the rule's own, or else those of the defaults.
func (c *compiler) applySettings(r *Rule, s *Settings) {
	d := &c.doc.Defaults.Settings
	r.Consistency = map[string]Consistency{"": Hybrid, "hybrid": Hybrid, "exact": Exact,
		"local": Local}[cmp.Or(s.Consistency, d.Consistency)]

	// Without on_partition, the first of the words holds: share.
	word := slices.Index(partitionWords[:], cmp.Or(s.OnPartition, d.OnPartition))
	r.OnPartition = OnPartition(max(0, word))
	r.OnLimit, r.MaxDelay = c.onLimit(s)

	r.grouping = grouping{
		ipv4: cmp.Or(s.IPv4Prefix, d.IPv4Prefix, defaultGrouping.ipv4),
		ipv6: cmp.Or(s.IPv6Prefix, d.IPv6Prefix, defaultGrouping.ipv6),
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

// onLimit returns what a rule does with a check over a limit, and the longest delay it may impose.
func (c *compiler) onLimit(s *Settings) (OnLimit, time.Duration) {
	d := &c.doc.Defaults.Settings
	longest := cmp.Or(s.MaxDelay.Duration, d.MaxDelay.Duration, defaultMaxDelay)
	if cmp.Or(s.OnLimit, d.OnLimit) == "delay" {
		return DelayCheck, longest
	}
	return Refuse, longest
}

// compileLimits compiles specs, the limits that come from a place in the
// document: from the rule itself, a tier or a subject. If the rule's key has
// alternatives, the limits' names end with the attributes that were chosen for
// r, as in login/ip.
func (c *compiler) compileLimits(rule *RuleSpec, r *Rule, from origin, specs []*LimitSpec) []*Limit {
	chosen := ""
	for i, name := range r.Key {
		if len(rule.Key) > 0 && len(rule.Key[i]) > 1 {
			chosen += "/" + name
		}
	}

	all := make([]Limit, len(specs))
	out := make([]*Limit, len(specs))
	for i, spec := range specs {
		out[i] = &all[i]
		out[i].Name = cmp.Or(spec.Name, rule.Name) + chosen
		if spec.Unlimited {
			out[i].Unlimited = true
			out[i].Unit = spec.Unit
			out[i].UnitID = -1
			continue
		}

		c.compileLimit(out[i], rule, spec)
		if spec.isSlots() {
			out[i].Source = slotSource(rule.Name, from, spec)
		}
		if spec.Name == "" {
			out[i].Name = c.doc.limitName(rule.Name+chosen, specs, i)
		}
		c.set.hasZero = c.set.hasZero || spec.Limit == 0
	}
	slices.SortStableFunc(out, func(a, b *Limit) int { return cmp.Compare(unlimitedLast(a), unlimitedLast(b)) })

	if rule.Adaptive != nil && len(out) > 0 {
		out[0].loweredCache = &loweredCache{}
	}
	if rule.Scope == "global" && len(out) > 0 {
		c.globalLists++
		out[0].shareCache = &shareCache{number: c.globalLists}
	}
	return out
}

// limitName returns the name that the i-th of a rule's limits has in answers if
// it has none of its own. If others have the same unit and window, the name
// ends with what tells them apart: the algorithm or, for calendar windows, the
// zone.
func (d *Document) limitName(rule string, limits []*LimitSpec, i int) string {
	l := limits[i]
	if len(limits) == 1 {
		return rule
	}

	name := rule + "/" + cmp.Or(l.Unit, Requests) + "/" + l.Per
	if l.isSlots() {
		return rule + "/" + cmp.Or(l.Unit, Requests) + "/" + l.Algorithm
	}

	isAlike := func(o *LimitSpec) bool {
		return o != l && o.Name == "" && cmp.Or(o.Unit, Requests) == cmp.Or(l.Unit, Requests) && o.Per == l.Per
	}
	if slices.ContainsFunc(limits, func(o *LimitSpec) bool { return isAlike(o) && d.kind(o) != d.kind(l) }) {
		name += "/" + d.kind(l).String()
		if l.From == fromFirst {
			name += "/" + fromFirst
		}
	}

	if l.TZ != "" &&
		slices.ContainsFunc(limits, func(o *LimitSpec) bool { return isAlike(o) && d.kind(o) == d.kind(l) }) {
		name += "/" + l.TZ
	}

	return name
}

func (c *compiler) compileLimit(l *Limit, rule *RuleSpec, spec *LimitSpec) {
	id := c.doc.identity(spec, c.doc.zoneOf(rule))
	l.Unit = id.unit
	l.UnitID = c.unitID(id.unit)
	l.Window = spec.Per
	l.Limit = algorithms.Limit{Kind: id.kind, Amount: spec.Limit, Window: spec.window}

	// Limits whose windows begin with the first hit can't delay: nobody knows when
	// the next window begins.
	onLimit, longest := c.onLimit(&rule.Settings)
	if onLimit == DelayCheck && l.Kind != algorithms.FirstWindow {
		l.MaxDelay = longest
	}
	if l.Kind.IsBucket() {
		l.Burst = cmp.Or(spec.Burst, spec.Limit)
	}

	if id.word != "" {
		unit, _ := algorithms.ParseCalendarUnit(id.word)
		var err error
		l.Calendar, err = algorithms.CalendarOf(unit, id.zone)
		if err != nil && c.err == nil {
			c.err = fmt.Errorf("load time zone %q: %w", id.zone, err)
		}
	}

	l.ID = id.hash()
}

// blockMemory is how long a block is remembered after its end. A subject that
// is refused again within that time is blocked for the next length.
const blockMemory = 24 * time.Hour

// blockLimits represents a rule's blocks as limits, one for each length; see
// [Rule.Blocks]. Their IDs leave the lengths out, so that a block in force
// survives a change of length.
func blockLimits(rule string, lengths []Span) (out []*Limit) {
	for i, length := range lengths {
		if length.Duration == 0 {
			continue // a mistake, which is reported
		}

		l := &Limit{Name: rule + "/block", Unit: "block", UnitID: -1,
			Window: length.Duration.String(), ID: xxh3.HashString("block")}
		l.Limit = algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 1, Burst: 1, Window: length.Duration}

		if i > 0 {
			l.ID = xxh3.HashString(fmt.Sprintf("block/%d", i))
		}
		if len(lengths) > 1 {
			l.Limit.Window = length.Duration + blockMemory
			l.MaxDelay = blockMemory
		}

		out = append(out, l)
	}

	return out
}

func (id counterIdentity) hash() uint64 {
	b := appendString(nil, id.unit)
	b = append(b, byte(id.kind))
	b = binary.LittleEndian.AppendUint64(b, uint64(id.window))
	b = appendString(b, id.word)
	return xxh3.Hash(appendString(b, id.zone))
}

// appendString appends s with its length, so that no two lists of strings yield the same bytes.
func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

func (c *compiler) compileList(specs []*Entry) list {
	items := make([]indexed, len(specs))
	for i, e := range specs {
		items[i].match = c.compileConditions(e.Match)
	}
	return list{items, buildIndex(items)}
}

// costTable is a compiled CostTable.
type costTable struct {
	attribute int
	byText    map[string]int64
	fallback  int64
}

func (c *compiler) compileCostTable(spec *CostTable) *costTable {
	t := &costTable{attribute: c.attributeNumber(spec.By),
		byText: make(map[string]int64, len(spec.Values)), fallback: spec.Default}
	for _, v := range spec.Values {
		t.byText[c.doc.Canonical(spec.By, v.Value)] = v.Cost
	}
	return t
}

func (c *compiler) foldingOf(attribute string) *folding { return c.set.attributes.folding(attribute) }
