package rules

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

// hasAlternatives reports whether some part of r's key has more than one attribute.
func (r *RuleSpec) hasAlternatives() bool {
	return slices.ContainsFunc(r.Key, func(p KeyPart) bool { return len(p) > 1 })
}

// keyHas reports whether r's key names an attribute.
func (r *RuleSpec) keyHas(attribute string) bool {
	return slices.ContainsFunc(r.Key, func(p KeyPart) bool { return slices.Contains(p, attribute) })
}

// attribute reads the name of an attribute, which must be declared if the document declares any.
func (d *decoder) attribute(n *yaml.Node) string {
	s, ok := d.text(n)
	if !ok {
		return ""
	}
	return d.checkAttribute(n, s)
}

// checkAttribute is attribute for a name that has been read already, such as a key of a mapping.
func (d *decoder) checkAttribute(n *yaml.Node, s string) string {
	name := d.checkName(n, s)
	if name != "" && d.declared != nil && d.declared[name] == nil {
		d.fail(n, "%q is not declared in attributes%s", shorten(name), suggest(name, declaredNames(d.declared)))
	}
	return name
}

// attributes reads a list of different attributes.
func (d *decoder) attributes(n *yaml.Node) (list []string) {
	if d.eachItem(n, func(n *yaml.Node) { list = d.appendAttribute(n, list) }) && len(n.Items) == 0 {
		d.fail(n, "expected at least one attribute")
	}
	if len(list) > MaxAttributes {
		d.fail(n, "more than %d attributes", MaxAttributes)
	}
	return list
}

// appendAttribute reads an attribute that must not be in list, and appends it.
func (d *decoder) appendAttribute(n *yaml.Node, list []string) []string {
	s := d.attribute(n)
	if s != "" && slices.Contains(list, s) {
		d.fail(n, "duplicate attribute %q", s)
	}
	return append(list, s)
}

// key reads a rule's key.
func (d *decoder) key(n *yaml.Node) []KeyPart {
	var key []KeyPart
	var all []string
	variants := 1
	d.eachItem(n, func(n *yaml.Node) {
		first := len(all)
		if n.Kind != yaml.List {
			all = d.appendAttribute(n, all)
		} else if d.eachItem(n, func(n *yaml.Node) { all = d.alternative(n, all) }) && len(n.Items) == 0 {
			d.fail(n, "expected at least one attribute")
		}
		part := KeyPart(slices.Clone(all[first:]))
		variants = min(variants*max(1, len(part)), maxVariants+1)
		key = append(key, part)
	})

	if len(all) > MaxAttributes {
		d.fail(n, "more than %d attributes", MaxAttributes)
	} else if variants > maxVariants {
		d.fail(n, "the alternatives offer more than %d choices", maxVariants)
	}
	return key
}

// alternative is appendAttribute for an attribute whose name stands before values, as in user=ann.
func (d *decoder) alternative(n *yaml.Node, list []string) []string {
	list = d.appendAttribute(n, list)
	if strings.Contains(list[len(list)-1], "=") {
		d.fail(n, "the name of an alternative can't contain =")
	}
	return list
}

// tierNames reads the tiers that a rule is for.
func (d *decoder) tierNames(n *yaml.Node) (list []string) {
	if d.eachItem(n, func(n *yaml.Node) {
		name := d.name(n)
		if name != "" && slices.Contains(list, name) {
			d.fail(n, "duplicate tier %q", name)
		}
		list = append(list, name)
	}) && len(n.Items) == 0 {
		d.fail(n, "expected at least one tier")
	}
	return list
}
