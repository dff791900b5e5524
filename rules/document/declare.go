package document

import (
	"slices"

	"github.com/rlnode/rlnode/internal/yaml"
)

// maxDeclared bounds the attributes that a document declares.
const maxDeclared = 256

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

	a.Folding = Folding{
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
	if !slices.ContainsFunc(list, func(a *AttributeSpec) bool { return a.Folding != Folding{} }) {
		return listNode(list, func(a *AttributeSpec) *yaml.Node { return yaml.Text(a.Name) }).OnOneLine()
	}
	return mapNode(list, func(a *AttributeSpec) string { return a.Name }, func(a *AttributeSpec) *yaml.Node {
		return attributeFields.node(a).OnOneLine()
	})
}
