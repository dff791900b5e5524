package rules

import (
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

func ruleKeys() []string {
	return []string{"name", "match", "key", "limits", "tiered", "cost", "scope", "regions", "shadow", "usage", "block",
		"on_limit", "max_delay", "adaptive", "consistency", "on_partition", "lease", "ipv6_prefix", "tz"}
}

func limitKeys() []string {
	return []string{"name", "limit", "per", "algorithm", "burst", "unit", "tz"}
}

func (d *decoder) rules(n *yaml.Node, doc *Document) {
	if n.Kind == yaml.List && len(n.Items) > maxRules {
		d.fail(n, "%d rules are more than %d", len(n.Items), maxRules)
		return
	}
	d.each(n, func(n *yaml.Node) { doc.Rules = append(doc.Rules, d.rule(n, "")) })
}

// rule reads a rule; name is what it is called if it doesn't say.
func (d *decoder) rule(n *yaml.Node, name string) *RuleSpec {
	r := &RuleSpec{Name: name, pos: n.Pos, at: places{}}
	ok := d.object(n, ruleKeys(), func(key string, at, v *yaml.Node) {
		r.at[key] = at.Pos
		switch key {
		case "name":
			r.Name = d.name(v)
		case "match":
			r.Match = d.conditions(v)
		case "key":
			r.Key = d.key(v)
		case "limits":
			r.Limits = d.limits(v)
		case "tiered":
			r.Tiered = d.boolean(v)
		case "cost":
			r.Cost = d.cost(v)
		case "scope":
			r.Scope = d.word(v, "region", "global")
		case "regions":
			r.Regions = d.regions(v)
		case "shadow":
			r.Shadow = d.boolean(v)
		case "usage":
			r.Usage = d.word(v, usageMonthly)
		case "block":
			r.Block = d.span(v, algorithms.MinWindow, algorithms.MaxWindow)
		case "adaptive":
			r.Adaptive = d.adaptive(v)
		default:
			d.setting(key, v, &r.Settings)
		}
	})
	if r.broken = !ok; !ok {
		return r
	}
	if _, named := r.at["name"]; !named && name == "" {
		d.fail(n, "a rule needs a name")
	}
	if _, keyed := r.at["key"]; !keyed {
		d.fail(n, "a rule needs a key; [] is one counter for all")
	}
	return r
}

func (d *decoder) key(n *yaml.Node) []string {
	var out []string
	d.each(n, func(n *yaml.Node) {
		s := d.name(n)
		if s != "" && slices.Contains(out, s) {
			d.fail(n, "the attribute %q is named twice", s)
		}
		out = append(out, s)
	})
	if len(out) > maxAttributes {
		d.fail(n, "more than %d attributes", maxAttributes)
	}
	return out
}

// limits reads the limits of a rule, tier or override.
func (d *decoder) limits(n *yaml.Node) []*LimitSpec {
	var out []*LimitSpec
	if n.Kind == yaml.List && len(n.Items) > maxLimits {
		d.fail(n, "%d limits are more than %d", len(n.Items), maxLimits)
		return nil
	}
	if d.each(n, func(n *yaml.Node) { out = append(out, d.limit(n)) }) && len(n.Items) == 0 {
		d.fail(n, "at least one limit is expected")
	}
	for i, l := range out {
		if l.Name == "" {
			continue
		}
		if slices.ContainsFunc(out[:i], func(o *LimitSpec) bool { return o.Name == l.Name }) {
			mark := d.pushIndex(i)
			d.add(l.pos, string(d.path)+".name", "two limits are called %q", l.Name)
			d.path = d.path[:mark]
		}
	}
	return out
}

func (d *decoder) limit(n *yaml.Node) *LimitSpec {
	l := &LimitSpec{pos: n.Pos}
	var limit, per, burst, algorithm *yaml.Node
	ok := d.object(n, limitKeys(), func(key string, _, v *yaml.Node) {
		switch key {
		case "name":
			l.Name = d.name(v)
		case "limit":
			limit = v
			l.Limit = d.integer(v, 1, algorithms.MaxAmount)
		case "per":
			per = v
			d.per(v, l)
		case "algorithm":
			algorithm = v
			l.Algorithm = d.algorithm(v)
		case "burst":
			burst = v
			l.Burst = d.integer(v, 1, algorithms.MaxAmount)
		case "unit":
			l.Unit = d.name(v)
		case "tz":
			l.TZ = d.zone(v)
		}
	})
	switch {
	case !ok:
		return l
	case limit == nil:
		d.fail(n, "limit is missing: how much is allowed per window")
	case per == nil:
		d.fail(n, "per is missing: the length of the window")
	}
	if algorithm != nil && l.Algorithm != "" && l.calendar() && l.Algorithm != algorithms.FixedWindow.String() {
		mark := d.push("algorithm")
		d.fail(algorithm, "calendar windows are for fixed-window only, per is %s", l.Per)
		d.path = d.path[:mark]
	}
	if burst != nil && l.Algorithm != "" {
		if kind, _ := algorithms.ParseKind(l.Algorithm); !kind.Bucket() {
			mark := d.push("burst")
			d.fail(burst, "burst is for token-bucket and leaky-bucket, not for %s", l.Algorithm)
			d.path = d.path[:mark]
		}
	}
	return l
}

// per reads a window: a word of the calendar or a duration.
func (d *decoder) per(n *yaml.Node, l *LimitSpec) {
	if unit, ok := algorithms.ParseCalendarUnit(n.Text); ok && n.Kind == yaml.String {
		l.Per, l.window = n.Text, unit.Nominal()
		return
	}
	span := d.span(n, algorithms.MinWindow, algorithms.MaxWindow)
	l.Per, l.window = span.Text, span.Duration
}

func (l *LimitSpec) calendar() bool {
	_, ok := algorithms.ParseCalendarUnit(l.Per)
	return ok
}

func (d *decoder) cost(n *yaml.Node) *CostTable {
	c := &CostTable{Default: 1}
	by := false
	ok := d.object(n, []string{"by", "values", "default"}, func(key string, _, v *yaml.Node) {
		switch key {
		case "by":
			by = true
			c.By = d.name(v)
		case "values":
			d.open(v, func(key, v *yaml.Node) {
				value, _ := d.value(key)
				c.Values = append(c.Values, ValueCost{value, d.integer(v, 0, algorithms.MaxAmount)})
			})
		case "default":
			c.Default = d.integer(v, 0, algorithms.MaxAmount)
		}
	})
	if ok && !by {
		d.fail(n, "by is missing: the attribute that the cost depends on")
	}
	return c
}

func (d *decoder) regions(n *yaml.Node) []Region {
	var out []Region
	sum := 0.0
	mistakes := len(d.errs)
	d.open(n, func(key, v *yaml.Node) {
		part := d.fraction(v, 0, 1)
		sum += part
		out = append(out, Region{d.checkName(key, key.Text), part})
	})
	if len(out) > maxRegions {
		d.fail(n, "%d regions are more than %d", len(out), maxRegions)
		return nil
	}
	// The tolerance is a little wider than a thousandth, for what adding decimal fractions gets wrong.
	if len(d.errs) == mistakes && (sum < 0.999-1e-9 || sum > 1.001+1e-9) {
		d.fail(n, "the parts add up to %.4g, not to 1", sum)
	}
	return out
}

func (d *decoder) adaptive(n *yaml.Node) *Adaptive {
	a := &Adaptive{}
	ok := d.object(n, []string{"source", "steps"}, func(key string, _, v *yaml.Node) {
		if key == "source" {
			a.Source = d.name(v)
			return
		}
		if v.Kind == yaml.List && (len(v.Items) == 0 || len(v.Items) > maxAdaptiveSteps) {
			d.fail(v, "1 to %d steps are expected", maxAdaptiveSteps)
			return
		}
		d.each(v, func(v *yaml.Node) {
			step := d.step(v)
			if n := len(a.Steps); n > 0 && step.Above <= a.Steps[n-1].Above {
				d.fail(v, "each step must be above the one before it")
			}
			a.Steps = append(a.Steps, step)
		})
	})
	for _, key := range []string{"source", "steps"} {
		if ok && !slices.ContainsFunc(n.Items, func(k *yaml.Node) bool { return k.Text == key }) {
			d.fail(n, "%s is missing", key)
		}
	}
	return a
}

func (d *decoder) step(n *yaml.Node) (out AdaptiveStep) {
	const maxLoad = 1000
	has := 0
	ok := d.object(n, []string{"above", "factor"}, func(key string, _, v *yaml.Node) {
		has++
		if key == "above" {
			out.Above = d.fraction(v, 0, maxLoad)
			return
		}
		mistakes := len(d.errs)
		if out.Factor = d.fraction(v, 0, 1); out.Factor == 0 && len(d.errs) == mistakes {
			d.fail(v, "a factor must be above 0")
		}
	})
	if ok && has < 2 {
		d.fail(n, "a step needs above and factor")
	}
	return out
}
