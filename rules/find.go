package rules

import (
	"net/netip"
	"slices"
)

// find appends the items that may apply to m's attributes. An item may appear more than once.
func (ix *index) find(m *Match, found []int32) []int32 {
	if len(ix.always) > 0 {
		found = append(found, ix.always...)
	}

	for i := range m.values {
		v := &m.values[i]
		if v.number >= len(ix.attributes) {
			continue
		}

		a := &ix.attributes[v.number]
		if len(a.present) > 0 {
			found = append(found, a.present...)
		}
		if !a.presenceOnly {
			found = a.find(m, v, found)
		}
	}

	return found
}

// find appends the items filed under values that v matches.
func (a *attributeIndex) find(m *Match, v *value, found []int32) []int32 {
	if a.texts != nil {
		found = append(found, a.texts[v.text]...)
	}

	if (a.addresses != nil || a.nets != nil) && v.isAddress() {
		found = append(found, a.addresses[v.address]...)
		found = a.findNets(v.address, found)
		if v.embedding.IsValid() {
			found = a.findNets(v.embedding, found)
		}
	}

	if a.prefixes.lengths == nil && a.suffixes.lengths == nil {
		return found
	}

	text := m.canonicalText(v)
	for _, n := range a.prefixes.lengths {
		if n > len(text) {
			break
		}
		found = append(found, a.prefixes.byText[text[:n]]...)
	}

	for _, n := range a.suffixes.lengths {
		if n > len(text) {
			break
		}
		found = append(found, a.suffixes.byText[text[len(text)-n:]]...)
	}

	return found
}

// findNets appends the items filed under CIDRs that hold address.
func (a *attributeIndex) findNets(address netip.Addr, found []int32) []int32 {
	if a.nets == nil {
		return found
	}
	node, _ := a.nets.Lookup(address)
	for ; node != nil; node = node.enclosing {
		found = append(found, node.items...)
	}
	return found
}

// appliesTo reports whether an entry of the list applies.
func (l *list) appliesTo(m *Match) bool { return len(l.items) > 0 && l.search(m) }

func (l *list) search(m *Match) bool {
	m.listed = l.index.find(m, m.listed[:0])
	for _, i := range m.listed {
		if m.meetsAll(l.items[i].match) {
			return true
		}
	}
	return false
}

func (m *Match) meetsAll(match []condition) bool {
	for i := range match {
		if !m.meets(&match[i]) {
			return false
		}
	}
	return true
}

func (m *Match) meets(c *condition) bool {
	v := m.value(c.attribute)
	return v != nil && c.isMetBy(m, v)
}

// isMetBy reports whether v, a value in m, is one of the condition's values.
func (cond *condition) isMetBy(m *Match, v *value) bool {
	if _, found := slices.BinarySearch(cond.texts, v.text); found {
		return true
	}

	if (len(cond.addresses) > 0 || cond.netSet != nil) && v.isAddress() {
		_, found := slices.BinarySearchFunc(cond.addresses, v.address, netip.Addr.Compare)
		if found || cond.netSet != nil &&
			(cond.netSet.Contains(v.address) || v.embedding.IsValid() && cond.netSet.Contains(v.embedding)) {
			return true
		}
	}

	if len(cond.globs) == 0 {
		return false
	}

	text := m.canonicalText(v)
	for i := range cond.globs {
		if cond.globs[i].matches(text) {
			return true
		}
	}

	return false
}

// conditionsHold reports whether r's conditions on attributes outside the key
// hold.
func (r *Rule) conditionsHold(m *Match) bool {
	for _, n := range r.absent {
		if m.valueIndex[n] != 0 {
			return false
		}
	}
	for i := range r.not {
		if m.meets(&r.not[i]) {
			return false
		}
	}
	return m.meetsAll(r.match)
}
