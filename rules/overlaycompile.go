package rules

import (
	"cmp"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// overlayCompiler compiles entries into an overlay, starting from the overlay of
// earlier entries.
type overlayCompiler struct {
	compiler
	overlay         *overlay                  // not shared yet
	checker         *document.OverrideChecker // nil until it is needed
	subjectsChanged bool                      // some attribute has its first entry about a subject, or none any more
}

// WithEntries returns a copy of s that matches checks with e in place of the
// entries that s has. If base comes from the same call of [Compile] and has the
// same hash key, only the entries in which e differs from base are compiled.
// base may be nil.
func (s *Set) WithEntries(e *entries.State, base *Set) *Set { return s.withEntries(e, base, false) }

// WithPastEntries is WithEntries for a replay: each entry is in force from the
// time when it was written until its end.
func (s *Set) WithPastEntries(e *entries.State) *Set { return s.withEntries(e, nil, true) }

func (s *Set) withEntries(e *entries.State, base *Set, past bool) *Set {
	next := *s
	o := &overlay{entries: entries.New(), past: past}
	if base != nil && base.overlay != nil && base.compiled == s.compiled && base.key == s.key {
		// The numbers of attributes and units that only entries use belong to the overlay.
		next.attributes = base.attributes
		next.unitIDs = base.unitIDs
		next.Units = base.Units
		*o = *base.overlay
	}

	if o.entries == e {
		next.overlay = o
		next.markLists()
		return &next
	}

	before := o.entries
	o.entries = e
	o.attributes = slices.Clone(o.attributes)
	o.blocksOfRules = slices.Clone(o.blocksOfRules)
	c := &overlayCompiler{compiler: compiler{set: &next, doc: s.Document, sharesTables: true}, overlay: o}
	o.edit()
	e.Diff(before, c.replace)
	o.done()

	if c.subjectsChanged || o.bySubject == nil {
		o.bySubject = c.rulesBySubject()
	}
	next.overlay = o
	if e.Len() == 0 {
		next.overlay = nil // checks cost nothing more than without entries
	}

	next.markLists()
	return &next
}

// rulesBySubject returns, by Rule.variantIndex, whether entries may change the
// limits of the rule's subjects. They never change those of global rules, whose
// division is part of the document.
func (oc *overlayCompiler) rulesBySubject() []bool {
	out := make([]bool, len(oc.set.variants))
	for i, r := range oc.set.variants {
		for _, k := range r.key {
			out[i] = out[i] || r.Scope != GlobalScope && k.number < len(oc.overlay.attributes) &&
				oc.overlay.attributes[k.number].subjects > 0
		}
	}
	return out
}

// replace replaces one entry by another; either may be nil.
func (oc *overlayCompiler) replace(before, after *entries.Entry) {
	if before != nil {
		oc.unfile(before)
	}
	if after != nil {
		oc.file(after)
	}
}

// file adds one entry.
func (oc *overlayCompiler) file(e *entries.Entry) {
	awake := true
	switch e.Kind {
	case entries.Subject:
		awake = oc.fileSubject(e)
	case entries.Block:
		awake = oc.fileBlock(e)
	default:
		oc.fileListed(e)
	}

	if !awake {
		o := oc.overlay
		o.asleep = o.asleep.With(entries.Text(e.ID()), e)
	}
}

// unfile removes one entry.
func (oc *overlayCompiler) unfile(e *entries.Entry) {
	switch e.Kind {
	case entries.Subject:
		oc.unfileSubject(e)
	case entries.Block:
		oc.unfileBlock(e)
	default:
		oc.unfileListed(e)
	}

	o := oc.overlay
	_, sleeps := o.asleep.Get(entries.Text(e.ID()))
	if sleeps {
		o.asleep = o.asleep.Without(entries.Text(e.ID()))
	}
}

func (oc *overlayCompiler) spanOf(e *entries.Entry) span {
	s := span{until: e.Until}
	if oc.overlay.past {
		s.from = e.When
	}
	return s
}

// fileListed adds an entry of a list under its most selective condition; among
// equals, under the one with the fewest other entries.
func (oc *overlayCompiler) fileListed(e *entries.Entry) {
	o := oc.overlay
	match := oc.compileConditions(document.ConditionsOf(e))

	var best []listKey
	class, crowd := byPresence+1, 0
	count := func(key listKey) int {
		items, _ := o.lists.Get(key)
		return len(items)
	}

	for i := range match {
		keys := keysOf(&match[i])
		worst, most := selectivity(keys, count)
		if cmp.Or(cmp.Compare(worst, class), cmp.Compare(most, crowd)) < 0 {
			best = keys
			class = worst
			crowd = most
		}
	}

	item := &listItem{entry: e, match: match, span: oc.spanOf(e)}
	o.listItems++

	for _, key := range best {
		items, _ := o.lists.Get(key)
		o.lists = o.lists.With(key, append(slices.Clip(items), item))
		o.adjustCount(key, 1)
	}
}

// unfileListed removes an entry of a list. Which condition the entry was filed
// under depended on the entries that there were then. So it is looked for under
// all of its conditions.
func (oc *overlayCompiler) unfileListed(e *entries.Entry) {
	oc.overlay.listItems--
	match := oc.compileConditions(document.ConditionsOf(e))
	for i := range match {
		oc.unfileFrom(keysOf(&match[i]), e)
	}
}

// unfileFrom removes an entry from those of keys that it is filed under.
func (oc *overlayCompiler) unfileFrom(keys []listKey, e *entries.Entry) {
	o := oc.overlay
	for _, key := range keys {
		items, _ := o.lists.Get(key)
		i := slices.IndexFunc(items, func(item *listItem) bool { return item.entry == e })
		switch {
		case i < 0:
			continue
		case len(items) == 1:
			o.lists = o.lists.Without(key)
		default:
			o.lists = o.lists.With(key, slices.Delete(slices.Clone(items), i, i+1))
		}

		o.adjustCount(key, -1)
	}
}

// fileSubject adds an entry about a subject. awake is false if some part of the
// entry does not apply under this document.
func (oc *overlayCompiler) fileSubject(e *entries.Entry) (awake bool) {
	item := &subjectItem{entry: e, span: oc.spanOf(e)}
	item.subject, awake = oc.compileEntry(e)

	n := oc.set.attributes.find(e.Attribute)
	keys := oc.subjectKeysOf(n, e)
	if len(keys) == 0 {
		return awake // no rule has the attribute in its key
	}

	oc.recordSlotTTLs(item.subject)
	o := oc.overlay
	for _, key := range keys {
		items, i, found := o.subjectItems(key, e.Value)
		if !found {
			o.subjects = o.subjects.With(key, slices.Insert(slices.Clone(items), i, item))
		}
	}

	a := o.attributeOf(n)
	a.subjects++
	oc.subjectsChanged = oc.subjectsChanged || a.subjects == 1
	return awake
}

// unfileSubject removes an entry about a subject.
func (oc *overlayCompiler) unfileSubject(e *entries.Entry) {
	n := oc.set.attributes.find(e.Attribute)
	keys := oc.subjectKeysOf(n, e)
	if len(keys) == 0 {
		return
	}

	o := oc.overlay
	for _, key := range keys {
		items, i, found := o.subjectItems(key, e.Value)
		if !found {
			continue
		}

		oc.forgetSlotTTLs(items[i].subject)
		if len(items) == 1 {
			o.subjects = o.subjects.Without(key)
		} else {
			o.subjects = o.subjects.With(key, slices.Delete(slices.Clone(items), i, i+1))
		}
	}

	a := o.attributeOf(n)
	a.subjects--
	oc.subjectsChanged = oc.subjectsChanged || a.subjects == 0
}

// subjectKeysOf returns the keys of the subject of an entry, whose attribute
// has number n: one for each way in which rules group its addresses.
func (oc *overlayCompiler) subjectKeysOf(n int, e *entries.Entry) (list []subjectKey) {
	v := &value{number: n, text: oc.doc.Canonical(e.Attribute, e.Value),
		holdsAddress: document.HoldsAddresses(e.Attribute)}
	for _, g := range oc.groupingsOf(n) {
		list = append(list, keyOfSubject(n, v, v.holdsAddress, g))
	}
	return list
}

// groupingsOf lists how rules with a key attribute group addresses, each once.
func (oc *overlayCompiler) groupingsOf(attribute int) (list []grouping) {
	for _, r := range oc.set.variants {
		for _, k := range r.key {
			if k.number == attribute && !slices.Contains(list, r.grouping) {
				list = append(list, r.grouping)
			}
		}
	}
	return list
}

// compileEntry compiles an entry about a subject. It leaves out a tier that the
// document lacks, and overrides that don't fit the document.
func (oc *overlayCompiler) compileEntry(e *entries.Entry) (s *subject, awake bool) {
	if oc.checker == nil {
		oc.checker = oc.doc.NewOverrideChecker()
	}

	spec, err := document.SubjectOf(e)
	if err != nil { // an earlier release wrote it
		spec = &document.SubjectSpec{Tier: e.Tier}
	}

	fitting := slices.DeleteFunc(slices.Clone(spec.Overrides),
		func(o document.Override) bool { return !oc.fits(e.Attribute, spec, o) })
	awake = err == nil && len(fitting) == len(spec.Overrides)
	s = oc.compileSubject("entry", e.Attribute, &document.SubjectSpec{Value: e.Value, Tier: e.Tier, Overrides: fitting})
	return s, awake && (e.Tier == "" || s.tier >= 0)
}

// fits reports whether an override fits the document.
func (oc *overlayCompiler) fits(attribute string, spec *document.SubjectSpec, o document.Override) bool {
	r := oc.set.byName[o.Rule]
	if r == nil || r.Scope == GlobalScope {
		return false
	}
	return oc.checker.Fits(attribute, spec.Value, o)
}

// fileBlock adds a block by hand. awake is false if the document has no such
// subject.
func (oc *overlayCompiler) fileBlock(e *entries.Entry) (awake bool) {
	if !oc.set.namesSubject(e) {
		return false
	}

	o := oc.overlay
	r := oc.set.byName[e.Rule]
	hash := oc.set.hashOf(r, e.Key)
	items, _ := o.blocks.Get(hash)
	o.blocks = o.blocks.With(hash, append(slices.Clip(items), &blockItem{entry: e, span: oc.spanOf(e)}))
	*o.blockCountOf(r)++
	return true
}

// unfileBlock removes a block by hand.
func (oc *overlayCompiler) unfileBlock(e *entries.Entry) {
	if !oc.set.namesSubject(e) {
		return
	}

	o := oc.overlay
	r := oc.set.byName[e.Rule]
	hash := oc.set.hashOf(r, e.Key)
	items, _ := o.blocks.Get(hash)
	items = slices.DeleteFunc(slices.Clone(items), func(item *blockItem) bool { return item.entry == e })
	if len(items) == 0 {
		o.blocks = o.blocks.Without(hash)
	} else {
		o.blocks = o.blocks.With(hash, items)
	}
	*o.blockCountOf(r)--
}

// recordSlotTTLs records the ttls of the limits of slots that an entry gives its subject.
func (oc *overlayCompiler) recordSlotTTLs(s *subject) {
	for _, l := range s.slotLimits() {
		oc.overlay.slotTTLs = oc.overlay.slotTTLs.With(sourceKey(l.Source), l.Limit.Window)
	}
}

// forgetSlotTTLs undoes recordSlotTTLs. The limits for several variants of a rule
// have the same Source, and so the same ttl.
func (oc *overlayCompiler) forgetSlotTTLs(s *subject) {
	for _, l := range s.slotLimits() {
		oc.overlay.slotTTLs = oc.overlay.slotTTLs.Without(sourceKey(l.Source))
	}
}

// slotLimits lists the limits of slots of a subject's overrides.
func (sub *subject) slotLimits() (list []*Limit) {
	for _, o := range sub.overrides {
		for _, l := range o.limits {
			if l.Kind == algorithms.Concurrency && !l.Unlimited {
				list = append(list, l)
			}
		}
	}
	return list
}
