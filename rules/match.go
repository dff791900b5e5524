package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unsafe"

	"github.com/rlnode/rlnode/internal/ipaddr"
)

// ErrKey means that the number of a key's values differs from that of the
// rule's key attributes, or that the values match a different descriptor of
// Envoy's than the one named.
var ErrKey = errors.New("key does not fit the rule")

// ErrMissing means that a value of the key is empty. An empty value is no
// value: an attribute with one is ignored, but a key needs all of its values.
var ErrMissing = errors.New("a value is missing")

// Match is the result of matching a check. Reusing one for check after check
// avoids allocating; it refers to a check's attributes until its next use. The
// zero Match is ready for use.
type Match struct {
	List Listing
	Hits []Hit // in document order
	// Unlimited has a hit for each rule by which the subject is unlimited, in all
	// units or in some. The hit's Limits are the unlimited ones. If the rule
	// limits other units, Hits has a hit of it, too. Both are in document order.
	Unlimited []Hit
	// Undeclared is how many attributes the document does not declare, if it
	// declares any. They are ignored.
	Undeclared int
	// A caller sets HitsKept if it has not changed Hits since the last Match or
	// MatchKey.
	HitsKept bool
	// OnlySubjectsChanged is set by a Match or MatchKey with HitsKept if it has
	// found the same rules and limits: only the subjects of the hits may differ.
	OnlySubjectsChanged bool
	// A caller may set Now, the wall time of the check in Unix ms, or Clock, which
	// reads it. The time is needed only where an entry has an end. Without both, the
	// machine's clock counts.
	Now   int64
	Clock func() int64

	values []value // the check's attributes that the set uses
	// foundFor is the set for which found was made. found stays valid while only
	// the values of these attributes change. nil: search again.
	foundFor   *Set
	uniform    bool        // with foundFor: all rules in found are uniform
	only       *Rule       // with foundFor: the rule that the call was for, if it was for one
	byKey      bool        // with foundFor: the call was of MatchKey
	slots      []int32     // by number of attribute: 1 + index in values; 0 if absent
	found      []int32     // positions of rules that may apply
	listed     []int32     // positions of entries of a list that may apply
	key        []Attribute // scratch of MatchKey
	keyValues  []string    // scratch of MatchKey
	folded     []byte      // folded values
	shareLists []int32     // scratch of Share
	canonical  []byte      // canonical notation of addresses
	inline     []byte      // scratch of MatchInline
}

// value is an attribute of the current check.
type value struct {
	number       int // of the attribute
	text         string
	holdsAddress bool // the attribute is for addresses
	parsed       bool // valid and the addresses are known
	valid        bool // text is an address
	address      netip.Addr
	// written is the IPv6 address in the text if that embeds address, an IPv4 one.
	// It is invalid otherwise, and for an IPv4-mapped address.
	written   netip.Addr
	canonical string // canonical notation of the address, in Match.canonical; set on first use
}

// isAddress reports whether the value is an address. If so, it sets v.address and v.written.
func (v *value) isAddress() bool {
	if !v.parsed {
		v.parse()
	}
	return v.valid
}

// parse sets all that isAddress needs.
func (v *value) parse() {
	a, ok := ipaddr.ParseWritten(v.text)
	v.parsed = true
	v.valid = ok

	v.address = ipaddr.Canonical(a)
	v.written = netip.Addr{}
	if a.Is6() && !a.Is4In6() && v.address.Is4() {
		v.written = a
	}
}

// canonicalText returns the text of v that globs and cost tables are compared
// with; addresses are in canonical notation. It is valid until m is used again.
func (m *Match) canonicalText(v *value) string {
	if !v.holdsAddress || !v.isAddress() {
		return v.text
	}
	if ipaddr.IsPlainIPv4(v.text) {
		return v.text
	}

	if v.canonical == "" {
		start := len(m.canonical)
		m.canonical = v.address.AppendTo(m.canonical)
		text := m.canonical[start:]
		v.canonical = unsafe.String(unsafe.SliceData(text), len(text))
	}

	return v.canonical
}

// keyAttribute is one of a rule's key attributes.
type keyAttribute struct {
	number   int
	address  bool
	folding  *folding      // nil if values are taken as they are
	subjects *subjectTable // nil if none are listed
}

