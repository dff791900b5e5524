package rules

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/yaml"
	"github.com/rlnode/rlnode/rules/entries"
)

// overlayCompiler derives a set's overlay from that of other entries.
type overlayCompiler struct {
	compiler
	overlay *overlay // not shared yet
	checker *checker // nil until it is needed
	touched bool     // the number of entries about some attribute's subjects is now, or is no longer, zero
}

// WithEntries returns a copy of s that matches checks with entries. It shares
// everything else with s. If base comes from the same call of [Compile] and has
// the same hash key, only what differs from its entries is compiled.
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
		next.units = base.units
		next.Units = base.Units
		*o = *base.overlay
	}

	if o.entries == e {
		next.overlay = o
		next.noteLists()
		return &next
	}

	before := o.entries
	o.entries = e
	o.attributes = slices.Clone(o.attributes)
	o.blocksOfRules = slices.Clone(o.blocksOfRules)
	c := &overlayCompiler{compiler: compiler{set: &next, doc: s.Document, extends: true}, overlay: o}
	o.edit()
	e.Diff(before, c.replace)
	o.done()

	if c.touched || o.bySubject == nil {
		o.bySubject = c.rulesBySubject()
	}
	next.overlay = o
	if e.Len() == 0 {
		next.overlay = nil // checks cost nothing more than without entries
	}

	next.noteLists()
	return &next
}

// noteLists records whether a list has entries, in the document or beside it.
func (s *Set) noteLists() {
	s.hasLists = len(s.Document.Deny)+len(s.Document.Allow) > 0 || s.overlay != nil && s.overlay.listItems > 0
}

// extend gives the set its own copies of the tables of attributes and units
// before the first of them gets another number.
func (c *compiler) extend() {
	if !c.extends {
		return
	}
	c.extends = false
	s := c.set
	s.attributes.named, s.attributes.numbers = slices.Clip(s.attributes.named), maps.Clone(s.attributes.numbers)
	s.Units, s.units = slices.Clip(s.Units), maps.Clone(s.units)
}

// rulesBySubject returns, by Rule.number, whether entries may change the limits
// of the rule's subjects. They never change those of global rules, whose
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
		oc.file(before, false)
	}
	if after != nil {
		oc.file(after, true)
	}
}

// file adds or removes one entry.
func (oc *overlayCompiler) file(e *entries.Entry, add bool) {
	awake := true
	switch e.Kind {
	case entries.Subject:
		awake = oc.fileSubject(e, add)
	case entries.Block:
		awake = oc.fileBlock(e, add)
	default:
		oc.fileListed(e, add)
	}

	o := oc.overlay
	_, sleeps := o.asleep.Get(entries.Text(e.ID()))
	switch {
	case add && !awake:
		o.asleep = o.asleep.With(entries.Text(e.ID()), e)
	case !add && sleeps:
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

// fileListed adds or removes an entry of a list. It files an entry under its
// most selective condition; among equals, under the one with the fewest other
// entries.
func (oc *overlayCompiler) fileListed(e *entries.Entry, add bool) {
	o := oc.overlay
	match := oc.compileConditions(conditionsOf(e))
	if !add {
		o.listItems--
		// The number of other items at that time decided where the item was filed. So
		// it is looked for under all of its conditions.
		for i := range match {
			oc.unfile(e, keysOf(&match[i]))
		}
		return
	}

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
		o.recount(key, 1)
	}
}

// unfile removes an entry from all of the keys that it is filed under.
func (oc *overlayCompiler) unfile(e *entries.Entry, keys []listKey) {
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

		o.recount(key, -1)
	}
}

// conditionsOf returns an entry's conditions as those of the document.
func conditionsOf(e *entries.Entry) []Condition {
	out := make([]Condition, len(e.Match))
	for i, c := range e.Match {
		out[i] = Condition{Attribute: c.Attribute, Values: c.Values, single: len(c.Values) == 1}
	}
	return out
}

