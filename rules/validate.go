package rules

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

// checker finds contradictions between the parts of a document; the decoder
// finds mistakes within one part. Where the decoder found a mistake, it left a
// zero value, which the checker does not report again.
type checker struct {
	*collector
	doc   *Document
	rules map[string]*RuleSpec
	index map[string]int // of a rule, in doc.Rules
	tiers map[string]*TierSpec
	// tooManyTierLimits means that checking each pair of rule and tier would take too long.
	tooManyTierLimits bool
	envoyDetailed     int // number of descriptors with their own metrics
}

// validate checks all of doc.
func validate(doc *Document, errs *collector) {
	ch := newChecker(doc, errs)
	ch.checkTierProduct()

	for i, r := range doc.Rules {
		path := fmt.Sprintf("rules[%d]", i)
		first := ch.index[r.Name]
		if first != i && r.Name != "" {
			ch.add(r.position("name"), path+".name", "the name %q is taken by rules[%d]", r.Name, first)
		}
		if !r.malformed {
			ch.checkRule(path, r)
		}
	}

	for _, t := range doc.Tiers {
		ch.checkLimits(keyPath("tiers", t.Name)+".limits", t.Limits, "")
	}

	if doc.DefaultTier != "" && ch.tiers[doc.DefaultTier] == nil {
		ch.add(doc.positions["default_tier"], "default_tier", "the tier %q is not defined", doc.DefaultTier)
	}

	for _, g := range doc.Subjects {
		path := keyPath("subjects", g.Attribute)
		for _, s := range g.Subjects {
			ch.checkSubject(path, g.Attribute, s)
		}
	}

	ch.checkEnvoy()
}

func newChecker(doc *Document, errs *collector) *checker {
	c := &checker{
		collector: errs, doc: doc,
		rules: make(map[string]*RuleSpec, len(doc.Rules)),
		index: make(map[string]int, len(doc.Rules)),
		tiers: make(map[string]*TierSpec, len(doc.Tiers)),
	}
	for i, r := range doc.Rules {
		if c.rules[r.Name] == nil {
			c.rules[r.Name] = r
			c.index[r.Name] = i
		}
	}

	for _, t := range doc.Tiers {
		c.tiers[t.Name] = t
	}

	return c
}

func keyPath(path, key string) string { return string(appendKey([]byte(path), key)) }

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

func (ch *checker) checkRule(path string, r *RuleSpec) {
	switch {
	case r.Tiered && r.has("limits"):
		ch.add(r.position("limits"), path+".limits", "a tiered rule's limits are those of the tiers")
	case r.Tiered && len(ch.doc.Tiers) == 0:
		ch.add(r.position("tiered"), path+".tiered", "a tiered rule needs tiers, and there are none")
	case !r.Tiered && !r.has("limits"):
		ch.add(r.pos, path, "a rule needs limits, or tiered: true")
	}

	if r.has("regions") && r.Scope != "global" {
		ch.add(r.position("regions"), path+".regions", "regions are for scope: global")
	}
	if r.Cost != nil {
		ch.checkCostValues(path, r)
	}

	ch.checkConditions(path, r)
	ch.checkLimits(path+".limits", r.Limits, ch.doc.zoneOf(r))
	ch.checkNames(path+".limits", r.Limits, r.Name)
	ch.checkGlobal(path+".limits", r, r.Limits)
	ch.checkSlots(path+".limits", r, r.Limits)
	ch.checkDelay(path+".limits", r)

	if !r.Tiered || ch.tooManyTierLimits {
		return
	}

	for _, t := range ch.doc.Tiers {
		path := keyPath("tiers", t.Name) + ".limits"
		ch.checkGlobal(path, r, t.Limits)
		ch.checkSlots(path, r, t.Limits)
		ch.checkNames(path, t.Limits, r.Name)
		if mixesZones(t.Limits) {
			ch.checkDistinct(path, t.Limits, ch.doc.zoneOf(r))
		}
	}
}

