package document

import "github.com/rlnode/rlnode/internal/yaml"

// Condition requires that an attribute has one of several values: each a
// string, a glob with *, or a CIDR.
type Condition struct {
	Attribute string
	Values    []string
	single    bool // written without brackets
}

// ListEntry is an entry of the allow or deny list: conditions that must all hold.
type ListEntry struct {
	Match []Condition
	pos   yaml.Pos
}

var (
	matchCodec   = codec[[]Condition]{(*decoder).conditions, unlessEmpty(conditionsNode)}
	entriesCodec = codec[[]*ListEntry]{(*decoder).entries, unlessEmpty(entriesNode)}
)

func (dec *decoder) entries(n *yaml.Node) []*ListEntry {
	var out []*ListEntry
	dec.eachItem(n, func(n *yaml.Node) { out = append(out, &ListEntry{Match: dec.conditions(n), pos: n.Pos}) })
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

func conditionsNode(match []Condition) *yaml.Node {
	return mapNode(match, func(c Condition) string { return c.Attribute }, func(c Condition) *yaml.Node {
		if c.single {
			return yaml.Text(c.Values[0])
		}
		return textsNode(c.Values)
	}).OnOneLine()
}

func entriesNode(entries []*ListEntry) *yaml.Node {
	return listNode(entries, func(e *ListEntry) *yaml.Node { return conditionsNode(e.Match) })
}
