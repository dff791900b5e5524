package rules

import (
	"maps"
	"slices"

	"github.com/rlnode/rlnode/internal/yaml"
)

// maxDeclared bounds the attributes that a document declares.
const maxDeclared = 256

// AttributeSpec declares an attribute, and says which spellings of its values are the same.
type AttributeSpec struct {
	Name string
	Fold []string // of foldWords
	Path bool     // values are paths

	folding folding
	pos     yaml.Pos
}

// The values of `fold`.
const (
	foldTrim  = "trim"
	foldLower = "lower"
	foldNFC   = "nfc"
)

var foldWords = [...]string{foldTrim, foldLower, foldNFC}

var attributeFields = fieldsOf(
	of("fold", codec[[]string]{(*decoder).foldWords, unlessEmpty(textsNode)},
		func(a *AttributeSpec) *[]string { return &a.Fold }),
	of("path", flagCodec, func(a *AttributeSpec) *bool { return &a.Path }),
)

// declare reads the attributes of a document: a list of names, or a mapping of names to options.
func (dec *decoder) declare(n *yaml.Node, doc *Document) {
	switch n.Kind {
	case yaml.List:
		dec.eachItem(n, func(n *yaml.Node) { dec.declareOne(doc, dec.name(n), n, nil) })
	case yaml.Map:
		dec.eachEntry(n, func(key, v *yaml.Node) { dec.declareOne(doc, dec.checkName(key, key.Text), key, v) })
	default:
		dec.fail(n, "expected a list of names or a mapping, not %s", n.Kind)
		return
	}

	if len(n.Items) == 0 {
		dec.fail(n, "expected at least one attribute")
	}
	if len(doc.Attributes) > maxDeclared {
		dec.fail(n, "more than %d attributes", maxDeclared)
	}

	doc.declared = make(map[string]*AttributeSpec, len(doc.Attributes))
	for _, a := range doc.Attributes {
		doc.declared[a.Name] = a
	}
	dec.declared = doc.declared
}

// declareOne reads an attribute's options, if there are any.
func (dec *decoder) declareOne(doc *Document, name string, at, options *yaml.Node) {
	if name == "" {
		return // it has been reported
	}
	if slices.ContainsFunc(doc.Attributes, func(a *AttributeSpec) bool { return a.Name == name }) {
		dec.fail(at, "duplicate attribute %q", name)
		return
	}

	a := &AttributeSpec{Name: name, pos: at.Pos}
	if options != nil && options.Kind != yaml.Null {
		attributeFields.read(dec, options, a, nil)
	}

	a.folding = folding{
		trim: slices.Contains(a.Fold, foldTrim), lower: slices.Contains(a.Fold, foldLower),
		nfc: slices.Contains(a.Fold, foldNFC), path: a.Path,
	}
	doc.Attributes = append(doc.Attributes, a)
}

func (dec *decoder) foldWords(n *yaml.Node) (list []string) {
	dec.eachItem(n, func(n *yaml.Node) {
		word := dec.word(n, foldWords[:]...)
		if word != "" && slices.Contains(list, word) {
			dec.fail(n, "duplicate word %q", word)
		}
		list = append(list, word)
	})
	return list
}

// declarationNode returns the list of names if no attribute has options, and otherwise the mapping.
func declarationNode(list []*AttributeSpec) *yaml.Node {
	if len(list) == 0 {
		return nil
	}
	if !slices.ContainsFunc(list, func(a *AttributeSpec) bool { return a.folding != folding{} }) {
		return listNode(list, func(a *AttributeSpec) *yaml.Node { return yaml.Text(a.Name) }).OnOneLine()
	}
	return mapNode(list, func(a *AttributeSpec) string { return a.Name }, func(a *AttributeSpec) *yaml.Node {
		return attributeFields.node(a).OnOneLine()
	})
}

func declaredNames(declared map[string]*AttributeSpec) []string {
	return slices.Sorted(maps.Keys(declared))
}

// Declares reports whether the document allows an attribute: it declares the
// attribute, or none at all.
func (d *Document) Declares(attribute string) bool {
	return d.declared == nil || d.declared[attribute] != nil
}

// Canonical returns the spelling that stands for all spellings of an
// attribute's value: folded as the document declares, and an address in
// canonical notation.
func (d *Document) Canonical(attribute, value string) string {
	return canonicalValue(d.declared, attribute, value)
}

func canonicalValue(declared map[string]*AttributeSpec, attribute, value string) string {
	return canonicalAddress(attribute, declared[attribute].fold(value))
}

// fold folds a value. a may be nil.
func (a *AttributeSpec) fold(value string) string {
	if a == nil {
		return value
	}
	value, _ = a.folding.fold(nil, value)
	return value
}

// foldPattern folds a glob by lower and nfc only. The other foldings need a
// whole value, and the text around a * is only a part of one. a may be nil.
func (a *AttributeSpec) foldPattern(pattern string) string {
	if a == nil {
		return pattern
	}
	pattern, _ = folding{lower: a.folding.lower, nfc: a.folding.nfc}.fold(nil, pattern)
	return pattern
}

// moveFirst moves a key to the front of a mapping.
func moveFirst(n *yaml.Node, key string) {
	for i := 2; i+1 < len(n.Items); i += 2 {
		if n.Kind == yaml.Map && n.Items[i].Text == key {
			pair := []*yaml.Node{n.Items[i], n.Items[i+1]}
			copy(n.Items[2:i+2], n.Items[:i])
			copy(n.Items, pair)
			return
		}
	}
}