// checkConditions checks what r requires of a check besides match.
func (ch *checker) checkConditions(path string, r *RuleSpec) {
	for i, name := range r.Absent {
		required := slices.ContainsFunc(r.Match, func(m Condition) bool { return m.Attribute == name }) ||
			slices.ContainsFunc(r.Key, func(p KeyPart) bool { return len(p) == 1 && p[0] == name })
		if required && name != "" {
			ch.add(r.position("absent"), fmt.Sprintf("%s.absent[%d]", path, i),
				"the rule can never apply: it also needs %q", name)
		}
	}
	for i, name := range r.OnTiers {
		if name != "" && ch.tiers[name] == nil {
			ch.add(r.position("tiers"), fmt.Sprintf("%s.tiers[%d]", path, i), "the tier %q is not defined", name)
		}
	}
}

func (ch *checker) checkCostValues(path string, r *RuleSpec) {
	for _, v := range r.Cost.Values {
		if message := addressMistake(r.Cost.By, v.Value, false); message != "" {
			ch.add(r.position("cost"), keyPath(path+".cost.values", v.Value), "%s", message)
		}
	}
}

// checkLimits checks a list of limits of a rule, tier, override or call.
func (ch *checker) checkLimits(path string, limits []*LimitSpec, zone string) {
	for i, l := range limits {
		if l.From == fromFirst && (ch.doc.kindByClock(l) != algorithms.FixedWindow || l.calendar()) {
			ch.add(l.pos, fmt.Sprintf("%s[%d].from", path, i), "%s is for fixed-window with a duration", fromFirst)
		}

		kind := ch.doc.kind(l)
		if l.Burst != 0 && l.Algorithm == "" && !kind.IsBucket() {
			ch.add(l.pos, fmt.Sprintf("%s[%d].burst", path, i),
				"burst is for token-bucket and leaky-bucket, not for %s", kind)
		}
	}
	ch.checkDistinct(path, limits, zone)
}

// checkGlobal checks the limits of a rule with scope: global.
func (ch *checker) checkGlobal(path string, r *RuleSpec, limits []*LimitSpec) {
	if r.Scope != "global" {
		return
	}
	for i, l := range limits {
		if l.From == fromFirst {
			ch.add(l.pos, fmt.Sprintf("%s[%d].from", path, i),
				"the rule %q has scope: global, and regions divide windows of the clock only",
				r.Name)
		} else if kind := ch.doc.kind(l); l.Per != "" && !l.isSlots() && !kind.Divisible() {
			ch.add(l.pos, fmt.Sprintf("%s[%d]", path, i),
				"the rule %q has scope: global, which is for fixed-window and token-bucket, not for %s", r.Name, kind)
		}
	}
}

// checkDelay rejects windows that begin with the first hit in a rule that
// delays: nobody knows when the next one begins.
func (ch *checker) checkDelay(path string, r *RuleSpec) {
	for i, l := range r.Limits {
		if l.From == fromFirst && cmp.Or(r.OnLimit, ch.doc.Defaults.OnLimit) == "delay" {
			ch.add(l.pos, fmt.Sprintf("%s[%d].from", path, i), "%s can't be combined with on_limit: delay", fromFirst)
		}
	}
}

// checkDistinct rejects two limits that would have the same counter. zone is
// the zone of limits that name none.
func (ch *checker) checkDistinct(path string, limits []*LimitSpec, zone string) {
	for i, l := range limits {
		if l.Per == "" {
			continue
		}
		same := func(o *LimitSpec) bool { return o.Per != "" && ch.doc.identity(o, zone) == ch.doc.identity(l, zone) }
		if j := slices.IndexFunc(limits[:i], same); j >= 0 {
			ch.add(l.pos, fmt.Sprintf("%s[%d]", path, i),
				"%s[%d] has the same unit, algorithm and window, and hence the same counter", path,
				j)
		}
	}
}

