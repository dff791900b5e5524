package rules

import (
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"github.com/rlnode/rlnode/internal/ipaddr"
)

// Attribute is one fact that the caller knows about a request.
type Attribute struct{ Name, Value string }

// Listing is the verdict of the allow and deny lists on a check.
type Listing uint8

// The verdicts of the lists; deny takes precedence.
const (
	Unlisted Listing = iota
	Allowed
	Denied
)

// Hit is a rule that applies to a check, for one subject.
type Hit struct {
	Rule    *Rule
	Limits  []*Limit
	Subject Hash
	// Cost is in the unit Rule.CostUnitID, for a check that gives none: 1, or
	// the value from the rule's cost table.
	Cost int64
}

// Match is the result of matching a check. Reusing one for check after check
// avoids allocating; it refers to a check's attributes until its next use. The
// zero Match is ready for use.
type Match struct {
	List Listing
	Hits []Hit // in document order
	// Unlimited has a hit for each rule by which the subject is unlimited, in all
	// units or in some. The hit's Limits are the unlimited ones. If the same rule
	// limits other units, Hits has a hit of it, too. Unlimited is in document
	// order.
	Unlimited []Hit
	// Undeclared is how many attributes the document does not declare, if it
	// declares any. They are ignored.
	Undeclared int
	// A caller sets ReuseHits if it has not changed Hits since the last Match or
	// MatchKey.
	ReuseHits bool
	// HitsReused is set by a Match or MatchKey with ReuseHits if it has
	// found the same rules and limits: only the subjects of the hits may differ.
	HitsReused bool
	// A caller may set Now, the wall time of the check in Unix ms, or Clock, which
	// reads it. Without both, the machine's clock counts. The time matters only to
	// entries that have an end, or that a replay has from the time of their
	// writing.
	Now   int64
	Clock func() int64

	values []value // the check's attributes that the set uses
	// foundFor is the set for which found was made. While checks of this set bring
	// the same attributes, found stays valid, whatever the values. nil: search
	// again.
	foundFor   *Set
	uniform    bool        // with foundFor: all rules in found are uniform
	only       *Rule       // with foundFor: the rule that the call was for, if it was for one
	byKey      bool        // with foundFor: the call was of MatchKey
	valueIndex []int32     // by number of attribute: 1 + index in values; 0 if absent
	found      []int32     // positions of rules that may apply
	listed     []int32     // positions of entries of a list that may apply
	key        []Attribute // scratch of MatchKey
	keyValues  []string    // scratch of MatchKey
	folded     []byte      // folded values
	shareLists []int32     // scratch of ApplyShares
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
	// If text is an IPv6 address that embeds address (an IPv4 one), embedding is that
	// IPv6 address, because a CIDR may be written for either. It is invalid
	// otherwise, and for an IPv4-mapped address.
	embedding netip.Addr
	canonical string // canonical notation of the address, in Match.canonical; set on first use
}

// isAddress reports whether the value is an address. If so, it sets v.address and v.embedding.
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
	v.embedding = netip.Addr{}
	if a.Is6() && !a.Is4In6() && v.address.Is4() {
		v.embedding = a
	}
}

func (v *value) replace(text string) {
	v.text = text
	v.parsed = false
	v.canonical = ""
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
		// If m.canonical is moved to grow, the texts of other values keep the old one.
		start := len(m.canonical)
		m.canonical = v.address.AppendTo(m.canonical)
		text := m.canonical[start:]
		v.canonical = unsafe.String(unsafe.SliceData(text), len(text))
	}

	return v.canonical
}

// value returns an attribute's value, or nil.
func (m *Match) value(attribute int) *value {
	if i := m.valueIndex[attribute]; i > 0 {
		return &m.values[i-1]
	}
	return nil
}

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
	m.valueIndex[n] = int32(len(m.values))
}

// loadAttributes sets m's attributes to attrs.
func (s *Set) loadAttributes(attrs []Attribute, m *Match) {
	// Only the slots in use are cleared, so that a check does not take longer
	// where rules have many attributes.
	for i := range m.values {
		m.valueIndex[m.values[i].number] = 0
	}

	m.values = m.values[:0]
	m.canonical = m.canonical[:0]
	m.foundFor = nil
	m.HitsReused = false
	m.Hits = m.Hits[:0]
	m.Unlimited = m.Unlimited[:0]
	m.folded = m.folded[:0]
	m.Undeclared = 0

	if len(m.valueIndex) < len(s.attributes.named) {
		m.valueIndex = make([]int32, len(s.attributes.named))
	}

	for i := range attrs {
		n := s.attributes.find(attrs[i].Name)
		if n < 0 && s.attributes.declared != nil && s.attributes.declared[attrs[i].Name] == nil {
			m.Undeclared++
		}

		if n < 0 || m.valueIndex[n] != 0 || attrs[i].Value == "" {
			continue
		}

		text := s.foldValue(m, n, attrs[i].Value)
		if text != "" { // spaces may be all that it had
			m.add(n, text, s.attributes.named[n].address)
		}
	}
}

// replaceValues is loadAttributes for attributes that m already has, in the
// same order: the usual case for a caller's next check. If m has other
// attributes, it returns false, and m's values must be loaded.
func (s *Set) replaceValues(attrs []Attribute, m *Match) bool {
	if len(attrs) != len(m.values) {
		return false
	}

	m.folded = m.folded[:0]

	for i := range attrs {
		v := &m.values[i]
		if attrs[i].Name != s.attributes.named[v.number].name {
			return false
		}

		text := s.foldValue(m, v.number, attrs[i].Value)
		if text == "" { // the attribute is absent
			return false
		}
		v.replace(text)
	}

	return true
}

// replaceValue replaces the value at index i of m's values.
func (s *Set) replaceValue(m *Match, i int, text string) {
	v := &m.values[i]
	v.replace(s.foldValue(m, v.number, text))
}

// foldValue folds a value of attribute number n. The result is valid until m is
// used again. Few sets fold anything, so the rest is a function of its own: this
// part is inlined in the path of every check.
func (s *Set) foldValue(m *Match, n int, text string) string {
	if !s.attributes.folds {
		return text
	}
	return s.foldByName(m, n, text)
}

// foldByName is foldValue for a set that folds some attributes.
func (s *Set) foldByName(m *Match, n int, text string) string {
	if f := s.attributes.named[n].folding; f != nil {
		text, m.folded = f.Fold(m.folded, text)
	}
	return text
}

// isAbsent reports whether a value of attribute number n counts as absent: it is
// empty, or nothing is left of it once it is folded.
func (s *Set) isAbsent(m *Match, n int, text string) bool {
	return text == "" || s.attributes.folds && s.foldValue(m, n, text) == ""
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

// UsedAttributes calls yield for each attribute of the check last matched with
// m that any part of s uses.
func (s *Set) UsedAttributes(m *Match, yield func(name, value string)) {
	for i := range m.values {
		yield(s.attributes.named[m.values[i].number].name, m.values[i].text)
	}
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
