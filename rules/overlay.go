package rules

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/rules/entries"
)

// overlay is what entries add to a compiled document. It is immutable; a change
// of entries yields a new one that shares nearly everything.
type overlay struct {
	entries *entries.State
	past    bool // entries are in force from the time when they were written, as in replays

	lists      entries.Tree[listKey, []*listItem]
	attributes []overlayAttribute // by number; those beyond its end have no entries
	listItems  int

	subjects  entries.Tree[subjectKey, []*subjectItem]
	bySubject []bool // by Rule.number: entries may give the rule's subjects other limits

	slotTTLs entries.Tree[sourceKey, time.Duration] // by Limit.Source, of limits of slots

	blocks        entries.Tree[Hash, []*blockItem]
	blocksOfRules []int32 // by Rule.Index: how many blocks its subjects have

	asleep entries.Tree[entries.Text, *entries.Entry] // by ID: those that name a tier or a rule that the document lacks
}

// overlayAttribute says how to look up the values of an attribute.
type overlayAttribute struct {
	texts    int32     // items filed under texts
	present  int32     // items filed under the attribute's presence
	prefixes []counted // of texts, by length
	suffixes []counted
	nets4    []counted // by number of bits; addresses are networks, too
	nets6    []counted
	subjects int32 // entries about its subjects
}

// counted is a length, and the number of items that have it.
type counted struct{ length, n int32 }

// span is when an entry is in force: at or after from, and before until. Both
// are in Unix ms; 0 is no bound.
type span struct{ from, until int64 }

// listKey is what an entry of a list is filed under.
type listKey struct {
	attribute int32
	class     listClass
	bits      uint8 // of a network
	isIPv4    bool  // of a network
	text      string
	net       [2]uint64 // the words of a network's address
}

// Hash implements entries.Key.
func (k listKey) Hash() uint64 {
	kind := uint64(k.attribute)<<16 | uint64(k.class)<<8 | uint64(k.bits)
	if k.class == netClass {
		return entries.HashWords(k.net[0]^kind, k.net[1])
	}
	return entries.HashWords(entries.HashText(k.text), kind)
}

// presenceKey returns the key of the items that only need an attribute to be
// present.
func presenceKey(attribute int) listKey {
	return listKey{attribute: int32(attribute), class: presentClass}
}

// netKey returns the key of a network, given its first address.
func netKey(attribute int, a netip.Addr, bits int) listKey {
	return listKey{attribute: int32(attribute), class: netClass, bits: uint8(bits), isIPv4: a.Is4(), net: wordsOf(a)}
}

// wordsOf returns the bytes of an address as two numbers.
func wordsOf(a netip.Addr) [2]uint64 {
	b := a.As16()
	return [2]uint64{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

type listClass uint8

const (
	textClass listClass = iota
	netClass
	prefixClass
	suffixClass
	presentClass
)

// The classes of keys, from the most to the least selective.
const (
	byValue = iota
	byGlob
	byPresence
)

// selectivity returns the least selective class among keys, and the most that
// count returns for one of them.
func selectivity(keys []listKey, count func(listKey) int) (class, most int) {
	for _, key := range keys {
		classOf := [...]int{textClass: byValue, netClass: byValue, prefixClass: byGlob,
			suffixClass: byGlob, presentClass: byPresence}
		class = max(class, classOf[key.class])
		most = max(most, count(key))
	}
	return class, most
}

// listItem is a compiled entry of a list.
type listItem struct {
	entry *entries.Entry
	match []condition
	span
}

// subjectKey identifies a subject as rules that group addresses alike see it.
type subjectKey struct {
	attribute int32
	grouping  grouping // zero for what is no address
	text      string
	address   [2]uint64 // the words of a grouped address
}

// Hash implements entries.Key.
func (key subjectKey) Hash() uint64 {
	place := uint64(key.attribute)<<16 | uint64(key.grouping.ipv4)<<8 | uint64(key.grouping.ipv6)
	if key.grouping != (grouping{}) {
		return entries.HashWords(key.address[0]^place, key.address[1])
	}
	return entries.HashWords(entries.HashText(key.text), place)
}

// subjectItem is a compiled entry of a subject.
type subjectItem struct {
	entry *entries.Entry
	*subject
	span
}

// blockItem is a block by hand. A subject may have several: when they were
// written, their keys may have been those of different subjects, as under
// another ipv6_prefix.
type blockItem struct {
	entry *entries.Entry
	span
}

// WallTime returns the wall time of the check, in Unix ms.
func (m *Match) WallTime() int64 {
	switch {
	case m.Now != 0:
		return m.Now
	case m.Clock != nil:
		return m.Clock()
	}
	return time.Now().UnixMilli()
}

// isInForce reports whether an entry is in force for m's check. It reads the
// clock only if that matters.
func (sp *span) isInForce(m *Match) bool {
	if sp.until == 0 && sp.from == 0 {
		return true
	}
	now := m.WallTime()
	return now >= sp.from && (sp.until == 0 || now < sp.until)
}

// listing returns the verdict of the entries of lists on m's check.
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
		if v.written.IsValid() {
			best = max(best, a.findNets(o, m, v, v.written))
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

// subject returns what entries say about the subject that a rule sees in a
// value, or nil. If entries name several addresses that the rule counts
// together, the first in textual order counts.
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

// keyOfSubject returns the key of the subject that a rule that groups by g sees in v.
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

// mayHaveEntry reports whether entries may give subjects of r other limits.
func (s *Set) mayHaveEntry(r *Rule) bool {
	return s.overlay != nil && r.number < len(s.overlay.bySubject) &&
		s.overlay.bySubject[r.number] && !r.Envoy && !r.Inline
}

// HasBlocks reports whether a block by hand may be in force.
func (s *Set) HasBlocks() bool { return s.overlay != nil && s.overlay.blocks.Len() > 0 }

// BlockedUntil returns when the last block by hand of a hit's subject ends, in
// Unix ms, or 0 if it is not blocked now. A block without an end ends at
// [Forever].
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
			return Forever
		}
		until = max(until, block.until)
	}

	return until
}