// checkNames rejects the name of a limit if answers give that name to another
// limit, which has none of its own.
func (ch *checker) checkNames(path string, limits []*LimitSpec, rule string) {
	for i, l := range limits {
		isTaken := func(j int) bool { return limits[j].Name == "" && ch.doc.limitName(rule, limits, j) == l.Name }
		for j := range limits {
			if l.Name != "" && isTaken(j) {
				ch.add(l.pos, fmt.Sprintf("%s[%d].name", path, i),
					"%s[%d] is called %q, too, for it has no name of its own", path, j, l.Name)
			}
		}
	}
}

func mixesZones(limits []*LimitSpec) bool {
	return slices.ContainsFunc(limits, func(l *LimitSpec) bool { return l.TZ != "" && l.calendar() })
}

// checkTierProduct bounds the memory that tiers take: each tiered rule compiles
// its own limits for each tier.
func (ch *checker) checkTierProduct() {
	rules, limits := 0, 0
	for _, r := range ch.doc.Rules {
		if r.Tiered {
			rules++
		}
	}

	for _, t := range ch.doc.Tiers {
		limits += len(t.Limits)
	}

	if rules*limits > maxTierLimits {
		ch.tooManyTierLimits = true
		ch.add(ch.doc.positions["tiers"], "tiers",
			"%d tiered rules times %d limits of tiers; at most %d are allowed", rules, limits,
			maxTierLimits)
	}
}

func (ch *checker) checkSubject(path, attribute string, s *SubjectSpec) {
	if s.Tier != "" && ch.tiers[s.Tier] == nil {
		ch.add(s.pos, keyPath(path, s.Value)+".tier", "the tier %q is not defined", s.Tier)
	}

	for _, o := range s.Overrides {
		r := ch.rules[o.Rule]
		at := keyPath(keyPath(path, s.Value)+".limits", o.Rule)
		switch {
		case r == nil:
			ch.add(o.pos, at, "no rule is called %q", shorten(o.Rule))
		case !r.keyHas(attribute):
			ch.add(o.pos, at, "the rule's key does not include %q", attribute)
		default:
			ch.checkLimits(at, o.Limits, ch.doc.zoneOf(r))
			ch.checkNames(at, o.Limits, r.Name)
			ch.checkGlobal(at, r, o.Limits)
			ch.checkSlots(at, r, o.Limits)
		}
	}
}

// kind returns a limit's algorithm: its own; else fixed-window for a calendar
// window, or the default.
func (d *Document) kind(l *LimitSpec) algorithms.Kind {
	kind := d.kindByClock(l)
	if kind == algorithms.FixedWindow && l.From == fromFirst {
		return algorithms.FirstWindow
	}
	return kind
}

// kindByClock is kind without regard to from.
func (d *Document) kindByClock(l *LimitSpec) algorithms.Kind {
	if l.Algorithm == "" && l.calendar() {
		return algorithms.FixedWindow
	}
	// Without a default, it is SlidingWindow, the zero Kind.
	kind, _ := algorithms.ParseKind(cmp.Or(l.Algorithm, d.Defaults.Algorithm))
	return kind
}

// zoneOf returns the time zone of a rule's limits that don't name one.
func (d *Document) zoneOf(r *RuleSpec) string {
	return cmp.Or(r.TZ, d.Defaults.TZ, "UTC")
}

// counterIdentity distinguishes the counters of one rule and subject.
type counterIdentity struct {
	unit string
	kind algorithms.Kind
	// window is 0 for calendar windows, which have word and zone instead, and
	// for slots, whose ttl may change.
	window time.Duration
	word   string
	zone   string
}

// identity returns the identity of a limit of a rule in zone.
func (d *Document) identity(l *LimitSpec, zone string) counterIdentity {
	id := counterIdentity{unit: cmp.Or(l.Unit, Requests), kind: d.kind(l)}
	if l.isSlots() {
		return id
	}
	if !l.calendar() {
		id.window = l.window
		return id
	}
	id.word = l.Per
	id.zone = cmp.Or(l.TZ, zone)
	return id
}
