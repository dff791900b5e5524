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

// Parse reads a whole document from YAML or JSON of at most [MaxDocument]
// bytes. The error is of type [Errors] and lists every mistake, or only the one
// that makes the text unreadable.
func Parse(src []byte) (*Document, error) {
	root, err := parseText(src)
	if err != nil {
		return nil, err
	}

	d := &decoder{}
	doc := &Document{source: string(src), positions: positions{}}
	doc.asJSON = json.Valid(src)

	if root.Kind == yaml.Null {
		d.fail(root, "the document is empty")
		return nil, d.err()
	}

	moveFirst(root, "attributes") // the other parts name them
	documentFields.read(d, root, doc, doc.positions)
	validate(doc, &d.collector)

	if err := d.err(); err != nil {
		return nil, err
	}

	doc.days = d.days
	doc.loose = d.loose.errs
	return doc, nil
}

func parseText(src []byte) (*yaml.Node, error) {
	if len(src) > MaxDocument {
		return nil, Errors{{Message: "the document is larger than 8 MiB"}}
	}
	if err := refuseManyRules(string(src)); err != nil {
		return nil, err
	}
	root, err := yaml.Parse(string(src))
	if syntax, ok := errors.AsType[*yaml.SyntaxError](err); ok {
		return nil, Errors{{Line: int(syntax.Line), Column: int(syntax.Column), Message: syntax.Message}}
	}
	return root, err
}

// maxGroups bounds the attributes with listed subjects.
const maxGroups = 256