// mayBlock reports whether there are blocks of r's subjects.
func (o *overlay) mayBlock(r *Rule) bool {
	return r.Index < len(o.blocksOfRules) && o.blocksOfRules[r.Index] > 0 && !r.Envoy && !r.Inline
}

// Forever stands for the end of a block that has none: the last millisecond of the year 9999.
const Forever = 253402300799999

// Entries returns the entries that checks are matched with. It is never nil.
func (s *Set) Entries() *entries.State {
	if s.overlay == nil {
		return entries.New()
	}
	return s.overlay.entries
}

// Asleep returns the number of entries that name a tier or a rule that the document lacks.
func (s *Set) Asleep() int {
	if s.overlay == nil {
		return 0
	}
	return s.overlay.asleep.Len()
}

// IsAsleep reports whether an entry names a tier or a rule that the document lacks.
func (s *Set) IsAsleep(e *entries.Entry) bool {
	if s.overlay == nil {
		return false
	}
	_, ok := s.overlay.asleep.Get(entries.Text(e.ID()))
	return ok
}

// attributeOf returns the record of an attribute, for the caller to change. o
// must not be shared yet.
func (o *overlay) attributeOf(n int) *overlayAttribute {
	for len(o.attributes) <= n {
		o.attributes = append(o.attributes, overlayAttribute{})
	}
	return &o.attributes[n]
}

// edit prepares o, which must not be shared yet, for many changes in a row. done must follow.
func (o *overlay) edit() {
	o.lists = o.lists.Edit()
	o.subjects = o.subjects.Edit()
	o.blocks = o.blocks.Edit()
	o.asleep = o.asleep.Edit()
}

// done ends what edit began.
func (o *overlay) done() {
	o.lists = o.lists.Done()
	o.subjects = o.subjects.Done()
	o.blocks = o.blocks.Done()
	o.asleep = o.asleep.Done()
}

// recount adds by to the number of items under a key, so that lookups know which lengths occur.
func (o *overlay) recount(key listKey, by int32) {
	a := o.attributeOf(int(key.attribute))
	switch key.class {
	case textClass:
		a.texts += by
	case presentClass:
		a.present += by
	case prefixClass:
		a.prefixes = addCount(a.prefixes, int32(len(key.text)), by)
	case suffixClass:
		a.suffixes = addCount(a.suffixes, int32(len(key.text)), by)
	case netClass:
		nets := &a.nets6
		if key.isIPv4 {
			nets = &a.nets4
		}
		*nets = addCount(*nets, int32(key.bits), by)
	}
}

// addCount returns a copy of list, which is sorted by length, with by added to
// the number of items of a length.
func addCount(list []counted, length, by int32) []counted {
	list = slices.Clone(list)
	i, found := slices.BinarySearchFunc(list, length, func(c counted, n int32) int { return int(c.length - n) })
	if !found {
		list = slices.Insert(list, i, counted{length: length})
	}
	list[i].n += by
	if list[i].n == 0 {
		list = slices.Delete(list, i, i+1)
	}
	return list
}

// keysOf returns the keys for filing an entry by its condition c. An entry with
// several conditions is filed by one of them.
func keysOf(c *condition) (list []listKey) {
	n := int32(c.attribute)
	for _, text := range c.texts { // including CIDRs
		list = append(list, listKey{attribute: n, text: text})
	}

	for _, a := range c.addresses {
		list = append(list, netKey(c.attribute, a, a.BitLen()))
	}

	for _, p := range c.nets {
		list = append(list, netKey(c.attribute, p.Addr(), p.Bits()))
	}

	for i := range c.globs {
		g := &c.globs[i]
		switch {
		case g.prefix != "":
			list = append(list, listKey{attribute: n, class: prefixClass, text: strings.Clone(g.prefix)})
		case g.suffix != "":
			list = append(list, listKey{attribute: n, class: suffixClass, text: strings.Clone(g.suffix)})
		default:
			return []listKey{presenceKey(c.attribute)}
		}
	}

	return list
}