// Match finds what applies to attrs. If only is not nil, it considers only that
// rule; a rule of Envoy's never applies to attributes. An attribute whose value
// is empty is absent. If an attribute is given twice, its first value counts.
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
		m.found = s.rules.find(m, m.found)
		// A rule may be found by several values, and hits are in document
		// order.
		slices.Sort(m.found)
		m.found = slices.Compact(m.found)
	case !only.Envoy:
		for i := range only.all() {
			m.found = append(m.found, int32(only.number+i))
		}
	}

	uniform := true
	for _, i := range m.found {
		s.addIfApplies(s.variants[i], m)
		uniform = uniform && s.isUniform(s.variants[i])
	}

	// The names alone have decided what was found. So the next check with the
	// same attributes need not search.
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
	m.OnlySubjectsChanged = m.HitsKept && m.uniform
	if s.hasLists {
		m.List = s.checkLists(m)
		m.OnlySubjectsChanged = m.OnlySubjectsChanged && m.List == Unlisted
	}

	if m.OnlySubjectsChanged {
		for i := range m.Hits {
			h := &m.Hits[i]
			h.Subject = h.Rule.hash(m, &s.seeds[h.Rule.number])
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
// key attributes in order. It does not look at match, not and absent, and takes
// the default of a cost table. The lists see the key's attributes and no
// others. If key has too few or too many values, the error wraps ErrKey and
// names the attributes. It wraps ErrMissing if a value is empty.
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
		m.found = append(m.found[:0], int32(r.number))
	}

	return nil
}

// loadAttributes sets m's attributes to attrs.
func (s *Set) loadAttributes(attrs []Attribute, m *Match) {
	// Only the slots in use are cleared, so that a check does not take longer
	// where rules have many attributes.
	for i := range m.values {
		m.slots[m.values[i].number] = 0
	}

	m.values = m.values[:0]
	m.canonical = m.canonical[:0]
	m.foundFor = nil
	m.OnlySubjectsChanged = false
	m.Hits = m.Hits[:0]
	m.Unlimited = m.Unlimited[:0]
	m.folded = m.folded[:0]
	m.Undeclared = 0

	if len(m.slots) < len(s.attributes.named) {
		m.slots = make([]int32, len(s.attributes.named))
	}

	for i := range attrs {
		n := s.attributes.find(attrs[i].Name)
		if n < 0 && s.attributes.declared != nil && s.attributes.declared[attrs[i].Name] == nil {
			m.Undeclared++
		}

		if n < 0 || m.slots[n] != 0 || attrs[i].Value == "" {
			continue
		}

		text := s.foldValue(m, n, attrs[i].Value)
		if text != "" { // spaces may be all that it had
			m.add(n, text, s.attributes.named[n].address)
		}
	}
}

// missingValue returns the index of the first value of key, the key of r, that
// is absent; −1 if none is.
func (s *Set) missingValue(m *Match, r *Rule, key []string) int {
	for i := range key {
		if s.isAbsent(m, r.key[i].number, key[i]) {
			return i
		}
	}
	return -1
}

// isAbsent reports whether a value of attribute number n counts as absent: it is
// empty, or nothing is left of it once it is folded.
func (s *Set) isAbsent(m *Match, n int, text string) bool {
	return text == "" || s.attributes.folds && s.foldValue(m, n, text) == ""
}

// MissingAttribute returns the attribute of r's key for which key has no value;
// empty if it has all of them. key has a value for each attribute of the key.
func (s *Set) MissingAttribute(r *Rule, key []string) string {
	r, key = r.choose(key, nil)
	if i := s.missingValue(&Match{}, r, key); i >= 0 {
		return r.Key[i]
	}
	return ""
}

// replaceValues is loadAttributes for attributes that m already has, in the
// same order: the usual case for a caller's next check. If m has other
// attributes, it returns false and m's values stay.
func (s *Set) replaceValues(attrs []Attribute, m *Match) bool {
	if len(attrs) != len(m.values) {
		return false
	}

	for i := range attrs {
		if s.isAbsent(m, m.values[i].number, attrs[i].Value) ||
			attrs[i].Name != s.attributes.named[m.values[i].number].name {
			return false
		}
	}

	m.folded = m.folded[:0]

	for i := range attrs {
		s.replaceValue(m, i, attrs[i].Value)
	}

	return true
}

