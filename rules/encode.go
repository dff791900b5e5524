package rules

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strconv"

	"github.com/rlnode/rlnode/internal/yaml"
)

// YAML writes the document: the text that it was parsed from, comments and all, if that was YAML, else in the
// usual order of keys.
func (d *Document) YAML() ([]byte, error) {
	if d.source != "" && !d.asJSON {
		return []byte(d.source), nil
	}
	text := d.node().AppendYAML(nil)
	if len(text) > MaxDocument && d.source != "" {
		return []byte(d.source), nil // JSON is YAML too, and fits
	}
	return text, nil
}

// JSON writes the document as JSON, in the usual order of keys.
func (d *Document) JSON() ([]byte, error) { return d.node().AppendJSON(nil), nil }

// Hash is SHA-256 of the document as JSON, in the usual order of keys, whatever text it was parsed from. Builds that read a
// document alike give it one hash: what changes it for documents that there may be is for a later feature level.
func (d *Document) Hash() [sha256.Size]byte { return sha256.Sum256(d.node().AppendJSON(nil)) }

// written is the document as YAML, or as JSON where only that fits.
func (d *Document) written() ([]byte, error) {
	text, err := d.YAML()
	if err == nil && len(text) > MaxDocument {
		text, err = d.JSON()
	}
	return text, err
}

// Text is the document as a text: the one that it was parsed from, or one that says the same. The error is of type
// [Errors]: there is none of at most MaxDocument bytes.
func (d *Document) Text() (string, error) {
	if d.source != "" {
		return d.source, nil
	}
	text, err := d.written()
	switch {
	case err != nil:
		return "", asErrors(err)
	case len(text) > MaxDocument:
		return "", Errors{{Message: fmt.Sprintf("the document has %d bytes when it is written, more than %d", len(text), MaxDocument)}}
	}
	return string(text), nil
}

// measure is the sum of the pieces' sizes, an upper bound of the length of every rendering.
func (d *Document) measure() int {
	const keys = 256 // of the document, without defaults
	size := keys + pieceSize("", d.Defaults.node()) + pieceSize("deny", entriesNode(d.Deny)) + pieceSize("allow", entriesNode(d.Allow))
	for _, r := range d.Rules {
		size += pieceSize(r.Name, r.node())
	}
	for _, t := range d.Tiers {
		size += pieceSize(t.Name, t.node())
	}
	for _, g := range d.Subjects {
		size += pieceSize(g.Attribute, yaml.NewMap())
		for _, s := range g.Subjects {
			size += pieceSize(s.Value, s.node())
		}
	}
	for _, p := range d.Profiles {
		size += pieceSize(p.Name, p.node())
	}
	return size
}

// pieceSize is at least what a piece adds to a document's text.
func pieceSize(name string, n *yaml.Node) int {
	if n == nil {
		return 0
	}
	const around, indent = 8, 6 // a colon, commas, quotes; more than in the piece alone
	text := n.AppendYAML(make([]byte, 0, 256))
	length := len(text) + indent*bytes.Count(text, []byte("\n"))
	length = max(length, len(n.AppendJSON(text[:0])))
	return around + len(yaml.Text(name).AppendJSON(text[:0])) + length
}

func (d *Document) node() *yaml.Node {
	n := yaml.NewMap()
	n.Set("version", integer(1))
	if m := d.Defaults.node(); len(m.Items) > 0 {
		n.Set("defaults", m)
	}
	n.Set("default", text(d.Default))
	if h := d.Headers; h != nil {
		reset := "unix"
		if h.ResetDelta {
			reset = "delta"
		}
		m := yaml.NewMap().OnOneLine()
		m.Set("ietf", boolean(h.IETF))
		m.Set("x_ratelimit", boolean(h.XRateLimit))
		m.Set("reset", text(reset))
		n.Set("headers", m)
	}
	lists := yaml.NewMap()
	for _, l := range []struct {
		name    string
		entries []*Entry
	}{{"deny", d.Deny}, {"allow", d.Allow}} {
		if len(l.entries) > 0 {
			lists.Set(l.name, entriesNode(l.entries))
		}
	}
	setFilled(n, "lists", lists)
	rules, tiers, subjects, profiles := yaml.NewList(), yaml.NewMap(), yaml.NewMap(), yaml.NewMap()
	for _, r := range d.Rules {
		rules.Items = append(rules.Items, r.node())
	}
	for _, t := range d.Tiers {
		tiers.Set(t.Name, t.node())
	}
	for _, g := range d.Subjects {
		m := yaml.NewMap()
		for _, s := range g.Subjects {
			m.Set(s.Value, s.node())
		}
		subjects.Set(g.Attribute, m)
	}
	for _, p := range d.Profiles {
		profiles.Set(p.Name, p.node())
	}
	setFilled(n, "rules", rules)
	setFilled(n, "tiers", tiers)
	n.Set("default_tier", text(d.DefaultTier))
	setFilled(n, "subjects", subjects)
	setFilled(n, "profiles", profiles)
	return n
}

// setFilled leaves empty collections out.
func setFilled(n *yaml.Node, key string, collection *yaml.Node) {
	if len(collection.Items) > 0 {
		n.Set(key, collection)
	}
}

// text, number and span return nil for what was left out.
func text(s string) *yaml.Node {
	if s == "" {
		return nil
	}
	return yaml.Text(s)
}

func number(v int64) *yaml.Node {
	if v == 0 {
		return nil
	}
	return integer(v)
}

func span(s Span) *yaml.Node { return text(s.Text) }

func integer(v int64) *yaml.Node { return yaml.Scalar(yaml.Int, strconv.FormatInt(v, 10)) }

