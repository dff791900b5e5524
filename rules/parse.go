package rules

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

// Parse reads a whole document from YAML or JSON of at most [MaxDocument] bytes. The error is of type [Errors]
// and has every mistake, or the one that made the text unreadable.
func Parse(src []byte) (*Document, error) {
	root, err := parseText(src)
	if err != nil {
		return nil, err
	}
	d := &decoder{}
	doc := &Document{source: string(src), at: places{}}
	doc.asJSON = json.Valid(src)
	if root.Kind == yaml.Null {
		d.fail(root, "the document is empty")
		return nil, d.err()
	}
	d.document(root, doc)
	validate(doc, &d.collector)
	if err := d.err(); err != nil {
		return nil, err
	}
	doc.size = doc.measure()
	return doc, nil
}

func parseText(src []byte) (*yaml.Node, error) {
	if len(src) > MaxDocument {
		return nil, Errors{{Message: "the document is larger than 8 MiB"}}
	}
	root, err := yaml.Parse(string(src))
	var syntax *yaml.SyntaxError
	if errors.As(err, &syntax) {
		return nil, Errors{{Line: int(syntax.Line), Column: int(syntax.Column), Message: syntax.Message}}
	}
	return root, err
}

// What keys may stand where, in the order in which they are written.
// maxGroups bounds the attributes that have subjects listed.
const maxGroups = 256

func documentKeys() []string {
	return []string{"version", "defaults", "default", "headers", "lists", "rules", "tiers", "default_tier", "subjects", "profiles"}
}

func (d *decoder) document(n *yaml.Node, doc *Document) {
	d.object(n, documentKeys(), func(key string, at, v *yaml.Node) {
		doc.at[key] = at.Pos
		switch key {
		case "version":
			if v.Kind != yaml.Int || v.Text != "1" {
				d.fail(v, "the only version is 1")
			}
		case "defaults":
			doc.Defaults = d.defaults(v, doc.at)
		case "default":
			doc.Default = d.word(v, "allow", "deny")
		case "headers":
			doc.Headers = d.headers(v)
		case "lists":
			d.lists(v, doc)
		case "rules":
			d.rules(v, doc)
		case "tiers":
			d.open(v, func(key, v *yaml.Node) { doc.Tiers = append(doc.Tiers, d.tier(key, v)) })
		case "default_tier":
			doc.DefaultTier = d.name(v)
		case "subjects":
			d.open(v, func(key, v *yaml.Node) { doc.Subjects = append(doc.Subjects, d.group(key, v)) })
			if len(doc.Subjects) > maxGroups {
				d.fail(v, "more than %d attributes with subjects", maxGroups)
			}
		case "profiles":
			d.open(v, func(key, v *yaml.Node) { doc.Profiles = append(doc.Profiles, d.profile(key, v)) })
		}
	})
}

func (d *decoder) defaults(n *yaml.Node, at places) (out Defaults) {
	keys := []string{"algorithm", "consistency", "on_partition", "lease", "on_limit", "max_delay", "ipv6_prefix", "tz"}
	d.object(n, keys, func(key string, k, v *yaml.Node) {
		at["defaults."+key] = k.Pos
		if key == "algorithm" {
			out.Algorithm = d.algorithm(v)
			return
		}
		d.setting(key, v, &out.Settings)
	})
	return out
}

// setting reads a key that defaults and rules share.
func (d *decoder) setting(key string, v *yaml.Node, s *Settings) {
	switch key {
	case "consistency":
		s.Consistency = d.word(v, "exact", "hybrid", "local")
	case "on_partition":
		s.OnPartition = d.word(v, partitionWords[:]...)
	case "lease":
		s.Lease = d.lease(v)
	case "on_limit":
		s.OnLimit = d.word(v, "refuse", "delay")
	case "max_delay":
		s.MaxDelay = d.span(v, time.Millisecond, 24*time.Hour)
	case "ipv6_prefix":
		s.IPv6Prefix = int(d.integer(v, 1, 128))
	case "tz":
		s.TZ = d.zone(v)
	}
}

func (d *decoder) lease(n *yaml.Node) (out LeaseSpec) {
	d.object(n, []string{"threshold", "ttl", "idle"}, func(key string, _, v *yaml.Node) {
		switch key {
		case "threshold":
			out.Threshold = d.fraction(v, 0.5, 0.95)
		case "ttl":
			if out.AutoTTL = v.Kind == yaml.String && v.Text == "auto"; !out.AutoTTL {
				out.TTL = d.span(v, 50*time.Millisecond, 5*time.Second)
			}
		case "idle":
			mistakes := len(d.errs)
			if out.Idle = d.fraction(v, 0, 0.5); out.Idle == 0 && len(d.errs) == mistakes {
				d.fail(v, "idle must be above 0")
			}
		}
	})
	return out
}

func (d *decoder) zone(n *yaml.Node) string {
	s, ok := d.text(n)
	if !ok {
		return ""
	}
	valid, known := d.zones[s]
	if !known && len(d.zones) < maxZones {
		_, err := algorithms.Zone(s)
		valid = err == nil
		if d.zones == nil {
			d.zones = map[string]bool{}
		}
		d.zones[s] = valid
	}
	if !valid {
		d.fail(n, "%q is not a time zone such as UTC or Europe/Berlin", shorten(s))
		return ""
	}
	return s
}