// replaceValue replaces the value at index i of m's values.
func (s *Set) replaceValue(m *Match, i int, text string) {
	v := &m.values[i]
	v.replace(s.foldValue(m, v.number, text))
}

// foldValue folds a value of attribute number n. The result is valid until m is used again.
func (s *Set) foldValue(m *Match, n int, text string) string {
	if !s.attributes.folds {
		return text
	}
	if f := s.attributes.named[n].folding; f != nil {
		text, m.folded = f.fold(m.folded, text)
	}
	return text
}

func (v *value) replace(text string) { v.text, v.parsed, v.canonical = text, false, "" }

// add sets the value of attribute number n to text.
func (m *Match) add(n int, text string, address bool) {
	if len(m.values) == cap(m.values) {
		m.values = slices.Grow(m.values, 1)
	}

	m.values = m.values[:len(m.values)+1]
	v := &m.values[len(m.values)-1]
	v.number = n
	v.text = text
	v.holdsAddress = address

	// The address is only read if parsed is set.
	v.parsed = false
	v.valid = false
	v.canonical = ""
	m.slots[n] = int32(len(m.values))
}

// value returns an attribute's value, or nil.
func (m *Match) value(attribute int) *value {
	if i := m.slots[attribute]; i > 0 {
		return &m.values[i-1]
	}
	return nil
}

// UsedAttributes calls yield for each attribute of the check last matched with
// m that any part of s uses.
func (s *Set) UsedAttributes(m *Match, yield func(name, value string)) {
	for i := range m.values {
		yield(s.attributes.named[m.values[i].number].name, m.values[i].text)
	}
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

// allows reports whether r's conditions on attributes outside the key hold.
func (r *Rule) allows(m *Match) bool {
	for _, n := range r.absent {
		if m.slots[n] != 0 {
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
		if m.slots[r.key[i].number] == 0 {
			return
		}
	}

	if r.conditional && !r.allows(m) {
		return
	}

	cost := int64(1)
	if r.cost != nil {
		cost = r.costOf(m)
	}

	s.addHit(r, m, cost)
}

// addHit adds a hit of r for the subject in m, which must have all of r's key
// attributes, if there are limits for it.
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
			Hit{Rule: r, Limits: limits[limited:], Subject: r.hash(m, &s.seeds[r.number]), Cost: cost})
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
	h.Subject = r.hash(m, &s.seeds[r.number])
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

// SubjectOf returns the values of r's key attributes in attrs as r counts them:
// folded, with addresses grouped, and as user=ann where the key has
// alternatives. The value of an absent attribute is empty. The values share no
// memory with attrs. r is the rule of a [Hit].
func (r *Rule) SubjectOf(attrs []Attribute) []string {
	return cloneAll(r.AppendSubjectOf([]string{}, attrs))
}

// AppendSubjectOf appends what SubjectOf returns, but the values may share memory with attrs.
func (r *Rule) AppendSubjectOf(out []string, attrs []Attribute) []string {
	for i, name := range r.Key {
		value := ""
		for j := range attrs {
			if attrs[j].Name == name {
				value = r.shownValue(i, attrs[j].Value)
				break
			}
		}

		out = append(out, value)
	}

	return out
}

// NormalKey returns key as r counts it, like SubjectOf. It returns at most as
// many values as r has key attributes.
func (r *Rule) NormalKey(key []string) []string { return cloneAll(r.AppendNormalKey([]string{}, key)) }

// AppendNormalKey appends what NormalKey returns, but the values may share memory with key.
func (r *Rule) AppendNormalKey(out, key []string) []string {
	r, key = r.choose(key, nil)
	for i := range min(len(key), len(r.Key)) {
		out = append(out, r.shownValue(i, key[i]))
	}
	return out
}

// cloneAll replaces the values by copies.
func cloneAll(values []string) []string {
	for i := range values {
		values[i] = strings.Clone(values[i])
	}
	return values
}
