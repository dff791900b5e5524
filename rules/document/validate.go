package document

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/algorithms"
)

// maxTierLimits bounds the number of tiered rules times the number of tier
// limits: each pair compiles to its own limit.
const maxTierLimits = 1_000_000

// checker finds contradictions between the parts of a document; the decoder has
// found the mistakes within one part. In place of a faulty value the decoder
// has left a zero, which the checker does not report again.
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
	// Of rules with the same name, the first counts. validate reports the others.
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
	ch.checkLimits(path+".limits", r.Limits, ch.doc.ZoneOf(r))
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
		// The zone of r may be that of another limit of the tier.
		if namesCalendarZone(t.Limits) {
			ch.checkDistinct(path, t.Limits, ch.doc.ZoneOf(r))
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
		if l.From == FromFirst && (ch.doc.kindByClock(l) != algorithms.FixedWindow || l.calendar()) {
			ch.add(l.pos, fmt.Sprintf("%s[%d].from", path, i), "%s is for fixed-window with a duration", FromFirst)
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
		if l.From == FromFirst {
			ch.add(l.pos, fmt.Sprintf("%s[%d].from", path, i),
				"the rule %q has scope: global, and regions divide windows of the clock only",
				r.Name)
		} else if kind := ch.doc.kind(l); l.Per != "" && !l.IsSlots() && !kind.Divisible() {
			ch.add(l.pos, fmt.Sprintf("%s[%d]", path, i),
				"the rule %q has scope: global, which is for fixed-window and token-bucket, not for %s", r.Name, kind)
		}
	}
}

// checkDelay rejects windows that begin with the first hit in a rule that
// delays: nobody knows when the next one begins.
func (ch *checker) checkDelay(path string, r *RuleSpec) {
	for i, l := range r.Limits {
		if l.From == FromFirst && cmp.Or(r.OnLimit, ch.doc.Defaults.OnLimit) == "delay" {
			ch.add(l.pos, fmt.Sprintf("%s[%d].from", path, i), "%s can't be combined with on_limit: delay", FromFirst)
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
		same := func(o *LimitSpec) bool { return o.Per != "" && ch.doc.Identity(o, zone) == ch.doc.Identity(l, zone) }
		if j := slices.IndexFunc(limits[:i], same); j >= 0 {
			ch.add(l.pos, fmt.Sprintf("%s[%d]", path, i),
				"%s[%d] has the same unit, algorithm and window, and hence the same counter", path,
				j)
		}
	}
}

// checkNames rejects the name of a limit if another limit, which has none of
// its own, gets the same name in answers.
func (ch *checker) checkNames(path string, limits []*LimitSpec, rule string) {
	for i, l := range limits {
		isTaken := func(j int) bool { return limits[j].Name == "" && ch.doc.LimitName(rule, limits, j) == l.Name }
		for j := range limits {
			if l.Name != "" && isTaken(j) {
				ch.add(l.pos, fmt.Sprintf("%s[%d].name", path, i),
					"%s[%d] is called %q, too, for it has no name of its own", path, j, l.Name)
			}
		}
	}
}

// checkSlots checks the limits of slots among limits, which apply to the rule r.
func (ch *checker) checkSlots(path string, r *RuleSpec, limits []*LimitSpec) {
	settings := func(setting func(*Settings) string) string {
		if value := setting(&r.Settings); value != "" {
			return value
		}
		return setting(&ch.doc.Defaults.Settings)
	}
	consistency := settings(func(s *Settings) string { return s.Consistency })
	onLimit := settings(func(s *Settings) string { return s.OnLimit })

	for i, l := range limits {
		if !l.IsSlots() {
			continue
		}

		at := fmt.Sprintf("%s[%d].algorithm", path, i)
		switch {
		case r.Scope == "global":
			ch.add(l.pos, at,
				"the rule %q has scope: global, and regions can't divide slots: leave scope out, and each region has the limit for itself",
				r.Name)
		case consistency == "local":
			ch.add(l.pos, at,
				"the rule %q has consistency: local, and slots are held in the whole cluster: write consistency: exact",
				r.Name)
		case onLimit == "delay":
			ch.add(l.pos, at,
				"the rule %q has on_limit: delay, and nobody knows when a slot will be free: write on_limit: refuse, and have callers ask again",
				r.Name)
		}
	}
}

// namesCalendarZone reports whether a limit with a calendar window names its
// zone. A limit that names none may then have the same counter, by the zone of
// the rule.
func namesCalendarZone(limits []*LimitSpec) bool {
	return slices.ContainsFunc(limits, func(l *LimitSpec) bool { return l.TZ != "" && l.calendar() })
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
			ch.add(o.pos, at, "no rule is called %q", Shorten(o.Rule))
		case !r.keyHas(attribute):
			ch.add(o.pos, at, "the rule's key does not include %q", attribute)
		default:
			ch.checkLimits(at, o.Limits, ch.doc.ZoneOf(r))
			ch.checkNames(at, o.Limits, r.Name)
			ch.checkGlobal(at, r, o.Limits)
			ch.checkSlots(at, r, o.Limits)
		}
	}
}

