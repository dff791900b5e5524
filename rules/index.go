package rules

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// index finds the items (rules, or entries of a list) that may apply to a
// check, without walking all of them. Each item is filed under one condition:
// the one that it likely shares with the fewest other items. Its other
// conditions are checked when it is found.
type index struct {
	always     []int32
	attributes []attributeIndex // by number of attribute
}

// attributeIndex files items by one attribute. Items are positions, in ascending order.
type attributeIndex struct {
	texts        map[string][]int32
	addresses    map[netip.Addr][]int32
	nets         *bart.Table[*netNode]
	prefixes     globIndex
	suffixes     globIndex // globs that begin with *
	present      []int32   // items that only need the attribute to be present
	presenceOnly bool      // all items are in present
}

// netNode holds the items of a CIDR and links to the smallest CIDR around it.
type netNode struct {
	items     []int32
	enclosing *netNode
}

// globIndex files globs by the literal text at one end.
type globIndex struct {
	lengths []int // of the texts
	byText  map[string][]int32
}

// indexed holds what an item can be filed by.
type indexed struct {
	match []condition
	key   []keyAttribute // all must be present as well
}

// list is a compiled allow or deny list.
type list struct {
	items []indexed
	index index
}

func buildIndex(items []indexed) index {
	// The keys are counted first: which condition an item shares with the fewest
	// depends on the keys of all items.
	counts := map[listKey]int{}
	for i := range items {
		for j := range items[i].match {
			for _, key := range keysOf(&items[i].match[j]) {
				counts[key]++
			}
		}
		for _, k := range items[i].key {
			counts[presenceKey(k.number)]++
		}
	}

	var x index
	nets := map[int]map[netip.Prefix][]int32{}
	for i := range items {
		x.insert(int32(i), &items[i], counts, nets)
	}

	for attribute, byPrefix := range nets {
		x.attributes[attribute].nets = netTable(byPrefix)
	}

	for i := range x.attributes {
		a := &x.attributes[i]
		a.prefixes.finish()
		a.suffixes.finish()
		a.presenceOnly = a.texts == nil && a.addresses == nil && a.nets == nil &&
			a.prefixes.lengths == nil && a.suffixes.lengths == nil
	}

	return x
}

func (ix *index) attribute(n int) *attributeIndex {
	for len(ix.attributes) <= n {
		ix.attributes = append(ix.attributes, attributeIndex{})
	}
	return &ix.attributes[n]
}

// filing says under what an item is filed.
type filing struct {
	attribute int        // -1: none
	condition *condition // of the attribute; nil: it is only present, as a key
	class     int        // as returned by selectivity
	crowd     int        // the most items that share one of its keys
}

// improve replaces f with another filing that is more selective or, among
// equals, shares its keys with fewer items.
func (f *filing) improve(other filing) {
	if cmp.Or(cmp.Compare(other.class, f.class), cmp.Compare(other.crowd, f.crowd)) < 0 {
		*f = other
	}
}

// chooseFiling returns the best filing for an item.
func chooseFiling(e *indexed, counts map[listKey]int) filing {
	best := filing{attribute: -1, class: byPresence + 1}
	count := func(key listKey) int { return counts[key] }
	for j := range e.match {
		c := &e.match[j]
		class, crowd := selectivity(keysOf(c), count)
		best.improve(filing{attribute: c.attribute, condition: c, class: class, crowd: crowd})
	}
	for _, k := range e.key {
		best.improve(filing{attribute: k.number, class: byPresence, crowd: counts[presenceKey(k.number)]})
	}
	return best
}

// insert files item i. It adds the item's CIDRs to nets, by attribute.
func (ix *index) insert(i int32, e *indexed, counts map[listKey]int, nets map[int]map[netip.Prefix][]int32) {
	best := chooseFiling(e, counts)
	if best.attribute < 0 {
		ix.always = append(ix.always, i)
		return
	}

	a := ix.attribute(best.attribute)
	if best.class == byPresence {
		a.present = append(a.present, i)
		return
	}

	a.insert(i, best.condition)

	for _, p := range best.condition.nets {
		if nets[best.attribute] == nil {
			nets[best.attribute] = map[netip.Prefix][]int32{}
		}
		nets[best.attribute][p] = append(nets[best.attribute][p], i)
	}
}

// insert files an item under each value of c except CIDRs.
func (a *attributeIndex) insert(i int32, c *condition) {
	for _, s := range c.texts {
		if a.texts == nil {
			a.texts = map[string][]int32{}
		}
		a.texts[s] = append(a.texts[s], i)
	}

	for _, addr := range c.addresses {
		if a.addresses == nil {
			a.addresses = map[netip.Addr][]int32{}
		}
		a.addresses[addr] = append(a.addresses[addr], i)
	}

	for j := range c.globs {
		g := &c.globs[j]
		if g.prefix != "" {
			a.prefixes.insert(i, g.prefix)
		} else {
			a.suffixes.insert(i, g.suffix)
		}
	}
}

func (g *globIndex) insert(i int32, text string) {
	if g.byText == nil {
		g.byText = map[string][]int32{}
	}
	g.byText[text] = append(g.byText[text], i)
}

func (g *globIndex) finish() {
	for text := range g.byText {
		g.lengths = append(g.lengths, len(text))
	}
	slices.Sort(g.lengths)
	g.lengths = slices.Compact(g.lengths)
}

// netTable links each CIDR to the smallest one around it. So a lookup needs to
// find only the smallest CIDR around an address, and follows the links to the
// others.
func netTable(byPrefix map[netip.Prefix][]int32) *bart.Table[*netNode] {
	t := &bart.Table[*netNode]{}
	largerFirst := func(a, b netip.Prefix) int { return cmp.Compare(a.Bits(), b.Bits()) }
	// Larger networks come first, so that each finds the one around it in the
	// table.
	for _, p := range slices.SortedFunc(maps.Keys(byPrefix), largerFirst) {
		around, _ := t.LookupPrefix(p)
		t.Insert(p, &netNode{byPrefix[p], around})
	}
	return t
}