func (d *decoder) algorithm(n *yaml.Node) string {
	return d.word(n, algorithms.TokenBucket.String(), algorithms.LeakyBucket.String(), algorithms.FixedWindow.String(),
		algorithms.SlidingLog.String(), algorithms.SlidingWindow.String())
}

func (d *decoder) headers(n *yaml.Node) *Headers {
	h := &Headers{IETF: true, XRateLimit: true}
	d.object(n, []string{"ietf", "x_ratelimit", "reset"}, func(key string, _, v *yaml.Node) {
		switch key {
		case "ietf":
			h.IETF = d.boolean(v)
		case "x_ratelimit":
			h.XRateLimit = d.boolean(v)
		case "reset":
			h.ResetDelta = d.word(v, "unix", "delta") == "delta"
		}
	})
	return h
}

func (d *decoder) lists(n *yaml.Node, doc *Document) {
	d.object(n, []string{"deny", "allow"}, func(key string, _, v *yaml.Node) {
		if key == "deny" {
			doc.Deny = d.entries(v)
		} else {
			doc.Allow = d.entries(v)
		}
	})
}

func (d *decoder) entries(n *yaml.Node) []*Entry {
	var out []*Entry
	d.each(n, func(n *yaml.Node) { out = append(out, &Entry{Match: d.conditions(n)}) })
	return out
}

// conditions reads a rule's match or an entry of a list.
func (d *decoder) conditions(n *yaml.Node) []Condition {
	var out []Condition
	if d.kind(n, yaml.Map) && len(n.Items) == 0 {
		d.fail(n, "at least one attribute is expected")
	}
	if n.Kind != yaml.Map {
		return nil
	}
	d.open(n, func(key, v *yaml.Node) {
		c := Condition{Attribute: d.checkName(key, key.Text), single: v.Kind != yaml.List}
		if c.single {
			c.Values = d.matchValue(c, v)
		} else if d.each(v, func(v *yaml.Node) { c.Values = d.matchValue(c, v) }) && len(v.Items) == 0 {
			d.fail(v, "an empty list matches nothing")
		}
		out = append(out, c)
	})
	if len(out) > maxAttributes {
		d.fail(n, "more than %d attributes", maxAttributes)
	}
	return out
}

// matchValue appends a value to those of c.
func (d *decoder) matchValue(c Condition, v *yaml.Node) []string {
	s, ok := d.value(v)
	if !ok {
		return c.Values
	}
	if message := checkAddress(c.Attribute, s, true); message != "" {
		d.fail(v, "%s", message)
	}
	return append(c.Values, s)
}

func (d *decoder) tier(key, n *yaml.Node) *TierSpec {
	t := &TierSpec{Name: d.checkName(key, key.Text), pos: key.Pos}
	has := false
	ok := d.object(n, []string{"limits"}, func(_ string, _, v *yaml.Node) {
		has = true
		t.Limits = d.limits(v)
	})
	if ok && !has {
		d.fail(n, "a tier needs limits")
	}
	return t
}

// group reads the subjects of one attribute.
func (d *decoder) group(key, n *yaml.Node) *Group {
	g := &Group{Attribute: d.checkName(key, key.Text), pos: key.Pos}
	if n.Kind == yaml.Map {
		g.Subjects = make([]*SubjectSpec, 0, len(n.Items)/2)
	}
	d.open(n, func(key, v *yaml.Node) {
		g.Subjects = append(g.Subjects, d.subject(g.Attribute, key, v))
	})
	byValue := func(a, b *SubjectSpec) int { return strings.Compare(a.Value, b.Value) }
	if !slices.IsSortedFunc(g.Subjects, byValue) {
		slices.SortStableFunc(g.Subjects, byValue)
	}
	for i := 1; i < len(g.Subjects); i++ {
		// Only addresses can get here: other values would have been the same key.
		if a, b := g.Subjects[i-1], g.Subjects[i]; a.Value == b.Value {
			d.add(b.pos, string(appendKey(slices.Clone(d.path), b.Value)), "the address stands here twice, first on line %d", a.pos.Line)
		}
	}
	return g
}

func (d *decoder) subject(attribute string, key, n *yaml.Node) *SubjectSpec {
	s := &SubjectSpec{Value: d.subjectValue(attribute, key), pos: key.Pos}
	ok := d.object(n, []string{"tier", "limits"}, func(key string, _, v *yaml.Node) {
		if key == "tier" {
			s.Tier = d.name(v)
			return
		}
		d.open(v, func(key, v *yaml.Node) {
			s.Overrides = append(s.Overrides, Override{Rule: key.Text, Limits: d.limits(v), pos: key.Pos})
		})
	})
	if ok && s.Tier == "" && len(s.Overrides) == 0 {
		d.fail(n, "a subject needs a tier or limits")
	}
	return s
}

func (d *decoder) subjectValue(attribute string, key *yaml.Node) string {
	s, ok := d.value(key)
	if !ok {
		return ""
	}
	if message := checkAddress(attribute, s, false); message != "" {
		d.fail(key, "%s", message)
	}
	return usualAddress(attribute, s)
}
