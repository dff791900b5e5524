package document

import (
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/yaml"
)

// maxVariants bounds the choices that the alternatives of a rule's key offer, all parts together.
const maxVariants = 16

// KeyPart is a part of a rule's key: an attribute, or several, of which the
// first that is present counts.
type KeyPart []string

func (p KeyPart) node() *yaml.Node {
	if len(p) == 1 {
		return yaml.Text(p[0])
	}
	return textsNode(p)
}

func keyNode(key []KeyPart) *yaml.Node { return listNode(key, KeyPart.node).OnOneLine() }

var attributesCodec = codec[[]string]{(*decoder).attributes, unlessEmpty(textsNode)}

// attribute reads the name of an attribute, which must be declared if the document declares any.
func (dec *decoder) attribute(n *yaml.Node) string {
	s, ok := dec.text(n)
	if !ok {
		return ""
	}
	return dec.checkAttribute(n, s)
}

// checkAttribute is attribute for a name that has been read already, such as a key of a mapping.
func (dec *decoder) checkAttribute(n *yaml.Node, s string) string {
	name := dec.checkName(n, s)
	if name != "" && dec.declared != nil && dec.declared[name] == nil {
		dec.fail(n, "%q is not declared in attributes%s", Shorten(name), suggest(name, declaredNames(dec.declared)))
	}
	return name
}

// attributes reads a list of different attributes.
func (dec *decoder) attributes(n *yaml.Node) (list []string) {
	if dec.eachItem(n, func(n *yaml.Node) { list = dec.appendAttribute(n, list) }) && len(n.Items) == 0 {
		dec.fail(n, "expected at least one attribute")
	}
	if len(list) > MaxAttributes {
		dec.fail(n, "more than %d attributes", MaxAttributes)
	}
	return list
}

// appendAttribute reads an attribute that must not be in list, and appends it.
func (dec *decoder) appendAttribute(n *yaml.Node, list []string) []string {
	s := dec.attribute(n)
	if s != "" && slices.Contains(list, s) {
		dec.fail(n, "duplicate attribute %q", s)
	}
	return append(list, s)
}

// key reads a rule's key.
func (dec *decoder) key(n *yaml.Node) []KeyPart {
	var key []KeyPart
	var all []string
	variants := 1
	dec.eachItem(n, func(n *yaml.Node) {
		first := len(all)
		if n.Kind != yaml.List {
			all = dec.appendAttribute(n, all)
		} else if dec.eachItem(n, func(n *yaml.Node) { all = dec.alternative(n, all) }) && len(n.Items) == 0 {
			dec.fail(n, "expected at least one attribute")
		}
		part := KeyPart(slices.Clone(all[first:]))
		variants = min(variants*max(1, len(part)), maxVariants+1)
		key = append(key, part)
	})

	if len(all) > MaxAttributes {
		dec.fail(n, "more than %d attributes", MaxAttributes)
	} else if variants > maxVariants {
		dec.fail(n, "the alternatives offer more than %d choices", maxVariants)
	}
	return key
}

// alternative is appendAttribute for an attribute whose name stands before values, as in user=ann.
func (dec *decoder) alternative(n *yaml.Node, list []string) []string {
	list = dec.appendAttribute(n, list)
	if strings.Contains(list[len(list)-1], "=") {
		dec.fail(n, "the name of an alternative can't contain =")
	}
	return list
}
