package rules

import (
	"crypto/sha256"
	"fmt"
	"strconv"

	"github.com/rlnode/rlnode/internal/yaml"
)

// YAML renders the document. If it was parsed from YAML, the result is the
// original text with its comments; otherwise the keys are in the usual order.
func (d *Document) YAML() []byte {
	if d.source != "" && !d.asJSON {
		return []byte(d.source)
	}
	text := d.node().AppendYAML(nil)
	if len(text) > MaxDocument && d.source != "" {
		return []byte(d.source) // JSON is YAML too, and it fits
	}
	return text
}

// JSON renders the document as JSON, with the keys in the usual order.
func (d *Document) JSON() []byte { return d.node().AppendJSON(nil) }

// Hash returns the SHA-256 of the document as JSON with the keys in the usual
// order, whatever text it was parsed from. Nodes of different builds compare
// these hashes, so a change that gives any document another hash needs a higher
// feature level.
func (d *Document) Hash() [sha256.Size]byte { return sha256.Sum256(d.JSON()) }

// fittingText renders the document as YAML, or as JSON if only that fits.
func (d *Document) fittingText() []byte {
	text := d.YAML()
	if len(text) > MaxDocument {
		text = d.JSON()
	}
	return text
}

// Text returns the text that the document was parsed from, or an equivalent
// one. The error is of type [Errors] and means that no such text fits in
// MaxDocument bytes.
func (d *Document) Text() (string, error) {
	if d.source != "" {
		return d.source, nil
	}
	text := d.fittingText()
	if len(text) > MaxDocument {
		return "",
			Errors{{Message: fmt.Sprintf("the document takes %d bytes as text; at most %d are allowed", len(text), MaxDocument)}}
	}
	return string(text), nil
}

func (d *Document) node() *yaml.Node { return documentFields.node(d) }

func (spec *RuleSpec) node() *yaml.Node { return ruleFields.node(spec) }

func (t *TierSpec) node() *yaml.Node { return tierFields.node(t) }

func (spec *SubjectSpec) node() *yaml.Node { return subjectFields.node(spec).OnOneLine() }

func leaseNode(l LeaseSpec) *yaml.Node { return leaseFields.node(&l).OnOneLine() }

// nilIfEmpty returns nil for an empty collection, so that its key is left out.
func nilIfEmpty(collection *yaml.Node) *yaml.Node {
	if len(collection.Items) == 0 {
		return nil
	}
	return collection
}

func listNode[V any](list []V, node func(V) *yaml.Node) *yaml.Node {
	n := yaml.NewList()
	for _, v := range list {
		n.Items = append(n.Items, node(v))
	}
	return n
}

func mapNode[V any](list []V, key func(V) string, node func(V) *yaml.Node) *yaml.Node {
	n := yaml.NewMap()
	for _, v := range list {
		n.Set(key(v), node(v))
	}
	return n
}

// text returns nil for an empty text, so that its key is left out.
func text(s string) *yaml.Node {
	if s == "" {
		return nil
	}
	return yaml.Text(s)
}

func integer[N int | int64](v N) *yaml.Node {
	return yaml.Scalar(yaml.Int, strconv.FormatInt(int64(v), 10))
}

func fraction(v float64) *yaml.Node {
	return yaml.Scalar(yaml.Float, strconv.FormatFloat(v, 'f', -1, 64))
}

func boolean(v bool) *yaml.Node { return yaml.Scalar(yaml.Bool, strconv.FormatBool(v)) }

func entriesNode(entries []*Entry) *yaml.Node {
	return listNode(entries, func(e *Entry) *yaml.Node { return conditionsNode(e.Match) })
}

func conditionsNode(match []Condition) *yaml.Node {
	return mapNode(match, func(c Condition) string { return c.Attribute }, func(c Condition) *yaml.Node {
		if c.single {
			return yaml.Text(c.Values[0])
		}
		return textsNode(c.Values)
	}).OnOneLine()
}

func textsNode(texts []string) *yaml.Node { return listNode(texts, yaml.Text).OnOneLine() }

func limitsNode(limits []*LimitSpec) *yaml.Node {
	if len(limits) == 0 {
		return nil
	}
	if len(limits) == 1 && limits[0].Unlimited && limits[0].Unit == "" && limits[0].Name == "" {
		return text(unlimitedWord)
	}
	return listNode(limits, func(l *LimitSpec) *yaml.Node { return limitFields.node(l).OnOneLine() })
}

func (p *ProfileSpec) node() *yaml.Node {
	n := mapNode(p.Sources, func(s ProfileSource) string { return s.Attribute },
		func(s ProfileSource) *yaml.Node { return text(s.Source) })
	n.Set("trusted_hops", unlessZero(integer[int])(p.TrustedHops))
	return n
}