func fraction(v float64) *yaml.Node {
	return yaml.Scalar(yaml.Float, strconv.FormatFloat(v, 'f', -1, 64))
}

func boolean(v bool) *yaml.Node { return yaml.Scalar(yaml.Bool, strconv.FormatBool(v)) }

func (d *Defaults) node() *yaml.Node {
	n := yaml.NewMap()
	n.Set("algorithm", text(d.Algorithm))
	n.Set("consistency", text(d.Consistency))
	n.Set("on_partition", text(d.OnPartition))
	n.Set("lease", d.Lease.node())
	n.Set("on_limit", text(d.OnLimit))
	n.Set("max_delay", span(d.MaxDelay))
	n.Set("ipv6_prefix", number(int64(d.IPv6Prefix)))
	n.Set("tz", text(d.TZ))
	return n
}

func (l *LeaseSpec) node() *yaml.Node {
	if *l == (LeaseSpec{}) {
		return nil
	}
	n := yaml.NewMap().OnOneLine()
	if l.Threshold != 0 {
		n.Set("threshold", fraction(l.Threshold))
	}
	if l.AutoTTL {
		n.Set("ttl", text("auto"))
	} else {
		n.Set("ttl", span(l.TTL))
	}
	if l.Idle != 0 {
		n.Set("idle", fraction(l.Idle))
	}
	return n
}

func entriesNode(entries []*Entry) *yaml.Node {
	n := yaml.NewList()
	for _, e := range entries {
		n.Items = append(n.Items, conditionsNode(e.Match))
	}
	return n
}

func conditionsNode(match []Condition) *yaml.Node {
	n := yaml.NewMap().OnOneLine()
	for _, c := range match {
		if c.single {
			n.Set(c.Attribute, yaml.Text(c.Values[0]))
		} else {
			n.Set(c.Attribute, textsNode(c.Values))
		}
	}
	return n
}

func textsNode(texts []string) *yaml.Node {
	n := yaml.NewList().OnOneLine()
	for _, s := range texts {
		n.Items = append(n.Items, yaml.Text(s))
	}
	return n
}

func (r *RuleSpec) node() *yaml.Node {
	n := yaml.NewMap()
	n.Set("name", yaml.Text(r.Name))
	if len(r.Match) > 0 {
		n.Set("match", conditionsNode(r.Match))
	}
	n.Set("key", textsNode(r.Key))
	if len(r.Limits) > 0 {
		n.Set("limits", limitsNode(r.Limits))
	}
	if r.Tiered {
		n.Set("tiered", boolean(true))
	}
	if r.Cost != nil {
		n.Set("cost", r.Cost.node())
	}
	n.Set("scope", text(r.Scope))
	if len(r.Regions) > 0 {
		m := yaml.NewMap().OnOneLine()
		for _, g := range r.Regions {
			m.Set(g.Name, fraction(g.Part))
		}
		n.Set("regions", m)
	}
	if r.Shadow {
		n.Set("shadow", boolean(true))
	}
	n.Set("usage", text(r.Usage))
	n.Set("block", span(r.Block))
	n.Set("on_limit", text(r.OnLimit))
	n.Set("max_delay", span(r.MaxDelay))
	if r.Adaptive != nil {
		n.Set("adaptive", r.Adaptive.node())
	}
	n.Set("consistency", text(r.Consistency))
	n.Set("on_partition", text(r.OnPartition))
	n.Set("lease", r.Lease.node())
	n.Set("ipv6_prefix", number(int64(r.IPv6Prefix)))
	n.Set("tz", text(r.TZ))
	return n
}

func limitsNode(limits []*LimitSpec) *yaml.Node {
	list := yaml.NewList()
	for _, l := range limits {
		n := yaml.NewMap().OnOneLine()
		n.Set("name", text(l.Name))
		n.Set("limit", integer(l.Limit))
		n.Set("per", text(l.Per))
		n.Set("algorithm", text(l.Algorithm))
		n.Set("burst", number(l.Burst))
		n.Set("unit", text(l.Unit))
		n.Set("tz", text(l.TZ))
		list.Items = append(list.Items, n)
	}
	return list
}

func (c *CostTable) node() *yaml.Node {
	n := yaml.NewMap()
	n.Set("by", text(c.By))
	values := yaml.NewMap()
	for _, v := range c.Values {
		values.Set(v.Value, integer(v.Cost))
	}
	setFilled(n, "values", values)
	n.Set("default", integer(c.Default))
	return n
}

func (a *Adaptive) node() *yaml.Node {
	steps := yaml.NewList()
	for _, s := range a.Steps {
		n := yaml.NewMap().OnOneLine()
		n.Set("above", fraction(s.Above))
		n.Set("factor", fraction(s.Factor))
		steps.Items = append(steps.Items, n)
	}
	n := yaml.NewMap()
	n.Set("source", text(a.Source))
	n.Set("steps", steps)
	return n
}

func (t *TierSpec) node() *yaml.Node {
	n := yaml.NewMap()
	n.Set("limits", limitsNode(t.Limits))
	return n
}

func (s *SubjectSpec) node() *yaml.Node {
	n := yaml.NewMap().OnOneLine()
	n.Set("tier", text(s.Tier))
	overrides := yaml.NewMap()
	for _, o := range s.Overrides {
		overrides.Set(o.Rule, limitsNode(o.Limits))
	}
	setFilled(n, "limits", overrides)
	return n
}

func (p *ProfileSpec) node() *yaml.Node {
	n := yaml.NewMap()
	for _, s := range p.Sources {
		n.Set(s.Attribute, text(s.Source))
	}
	n.Set("trusted_hops", number(int64(p.TrustedHops)))
	return n
}