// The keys allowed in each mapping, in the order in which they are written.
var (
	documentFields = fieldsOf(
		field[Document]{"version", func(d *decoder, n *yaml.Node, _ *Document) {
			if d.shapes != nil {
				d.shapes.describeNumber(n, yaml.Int, integer(1), integer(1))
				return
			}
			if n.Kind != yaml.Int || n.Text != "1" {
				d.fail(n, "the only version is 1")
			}
		}, func(*Document) *yaml.Node { return integer(1) }},
		field[Document]{"attributes", (*decoder).declare,
			func(doc *Document) *yaml.Node { return declarationNode(doc.Attributes) }},
		field[Document]{"defaults", func(d *decoder, n *yaml.Node, doc *Document) {
			defaultsFields.read(d, n, &doc.Defaults, nil)
		}, func(doc *Document) *yaml.Node { return nilIfEmpty(defaultsFields.node(&doc.Defaults)) }},
		of("default", wordCodec("allow", "deny"), func(doc *Document) *string { return &doc.Default }),
		field[Document]{"headers", func(d *decoder, n *yaml.Node, doc *Document) {
			doc.Headers = &Headers{IETF: true, XRateLimit: true}
			headerFields.read(d, n, doc.Headers, nil)
		}, func(doc *Document) *yaml.Node {
			if doc.Headers == nil {
				return nil
			}
			return headerFields.node(doc.Headers).OnOneLine()
		}},
		field[Document]{"lists", func(d *decoder, n *yaml.Node, doc *Document) {
			listFields.read(d, n, doc, nil)
		}, func(doc *Document) *yaml.Node { return nilIfEmpty(listFields.node(doc)) }},
		field[Document]{"rules", (*decoder).rules, func(doc *Document) *yaml.Node {
			return nilIfEmpty(listNode(doc.Rules, ruleFields.node))
		}},
		of("tiers", codec[[]*TierSpec]{mapOf((*decoder).tier), unlessEmpty(func(tiers []*TierSpec) *yaml.Node {
			return mapNode(tiers, func(t *TierSpec) string { return t.Name }, tierFields.node)
		})}, func(doc *Document) *[]*TierSpec { return &doc.Tiers }),
		of("default_tier", nameCodec, func(doc *Document) *string { return &doc.DefaultTier }),
		of("subjects", codec[[]*Group]{(*decoder).groups, unlessEmpty(func(groups []*Group) *yaml.Node {
			return mapNode(groups, func(g *Group) string { return g.Attribute }, func(g *Group) *yaml.Node {
				return mapNode(g.Subjects, func(s *SubjectSpec) string { return s.Value }, (*SubjectSpec).node)
			})
		})}, func(doc *Document) *[]*Group { return &doc.Subjects }),
		of("profiles",
			codec[[]*ProfileSpec]{mapOf((*decoder).profile), unlessEmpty(func(profiles []*ProfileSpec) *yaml.Node {
				return mapNode(profiles, func(p *ProfileSpec) string { return p.Name }, (*ProfileSpec).node)
			})}, func(doc *Document) *[]*ProfileSpec { return &doc.Profiles }),
		of("inline", codec[*InlineSpec]{(*decoder).inline, unlessZero(inlineFields.node)},
			func(doc *Document) **InlineSpec { return &doc.Inline }),
		of("envoy", codec[[]*EnvoySpec]{(*decoder).envoy, unlessEmpty(func(list []*EnvoySpec) *yaml.Node {
			return listNode(list, envoyFields.node)
		})}, func(doc *Document) *[]*EnvoySpec { return &doc.Envoy }),
	)

	defaults       = settingFields(func(f *Defaults) *Settings { return &f.Settings })
	defaultsFields = fieldsOf(
		of("algorithm", algorithmCodec, func(f *Defaults) *string { return &f.Algorithm }),
		defaults["consistency"], defaults["on_partition"], defaults["lease"], defaults["on_limit"],
		defaults["max_delay"],
		defaults["ipv4_prefix"], defaults["ipv6_prefix"], defaults["tz"],
	)

	leaseFields = fieldsOf(
		of("threshold", fractionCodec(0.5, 0.95), func(l *LeaseSpec) *float64 { return &l.Threshold }),
		field[LeaseSpec]{"ttl", func(d *decoder, n *yaml.Node, l *LeaseSpec) {
			d.alsoWords(n, "auto")
			l.AutoTTL = n.Kind == yaml.String && n.Text == "auto"
			if !l.AutoTTL {
				l.TTL = d.span(n, 50*time.Millisecond, 5*time.Second)
			}
		}, func(l *LeaseSpec) *yaml.Node {
			if l.AutoTTL {
				return text("auto")
			}
			return text(l.TTL.Text)
		}},
		of("idle", positiveCodec(0.5, "idle"), func(l *LeaseSpec) *float64 { return &l.Idle }),
	)

	headerFields = fieldsOf(
		of("ietf", booleanCodec, func(h *Headers) *bool { return &h.IETF }),
		of("x_ratelimit", booleanCodec, func(h *Headers) *bool { return &h.XRateLimit }),
		of("reset", codec[bool]{
			func(d *decoder, n *yaml.Node) bool { return d.word(n, resetWords[:]...) == resetWords[1] },
			func(delta bool) *yaml.Node {
				if delta {
					return text(resetWords[1])
				}
				return text(resetWords[0])
			},
		}, func(h *Headers) *bool { return &h.ResetDelta }),
	)

	listFields = fieldsOf(
		of("deny", entriesCodec, func(doc *Document) *[]*Entry { return &doc.Deny }),
		of("allow", entriesCodec, func(doc *Document) *[]*Entry { return &doc.Allow }),
	)

	tierFields = fieldsOf(of("limits", limitsCodec, func(t *TierSpec) *[]*LimitSpec { return &t.Limits }))

	subjectFields = fieldsOf(
		of("tier", nameCodec, func(s *SubjectSpec) *string { return &s.Tier }),
		of("limits", codec[[]Override]{mapOf(func(d *decoder, key, n *yaml.Node) Override {
			return Override{Rule: key.Text, Limits: d.limits(n), pos: key.Pos}
		}), unlessEmpty(func(list []Override) *yaml.Node {
			return mapNode(list, func(o Override) string { return o.Rule },
				func(o Override) *yaml.Node { return limitsNode(o.Limits) })
		})}, func(s *SubjectSpec) *[]Override { return &s.Overrides }),
	)
)

