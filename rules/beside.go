package rules

import (
	"net/netip"

	"github.com/rlnode/rlnode/rules/entries"
)

// isInForce reports whether the time of m's check lies in sp. It reads the
// clock only if sp has a bound.
func (sp *span) isInForce(m *Match) bool {
	if sp.until == 0 && sp.from == 0 {
		return true
	}
	now := m.WallTime()
	return now >= sp.from && (sp.until == 0 || now < sp.until)
}

// listing returns the verdict of the entries beside the document on m's check.
func (o *overlay) listing(m *Match) (best Listing) {
	for i := range m.values {
		v := &m.values[i]
		if v.number >= len(o.attributes) {
			continue
		}
		best = max(best, o.attributes[v.number].find(o, m, v))
		if best == Denied {
			break
		}
	}
	return best
}

// find returns the verdict of the entries that are filed under values that v matches.
func (a *overlayAttribute) find(o *overlay, m *Match, v *value) (best Listing) {
	n := int32(v.number)
	if a.texts > 0 {
		best = o.judge(m, listKey{attribute: n, text: v.text})
	}
	if a.present > 0 {
		best = max(best, o.judge(m, listKey{attribute: n, class: presentClass}))
	}

	if len(a.nets4)+len(a.nets6) > 0 && v.isAddress() {
		best = max(best, a.findNets(o, m, v, v.address))
		if v.embedding.IsValid() {
			best = max(best, a.findNets(o, m, v, v.embedding))
		}
	}

	if len(a.prefixes)+len(a.suffixes) == 0 {
		return best
	}

	text := m.canonicalText(v)
	for _, c := range a.prefixes {
		length := int(c.length)
		if length <= len(text) {
			best = max(best, o.judge(m, listKey{attribute: n, class: prefixClass, text: text[:length]}))
		}
	}

	for _, c := range a.suffixes {
		length := int(c.length)
		if length <= len(text) {
			best = max(best, o.judge(m, listKey{attribute: n, class: suffixClass, text: text[len(text)-length:]}))
		}
	}

	return best
}

// findNets returns the verdict of the entries that are filed under networks
// that hold address, which v stands for.
func (a *overlayAttribute) findNets(o *overlay, m *Match, v *value, address netip.Addr) (best Listing) {
	lengths := a.nets6
	if address.Is4() {
		lengths = a.nets4
	}
	for _, bits := range lengths {
		net, _ := address.Prefix(int(bits.length)) // it has that many bits
		best = max(best, o.judge(m, netKey(v.number, net.Addr(), net.Bits())))
	}
	return best
}

// judge returns the verdict of the entries that are filed under key.
func (o *overlay) judge(m *Match, key listKey) (best Listing) {
	items, _ := o.lists.Get(key)
	for _, item := range items {
		verdict := Allowed
		if item.entry.Kind == entries.Deny {
			verdict = Denied
		}
		if verdict > best && item.isInForce(m) && m.meetsAll(item.match) {
			best = verdict
		}
	}
	return best
}

// subject returns what an entry says about the value of k, a key attribute of
// r, or nil. Several entries may name addresses that r counts together. Then
// the first in textual order that is in force counts.
func (o *overlay) subject(m *Match, r *Rule, k *keyAttribute) *subject {
	if k.number >= len(o.attributes) || o.attributes[k.number].subjects == 0 {
		return nil
	}
	v := m.value(k.number)
	items, _ := o.subjects.Get(keyOfSubject(k.number, v, k.address, r.grouping))
	for _, item := range items {
		if item.isInForce(m) {
			return item.subject
		}
	}
	return nil
}

// keyOfSubject returns the key of v's subject under rules that group addresses
// by g. address means that the attribute holds addresses.
func keyOfSubject(attribute int, v *value, address bool, g grouping) subjectKey {
	key := subjectKey{attribute: int32(attribute)}
	if address && v.isAddress() {
		key.grouping = g
		key.address = wordsOf(g.of(v.address))
	} else {
		key.text = v.text
	}
	return key
}

// mayHaveEntry reports whether entries may give subjects of r other limits. A
// rule of Envoy's or of inline limits has no number of its own: its zero is
// that of the first variant.
func (s *Set) mayHaveEntry(r *Rule) bool {
	return s.overlay != nil && r.variantIndex < len(s.overlay.bySubject) &&
		s.overlay.bySubject[r.variantIndex] && !r.Envoy && !r.Inline
}

// mayBlock reports whether there are blocks of r's subjects.
func (o *overlay) mayBlock(r *Rule) bool {
	return r.Index < len(o.blocksOfRules) && o.blocksOfRules[r.Index] > 0 && !r.Envoy && !r.Inline
}

// HasHandBlocks reports whether a block by hand may be in force.
func (s *Set) HasHandBlocks() bool { return s.overlay != nil && s.overlay.blocks.Len() > 0 }

// BlockedUntil returns when the last block by hand of a hit's subject ends, in
// Unix ms, or 0 if it is not blocked now. A block without an end ends at
// [entries.Forever].
func (s *Set) BlockedUntil(m *Match, h *Hit) (until int64) {
	o := s.overlay
	if o == nil || !o.mayBlock(h.Rule) {
		return 0
	}

	items, _ := o.blocks.Get(h.Subject)
	for _, block := range items {
		switch {
		case !block.isInForce(m):
			continue
		case block.until == 0:
			return entries.Forever
		}
		until = max(until, block.until)
	}

	return until
}
