package rules

import (
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/rules/entries"
)

// overlay is what entries add to a compiled document. It is immutable; a change
// of entries yields a new one that shares nearly everything.
type overlay struct {
	entries *entries.State
	past    bool // for a replay: an entry is in force only from the time when it was written

	lists      entries.Tree[listKey, []*listItem]
	attributes []overlayAttribute // by number; those beyond its end have no entries
	listItems  int

	subjects  entries.Tree[subjectKey, []*subjectItem]
	bySubject []bool // by Rule.variantIndex: entries may give the rule's subjects other limits

	slotTTLs entries.Tree[sourceKey, time.Duration] // by Limit.Source, of limits of slots

	blocks        entries.Tree[Hash, []*blockItem]
	blocksOfRules []int32 // by Rule.Index: how many blocks its subjects have

	// asleep holds, by ID, the entries of which some part does not apply under the
	// document.
	asleep entries.Tree[entries.Text, *entries.Entry]
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

// sourceKey is a Limit.Source.
type sourceKey uint64

// Hash implements entries.Key.
func (k sourceKey) Hash() uint64 { return uint64(k) }

// counted is a length, and the number of items that have it.
type counted struct{ length, n int32 }

// span is when an entry is in force: at or after from, and before until. Both
// are in Unix ms; 0 is no bound.
type span struct{ from, until int64 }

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

// attributeOf returns what o has of an attribute, for the caller to change. o
// must not be shared yet.
func (o *overlay) attributeOf(n int) *overlayAttribute {
	for len(o.attributes) <= n {
		o.attributes = append(o.attributes, overlayAttribute{})
	}
	return &o.attributes[n]
}

// blockCountOf returns how many blocks o has of a rule, for the caller to
// change. o must not be shared yet.
func (o *overlay) blockCountOf(r *Rule) *int32 {
	for len(o.blocksOfRules) <= r.Index {
		o.blocksOfRules = append(o.blocksOfRules, 0)
	}
	return &o.blocksOfRules[r.Index]
}

// subjectItems returns the items under key, sorted by value, and the index at
// which that of value is, or would be.
func (o *overlay) subjectItems(key subjectKey, value string) (items []*subjectItem, i int, found bool) {
	items, _ = o.subjects.Get(key)
	i, found = slices.BinarySearchFunc(items, value,
		func(item *subjectItem, value string) int { return strings.Compare(item.entry.Value, value) })
	return items, i, found
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

// adjustCount adds by to the number of items under a key. A lookup tries only the
// classes and lengths that have items.
func (o *overlay) adjustCount(key listKey, by int32) {
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