// fileSubject adds or removes an entry about a subject. awake is false if the
// document lacks its tier, or one of its rules.
func (oc *overlayCompiler) fileSubject(e *entries.Entry, add bool) (awake bool) {
	o := oc.overlay
	item := &subjectItem{entry: e, span: oc.spanOf(e)}
	if add {
		item.subject, awake = oc.compileEntry(e)
	}

	n := oc.set.attributes.find(e.Attribute)
	groupings := oc.groupingsOf(n)
	if len(groupings) == 0 {
		return awake // no rule has the attribute in its key
	}

	if add {
		oc.noteSlotTTLs(item.subject)
	}

	v := &value{number: n, text: canonicalValue(oc.doc.declared, e.Attribute, e.Value),
		holdsAddress: holdsAddresses(e.Attribute)}
	for _, g := range groupings {
		key := keyOfSubject(n, v, v.holdsAddress, g)
		items, _ := o.subjects.Get(key)
		i, found := slices.BinarySearchFunc(items, e.Value,
			func(item *subjectItem, value string) int { return strings.Compare(item.entry.Value, value) })
		if !add && found {
			oc.forgetSlotTTLs(items[i].subject)
		}

		switch {
		case add && !found:
			o.subjects = o.subjects.With(key, slices.Insert(slices.Clone(items), i, item))
		case !add && found && len(items) == 1:
			o.subjects = o.subjects.Without(key)
		case !add && found:
			o.subjects = o.subjects.With(key, slices.Delete(slices.Clone(items), i, i+1))
		}
	}

	a := o.attributeOf(n)
	if add {
		a.subjects++
		oc.touched = oc.touched || a.subjects == 1
	} else {
		a.subjects--
		oc.touched = oc.touched || a.subjects == 0
	}

	return awake
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
		oc.checker = newChecker(oc.doc, &collector{})
	}

	spec, err := readSubject(e)
	if err != nil { // an earlier release wrote it
		spec = &SubjectSpec{Tier: e.Tier}
	}

	fitting := slices.DeleteFunc(slices.Clone(spec.Overrides),
		func(o Override) bool { return !oc.fits(e.Attribute, spec, o) })
	awake = err == nil && len(fitting) == len(spec.Overrides)
	s = oc.compileSubject("entry", e.Attribute, &SubjectSpec{Value: e.Value, Tier: e.Tier, Overrides: fitting})
	return s, awake && (e.Tier == "" || s.tier >= 0)
}

// fits reports whether an override fits the document.
func (oc *overlayCompiler) fits(attribute string, spec *SubjectSpec, o Override) bool {
	r := oc.set.byName[o.Rule]
	if r == nil || r.Scope == GlobalScope {
		return false
	}
	oc.checker.collector = &collector{}
	oc.checker.checkSubject("", attribute, &SubjectSpec{Value: spec.Value, Overrides: []Override{o}})
	return oc.checker.err() == nil
}

// readSubject reads an entry about a subject as a piece of a document.
func readSubject(e *entries.Entry) (*SubjectSpec, error) {
	spec := &SubjectSpec{Value: e.Value, Tier: e.Tier}
	if len(e.Limits) == 0 {
		return spec, nil
	}
	n, err := parseText(slices.Concat([]byte(`{"limits":`), e.Limits, []byte("}")))
	if err != nil {
		return nil, err
	}
	d := &decoder{}
	spec = d.subject(e.Attribute, yaml.Text(e.Value), n)
	spec.Tier = e.Tier
	return spec, d.err()
}

// fileBlock adds or removes a block by hand.
func (oc *overlayCompiler) fileBlock(e *entries.Entry, add bool) (awake bool) {
	o := oc.overlay
	if !oc.set.namesSubject(e) {
		return false
	}

	r := oc.set.byName[e.Rule]
	for len(o.blocksOfRules) <= r.Index {
		o.blocksOfRules = append(o.blocksOfRules, 0)
	}

	hash := oc.set.hashOf(r, e.Key)
	items, _ := o.blocks.Get(hash)
	if add {
		o.blocks = o.blocks.With(hash, append(slices.Clip(items), &blockItem{entry: e, span: oc.spanOf(e)}))
		o.blocksOfRules[r.Index]++
		return true
	}

	items = slices.DeleteFunc(slices.Clone(items), func(item *blockItem) bool { return item.entry == e })
	if len(items) == 0 {
		o.blocks = o.blocks.Without(hash)
	} else {
		o.blocks = o.blocks.With(hash, items)
	}
	o.blocksOfRules[r.Index]--
	return true
}

// namesSubject reports whether a block names a subject of the document.
func (s *Set) namesSubject(e *entries.Entry) bool {
	r := s.byName[e.Rule]
	return r != nil && !r.Envoy && len(r.Key) == len(e.Key) && s.MissingAttribute(r, e.Key) == ""
}

// hashOf returns the identity of a rule's subject. key has a value for each of
// the rule's key attributes.
func (s *Set) hashOf(r *Rule, key []string) Hash {
	m := &Match{}
	r, key = r.choose(key, nil)
	attrs := make([]Attribute, len(key))
	for i, v := range key {
		attrs[i] = Attribute{r.Key[i], v}
	}
	s.loadAttributes(attrs, m)
	return r.hash(m, &s.seeds[r.number])
}
