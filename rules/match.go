package rules

import (
	"fmt"
	"slices"
	"strings"
)

// Match finds what applies to attrs. If only is not nil, it considers only that
// rule; a rule of Envoy's never applies to attributes. An attribute whose value
// is empty is absent. If an attribute is given twice, its first value that is
// not empty counts.
func (s *Set) Match(attrs []Attribute, only *Rule, m *Match) {
	if m.foundFor == s && m.only == only && s.replaceValues(attrs, m) {
		s.matchAgain(m)
		return
	}

	s.loadAttributes(attrs, m)
	m.List = Unlisted
	if s.hasLists {
		m.List = s.checkLists(m)
	}

	m.found = m.found[:0]
	switch {
	case only == nil:
		m.found = s.ruleIndex.find(m, m.found)
		// A rule may be found by several values, and hits are in document
		// order.
		slices.Sort(m.found)
		m.found = slices.Compact(m.found)
	case !only.Envoy:
		for i := range only.variants() {
			m.found = append(m.found, int32(only.variantIndex+i))
		}
	}

	uniform := true
	for _, i := range m.found {
		s.addIfApplies(s.variants[i], m)
		uniform = uniform && s.isUniform(s.variants[i])
	}

	// Only the names of the attributes have decided what was found. So the next
	// check with the same names need not search.
	if s.namesDecide || only != nil {
		m.foundFor = s
		m.only = only
		m.byKey = false
		m.uniform = uniform
	}
}

// matchAgain finds what applies to new values of the attributes that m has.
func (s *Set) matchAgain(m *Match) {
	m.canonical = m.canonical[:0]
	m.HitsReused = m.ReuseHits && m.uniform
	if s.hasLists {
		m.List = s.checkLists(m)
		m.HitsReused = m.HitsReused && m.List == Unlisted
	}

	if m.HitsReused {
		for i := range m.Hits {
			h := &m.Hits[i]
			h.Subject = h.Rule.hash(m, &s.seeds[h.Rule.variantIndex])
		}
		return
	}

	m.Hits = m.Hits[:0]
	m.Unlimited = m.Unlimited[:0]

	for _, i := range m.found {
		s.addIfApplies(s.variants[i], m)
	}
}

// MatchKey finds what applies to one subject of r, given by the values of its
// key attributes in order. It ignores the rule's match, not and absent, and
// takes the default of a cost table. The lists see the key's attributes and no
// others. There is no hit if the rule is not for the subject's tier. The error
// wraps ErrKey if key has too few or too many values, and ErrMissing if a value
// is empty.
func (s *Set) MatchKey(r *Rule, key []string, m *Match) error {
	if len(key) != len(r.Key) {
		return fmt.Errorf("%w: rule %q has %d key attributes [%s], %d values are given",
			ErrKey, r.Name, len(r.Key), strings.Join(r.Key, ", "), len(key))
	}
	if r.Envoy {
		return s.matchEnvoyKey(r, key, m)
	}

	r, key = r.choose(key, m.keyValues)
	if r.alternatives != nil {
		m.keyValues = key
	}

	if i := s.missingValue(m, r, key); i >= 0 {
		return fmt.Errorf("%w: rule %q needs the attribute %s, which is empty", ErrMissing, r.Name, r.Key[i])
	}

	if m.foundFor == s && m.only == r && m.byKey {
		m.folded = m.folded[:0]
		for i := range key {
			s.replaceValue(m, i, key[i])
		}
		s.matchAgain(m)
		return nil
	}

	m.key = m.key[:0]
	for i, v := range key {
		m.key = append(m.key, Attribute{r.Key[i], v})
	}

	s.loadAttributes(m.key, m)
	m.List = s.checkLists(m)
	cost := int64(1)
	if r.cost != nil {
		cost = r.cost.fallback
	}

	s.addHit(r, m, cost)

	if s.isUniform(r) {
		m.foundFor = s
		m.only = r
		m.byKey = true
		m.uniform = true
		m.found = append(m.found[:0], int32(r.variantIndex))
	}

	return nil
}

// checkLists returns the verdict of the lists, in the document and beside it.
func (s *Set) checkLists(m *Match) Listing {
	beside := Unlisted
	if s.overlay != nil {
		beside = s.overlay.listing(m)
	}
	switch {
	case beside == Denied || s.deny.appliesTo(m):
		return Denied
	case beside == Allowed || s.allow.appliesTo(m):
		return Allowed
	}
	return Unlisted
}

// isUniform reports whether r is uniform, with the entries beside the document taken into account.
func (s *Set) isUniform(r *Rule) bool {
	return r.uniform() && (s.overlay == nil || !s.mayHaveEntry(r) && !s.overlay.mayBlock(r))
}

// uniform reports whether the names of a check's attributes alone decide
// whether r applies, and all subjects have the same limits and cost.
func (r *Rule) uniform() bool {
	return len(r.match)+len(r.not) == 0 && r.cost == nil && !r.bySubject &&
		countLimited(r.ownLimits) == len(r.ownLimits)
}

// addIfApplies adds a hit if r applies.
func (s *Set) addIfApplies(r *Rule, m *Match) {
	for i := range r.key {
		if m.valueIndex[r.key[i].number] == 0 {
			return
		}
	}

	if r.hasConditions && !r.conditionsHold(m) {
		return
	}

	cost := int64(1)
	if r.cost != nil {
		cost = r.costOf(m)
	}

	s.addHit(r, m, cost)
}

// addHit adds a hit of r for the subject in m, if there are limits for that
// subject. m must have all of r's key attributes.
func (s *Set) addHit(r *Rule, m *Match, cost int64) {
	limits := r.ownLimits
	beside := s.mayHaveEntry(r)
	if beside || r.bySubject {
		var from *overlay
		if beside {
			from = s.overlay
		}
		limits = r.limits(m, from)
		if limits == nil {
			return
		}
	}

	// Limits that say unlimited come last; see countLimited.
	if len(limits) > 0 && limits[len(limits)-1].Unlimited {
		limited := countLimited(limits)
		m.Unlimited = append(m.Unlimited,
			Hit{Rule: r, Limits: limits[limited:], Subject: r.hash(m, &s.seeds[r.variantIndex]), Cost: cost})
		limits = limits[:limited]
		if limited == 0 {
			return
		}
	}

	if len(m.Hits) == cap(m.Hits) {
		m.Hits = slices.Grow(m.Hits, 1)
	}
	m.Hits = m.Hits[:len(m.Hits)+1]
	h := &m.Hits[len(m.Hits)-1] // a reused Hit: set all fields
	h.Rule = r
	h.Limits = limits
	h.Subject = r.hash(m, &s.seeds[r.variantIndex])
	h.Cost = cost
}

// costOf looks up the check's cost in the rule's cost table.
func (r *Rule) costOf(m *Match) int64 {
	if v := m.value(r.cost.attribute); v != nil {
		if cost, ok := r.cost.byText[m.canonicalText(v)]; ok {
			return cost
		}
	}
	return r.cost.fallback
}
