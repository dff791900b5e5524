package document

import (
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/yaml"
)

// TierSpec is a named set of limits.
type TierSpec struct {
	Name   string
	Limits []*LimitSpec
	pos    yaml.Pos
}

var tierFields = fieldsOf(of("limits", limitsCodec, func(t *TierSpec) *[]*LimitSpec { return &t.Limits }))

func (dec *decoder) tier(key, n *yaml.Node) *TierSpec {
	t := &TierSpec{Name: dec.checkName(key, key.Text), pos: key.Pos}
	if tierFields.read(dec, n, t, nil) {
		dec.need(n, "limits", "a tier needs limits")
	}
	return t
}

func (t *TierSpec) node() *yaml.Node { return tierFields.node(t) }

// maxGroups bounds the attributes with listed subjects.
const maxGroups = 256

// Group holds the listed subjects of one attribute, sorted by value.
type Group struct {
	Attribute string
	Subjects  []*SubjectSpec
	pos       yaml.Pos
}

// SubjectSpec gives a subject a tier, its own limits for some rules, or both.
type SubjectSpec struct {
	Value     string // addresses in canonical notation
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

var subjectFields = fieldsOf(
	of("tier", nameCodec, func(s *SubjectSpec) *string { return &s.Tier }),
	of("limits", codec[[]Override]{mapOf(func(d *decoder, key, n *yaml.Node) Override {
		return Override{Rule: key.Text, Limits: d.limits(n), pos: key.Pos}
	}), unlessEmpty(func(list []Override) *yaml.Node {
		return mapNode(list, func(o Override) string { return o.Rule },
			func(o Override) *yaml.Node { return limitsNode(o.Limits) })
	})}, func(s *SubjectSpec) *[]Override { return &s.Overrides }),
)

func (dec *decoder) groups(n *yaml.Node) []*Group {
	list := mapOf((*decoder).group)(dec, n)
	if len(list) > maxGroups {
		dec.fail(n, "more than %d attributes with subjects", maxGroups)
	}
	return list
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
	if HoldsAddresses(g.Attribute) {
		return "address"
	}
	return "value"
}

// find returns the index of a subject, given by its canonical value, or the
// index at which to insert it.
func (g *Group) find(value string) (i int, found bool) {
	return slices.BinarySearchFunc(g.Subjects, value, func(s *SubjectSpec, v string) int {
		return strings.Compare(s.Value, v)
	})
}

func (spec *SubjectSpec) node() *yaml.Node { return subjectFields.node(spec).OnOneLine() }