// allowCodec reads and writes the key "allow", which is the opposite of InlineSpec.Refuse.
var allowCodec = codec[bool]{
	func(d *decoder, n *yaml.Node) bool { return d.expectKind(n, yaml.Bool) && !d.boolean(n) },
	func(refuse bool) *yaml.Node { return boolean(!refuse) },
}

var inlineFields = fieldsOf(
	of("allow", allowCodec, func(s *InlineSpec) *bool { return &s.Refuse }),
	of("namespaces",
		codec[[]string]{(*decoder).namespaces, func(list []string) *yaml.Node { return nilIfEmpty(textsNode(list)) }},
		func(s *InlineSpec) *[]string { return &s.Namespaces }),
	of("max_limit", integerCodec(1, int64(algorithms.MaxAmount)), func(s *InlineSpec) *int64 { return &s.MaxLimit }),
	of("max_per", spanCodec(algorithms.MinWindow, algorithms.MaxWindow),
		func(s *InlineSpec) *Span { return &s.MaxPer }),
	of("on_partition", wordCodec(partitionWords[:]...), func(s *InlineSpec) *string { return &s.OnPartition }),
)

// maxNamespaces bounds the namespaces of inline limits that a document names:
// each has its own metrics.
const maxNamespaces = 100

func (dec *decoder) inline(n *yaml.Node) *InlineSpec {
	s := &InlineSpec{}
	inlineFields.read(dec, n, s, nil)
	return s
}

func (dec *decoder) namespaces(n *yaml.Node) (list []string) {
	dec.eachItem(n, func(n *yaml.Node) {
		name := dec.name(n)
		if name != "" && slices.Contains(list, name) {
			dec.fail(n, "duplicate namespace %q", name)
		}
		list = append(list, name)
	})
	if len(n.Items) == 0 || len(list) > maxNamespaces {
		dec.fail(n, "expected 1 to %d namespaces", maxNamespaces)
	}
	return list
}

// resetWords are the values of `headers.reset`.
var resetWords = [...]string{"unix", "delta"}

// mapOf reads a mapping whose keys the user chooses.
func mapOf[V any](read func(d *decoder, key, n *yaml.Node) V) func(d *decoder, n *yaml.Node) []V {
	return func(d *decoder, n *yaml.Node) (list []V) {
		d.eachEntry(n, func(key, v *yaml.Node) { list = append(list, read(d, key, v)) })
		return list
	}
}

func (dec *decoder) groups(n *yaml.Node) []*Group {
	list := mapOf((*decoder).group)(dec, n)
	if len(list) > maxGroups {
		dec.fail(n, "more than %d attributes with subjects", maxGroups)
	}
	return list
}

func (dec *decoder) lease(n *yaml.Node) (out LeaseSpec) {
	leaseFields.read(dec, n, &out, nil)
	return out
}

func (dec *decoder) zone(n *yaml.Node) string {
	s, ok := dec.text(n)
	if !ok {
		return ""
	}

	valid, known := dec.zones[s]
	if !known && len(dec.zones) < maxZones {
		_, err := algorithms.Zone(s)
		valid = err == nil
		if dec.zones == nil {
			dec.zones = map[string]bool{}
		}
		dec.zones[s] = valid
	}

	if !valid {
		dec.fail(n, "%q is not a time zone such as UTC or Europe/Berlin", shorten(s))
		return ""
	}

	return s
}

func (dec *decoder) algorithm(n *yaml.Node) string {
	return dec.word(n, windowAlgorithms[:]...)
}

// windowAlgorithms are the algorithms that count what happens over time.
var windowAlgorithms = [...]string{
	algorithms.TokenBucket.String(), algorithms.LeakyBucket.String(), algorithms.FixedWindow.String(),
	algorithms.SlidingLog.String(), algorithms.SlidingWindow.String(),
}

// limitAlgorithm reads the algorithm of a limit. Unlike a default, it may be
// concurrency.
func (dec *decoder) limitAlgorithm(n *yaml.Node) string {
	return dec.word(n,
		append(windowAlgorithms[:len(windowAlgorithms):len(windowAlgorithms)], algorithms.Concurrency.String())...)
}