// checkEnvoy checks the section.
func (ch *checker) checkEnvoy() {
	domains := map[string]int{}
	for i, s := range ch.doc.Envoy {
		path := fmt.Sprintf("envoy[%d]", i)
		if first, taken := domains[s.Domain]; taken && s.Domain != "" {
			ch.add(s.pos, path+".domain", "the domain %q is taken by envoy[%d]", Shorten(s.Domain), first)
		} else {
			domains[s.Domain] = i
		}
		ch.checkEnvoyDescriptors(path, len(s.Domain), s.Descriptors)
	}

	if ch.envoyDetailed > maxEnvoyDetailed {
		ch.add(ch.doc.positions["envoy"], "envoy",
			"%d descriptors with detailed_metric; at most %d are allowed", ch.envoyDetailed,
			maxEnvoyDetailed)
	}
}

// checkEnvoyDescriptors checks sibling descriptors. length is that of the path above them.
func (ch *checker) checkEnvoyDescriptors(path string, length int, list []*EnvoyDescriptorSpec) {
	seen := make(map[string]int, len(list))
	wildcards := 0
	for i, s := range list {
		path, text := fmt.Sprintf("%s.descriptors[%d]", path, i), s.Text()
		if first, taken := seen[text]; taken && s.Key != "" {
			ch.add(s.pos, path, "%q is a duplicate of descriptors[%d]", Shorten(text), first)
		} else {
			seen[text] = i
		}

		if strings.Contains(text, "*") {
			wildcards++
		}

		size := length + 1 + len(text)
		if size > maxEnvoyPath {
			ch.add(s.pos, path,
				"the domain and the keys and values down to here have %d bytes; at most %d are allowed",
				size, maxEnvoyPath)
			continue
		}

		if s.Limit != nil && slices.Contains(s.Limit.Replaces, s.Limit.Name) && s.Limit.Name != "" {
			ch.add(s.Limit.pos, path+".rate_limit.replaces", "%q is the limit's own name", s.Limit.Name)
		}
		if s.Limit != nil && s.Detailed {
			ch.envoyDetailed++
		}

		ch.checkEnvoyDescriptors(path, size, s.Descriptors)
	}

	if wildcards > maxEnvoyWildcards {
		ch.add(list[0].pos, path+".descriptors",
			"%d sibling descriptors with *; at most %d are allowed", wildcards, maxEnvoyWildcards)
	}
}

// OverrideChecker says which overrides fit a document. It is not safe for
// concurrent use.
type OverrideChecker struct{ checker *checker }

// NewOverrideChecker returns the checker of d's overrides.
func (d *Document) NewOverrideChecker() *OverrideChecker {
	return &OverrideChecker{newChecker(d, &collector{})}
}

// Fits reports whether the document could have an override for a subject.
func (oc *OverrideChecker) Fits(attribute, value string, o Override) bool {
	oc.checker.collector = &collector{}
	oc.checker.checkSubject("", attribute, &SubjectSpec{Value: value, Overrides: []Override{o}})
	return oc.checker.err() == nil
}
