package rules

import (
	"net/netip"

	"github.com/rlnode/rlnode/rules/document"
)

// maxLinearAttributes is the number of names up to which find compares one by
// one; above it, find uses the map.
const maxLinearAttributes = 8

// attributes numbers the attributes that any part of a set uses.
type attributes struct {
	named    []namedAttribute             // by number
	numbers  map[string]int               // by name
	declared map[string]*document.Folding // those that the document declares; nil if it declares none
	folds    bool                         // at least one of named has a folding
}

type namedAttribute struct {
	name    string
	address bool              // its values are addresses
	folding *document.Folding // nil if values are taken as they are
}

// newAttributes returns the attributes of a set that uses none yet. specs are
// those that its document declares; nil means that it declares none.
func newAttributes(specs []*document.AttributeSpec) attributes {
	a := attributes{numbers: map[string]int{}}
	if specs != nil {
		a.declared = make(map[string]*document.Folding, len(specs))
	}
	for _, spec := range specs {
		a.declared[spec.Name] = &spec.Folding
	}
	return a
}

// add returns the number of an attribute, and assigns one if it has none.
func (a *attributes) add(name string) int {
	n, ok := a.numbers[name]
	if !ok {
		n = len(a.named)
		a.numbers[name] = n
		attribute := namedAttribute{name, document.HoldsAddresses(name), a.folding(name)}
		a.named = append(a.named, attribute)
		a.folds = a.folds || attribute.folding != nil
	}
	return n
}

// folding returns how an attribute's values are folded, or nil.
func (a *attributes) folding(name string) *document.Folding {
	if f := a.declared[name]; f != nil && *f != (document.Folding{}) {
		return f
	}
	return nil
}

// find returns the number of an attribute, or -1.
func (a *attributes) find(name string) int {
	if len(a.named) <= maxLinearAttributes {
		for i := range a.named {
			if a.named[i].name == name {
				return i
			}
		}
		return -1
	}
	if n, ok := a.numbers[name]; ok {
		return n
	}
	return -1
}

// grouping says how many leading bits of an address tell subjects apart.
type grouping struct{ ipv4, ipv6 int }

// of returns the address that stands for all addresses counted together with a.
func (g grouping) of(a netip.Addr) netip.Addr {
	bits := g.ipv6
	if a.Is4() {
		bits = g.ipv4
	}
	if bits == a.BitLen() {
		return a // the usual case of IPv4
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return a
	}
	return p.Addr()
}