func (dec *decoder) entries(n *yaml.Node) []*Entry {
	var out []*Entry
	dec.eachItem(n, func(n *yaml.Node) { out = append(out, &Entry{Match: dec.conditions(n), pos: n.Pos}) })
	return out
}

// conditions reads a rule's match or an entry of a list.
func (dec *decoder) conditions(n *yaml.Node) []Condition {
	var out []Condition
	if dec.expectKind(n, yaml.Map) && len(n.Items) == 0 {
		dec.fail(n, "expected at least one attribute")
	}

	if n.Kind != yaml.Map {
		return nil
	}

	dec.eachEntry(n, func(key, v *yaml.Node) {
		c := Condition{Attribute: dec.checkAttribute(key, key.Text), single: v.Kind != yaml.List}
		if c.single {
			c.Values = dec.matchValue(c, v)
		} else if dec.eachItem(v, func(v *yaml.Node) { c.Values = dec.matchValue(c, v) }) && len(v.Items) == 0 {
			dec.fail(v, "an empty list matches nothing")
		}
		out = append(out, c)
	})
	if len(out) > MaxAttributes {
		dec.fail(n, "more than %d attributes", MaxAttributes)
	}

	return out
}

// matchValue appends a value to c's.
func (dec *decoder) matchValue(c Condition, v *yaml.Node) []string {
	s, ok := dec.value(v)
	if !ok {
		return c.Values
	}
	if message := addressMistake(c.Attribute, s, true); message != "" {
		dec.fail(v, "%s", message)
	}
	return append(c.Values, s)
}

func (dec *decoder) tier(key, n *yaml.Node) *TierSpec {
	t := &TierSpec{Name: dec.checkName(key, key.Text), pos: key.Pos}
	if tierFields.read(dec, n, t, nil) {
		dec.need(n, "limits", "a tier needs limits")
	}
	return t
}

// group reads the subjects of one attribute.
func (dec *decoder) group(key, n *yaml.Node) *Group {
	g := &Group{Attribute: dec.checkAttribute(key, key.Text), pos: key.Pos}
	if n.Kind == yaml.Map {
		g.Subjects = make([]*SubjectSpec, 0, len(n.Items)/2)
	}

	dec.eachEntry(n, func(key, v *yaml.Node) {
		g.Subjects = append(g.Subjects, dec.subject(g.Attribute, key, v))
	})
	byValue := func(a, b *SubjectSpec) int { return strings.Compare(a.Value, b.Value) }
	if !slices.IsSortedFunc(g.Subjects, byValue) {
		slices.SortStableFunc(g.Subjects, byValue)
	}

	for i := 1; i < len(g.Subjects); i++ {
		// Equal values have different spellings here: equal texts were reported as
		// duplicate keys.
		a, b := g.Subjects[i-1], g.Subjects[i]
		if a.Value == b.Value {
			dec.add(b.pos, string(appendKey(slices.Clone(dec.path), b.Value)),
				"duplicate %s; the first is on line %d", g.what(), a.pos.Line)
		}
	}

	return g
}

func (dec *decoder) subject(attribute string, key, n *yaml.Node) *SubjectSpec {
	s := &SubjectSpec{Value: dec.subjectValue(attribute, key), pos: key.Pos}
	ok := subjectFields.read(dec, n, s, nil)
	if ok && s.Tier == "" && len(s.Overrides) == 0 {
		dec.fail(n, "a subject needs a tier or limits")
	}
	return s
}

func (dec *decoder) subjectValue(attribute string, key *yaml.Node) string {
	s, ok := dec.value(key)
	if !ok {
		return ""
	}
	if message := addressMistake(attribute, s, false); message != "" {
		dec.fail(key, "%s", message)
	}
	return canonicalValue(dec.declared, attribute, s)
}

// what names the values of a group in messages.
func (g *Group) what() string {
	if holdsAddresses(g.Attribute) {
		return "address"
	}
	return "value"
}
