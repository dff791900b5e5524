package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// ErrKey is a key whose values are not as many as the rule's key attributes.
var ErrKey = errors.New("key does not fit the rule")

// Match is the outcome of matching a check. It is reused from check to check without allocating; it refers to the
// check's attributes until it is used again. The zero Match is ready for use.
type Match struct {
	List Listing
	Hits []Hit // in document order

	values []value     // the check's attributes that the set looks at
	slots  []int32     // by number of attribute: 1 + position in values; 0: not there
	found  []int32     // positions of entries that may apply
	hashed []byte      // what is hashed
	seeded *Rule       // whose seed hashed begins with
	key    []Attribute // of MatchKey
	lists  []int32     // of Share
	usual  []byte      // what addresses are usually written like
}

// value is an attribute of the check at hand.
type value struct {
	number       int // of the attribute
	text         string
	holdsAddress bool // the attribute is for addresses
	parsed       bool // address and valid are known
	valid        bool // text is an address
	address      netip.Addr
	usual        string // how the address is usually written, once that was asked for; in Match.usual
}

// isAddress reports whether the value is an address, which then is in v.address.
func (v *value) isAddress() bool {
	if !v.parsed {
		v.address, v.valid = parseAddress(v.text)
		v.parsed = true
	}
	return v.valid
}

// counted is the text of v that globs and cost tables are compared with: of an address, its usual writing. It holds until
// m is used again.
func (m *Match) counted(v *value) string {
	if !v.holdsAddress || !v.isAddress() {
		return v.text
	}
	if _, plain := parseIPv4(v.text); plain {
		return v.text
	}
	if v.usual == "" {
		start := len(m.usual)
		m.usual = v.address.AppendTo(m.usual)
		text := m.usual[start:]
		v.usual = unsafe.String(unsafe.SliceData(text), len(text))
	}
	return v.usual
}

// keyAttribute is one of a rule's key attributes.
type keyAttribute struct {
	number   int
	address  bool
	subjects *subjectTable // nil: none are listed
}

// Match finds what applies to attrs. only restricts it to one rule; nil asks all. Of attributes named twice the
// first counts.
func (s *Set) Match(attrs []Attribute, only *Rule, m *Match) {
	s.load(attrs, m)
	m.List = Unlisted
	if s.lists {
		m.List = s.listing(m)
	}
	if only != nil {
		s.try(only, m)
		return
	}
	m.found = s.rules.find(m, m.found[:0])
	if len(m.found) > 1 {
		slices.Sort(m.found)
	}
	last := int32(-1)
	for _, i := range m.found {
		if i != last {
			s.try(s.Rules[i], m)
		}
		last = i
	}
}

// MatchKey finds what applies to one subject of r, given by its key attributes' values in order. Match
// conditions and cost tables' attributes are not consulted; the lists see only the key. The error wraps ErrKey and
// says how the number of values is wrong.
func (s *Set) MatchKey(r *Rule, key []string, m *Match) error {
	if len(key) != len(r.Key) {
		return fmt.Errorf("%w: rule %q has %d key attributes [%s], %d values are given",
			ErrKey, r.Name, len(r.Key), strings.Join(r.Key, ", "), len(key))
	}
	m.key = m.key[:0]
	for i, v := range key {
		m.key = append(m.key, Attribute{r.Key[i], v})
	}
	s.load(m.key, m)
	m.List = s.listing(m)
	cost := int64(1)
	if r.cost != nil {
		cost = r.cost.fallback
	}
	m.hit(r, cost)
	return nil
}

// load makes m about attrs.
func (s *Set) load(attrs []Attribute, m *Match) {
	for i := range m.values {
		m.slots[m.values[i].number] = 0
	}
	m.values, m.Hits, m.usual = m.values[:0], m.Hits[:0], m.usual[:0]
	if len(m.slots) < len(s.attributes.named) {
		m.slots = make([]int32, len(s.attributes.named))
	}
	for i := range attrs {
		n := s.attributes.find(attrs[i].Name)
		if n < 0 || m.slots[n] != 0 {
			continue
		}
		m.add(n, attrs[i].Value, s.attributes.named[n].address)
	}
}

// add makes text the value of attribute number n.
func (m *Match) add(n int, text string, address bool) {
	if len(m.values) == cap(m.values) {
		m.values = slices.Grow(m.values, 1)
	}
	m.values = m.values[:len(m.values)+1]
	v := &m.values[len(m.values)-1]
	v.number, v.text, v.holdsAddress = n, text, address
	v.parsed, v.valid, v.usual = false, false, "" // address counts only where parsed says so
	m.slots[n] = int32(len(m.values))
}

// value returns an attribute's value, or nil.
func (m *Match) value(attribute int) *value {
	if i := m.slots[attribute]; i > 0 {
		return &m.values[i-1]
	}
	return nil
}

func (m *Match) holds(match []condition) bool {
	for i := range match {
		if v := m.value(match[i].attribute); v == nil || !match[i].holds(m, v) {
			return false
		}
	}
	return true
}

func (s *Set) listing(m *Match) Listing {
	switch {
	case s.deny.any(m):
		return Denied
	case s.allow.any(m):
		return Allowed
	}
	return Unlisted
}

// try adds a hit if r applies.
func (s *Set) try(r *Rule, m *Match) {
	for i := range r.key {
		if m.slots[r.key[i].number] == 0 {
			return
		}
	}
	if len(r.match) > 0 && !m.holds(r.match) {
		return
	}
	cost := int64(1)
	if r.cost != nil {
		cost = r.costOf(m)
	}
	m.hit(r, cost)
}

// hit adds what r says about the subject, whose values are all there.
func (m *Match) hit(r *Rule, cost int64) {
	limits := r.own
	if r.bySubject {
		if limits = r.limits(m); limits == nil {
			return
		}
	}
	if len(m.Hits) == cap(m.Hits) {
		m.Hits = slices.Grow(m.Hits, 1)
	}
	m.Hits = m.Hits[:len(m.Hits)+1]
	h := &m.Hits[len(m.Hits)-1] // all of it is set anew
	h.Rule, h.Limits, h.Block, h.Subject, h.Cost = r, limits, r.block, r.hash(m), cost
}

// costOf looks a check up in the rule's cost table.
func (r *Rule) costOf(m *Match) int64 {
	if v := m.value(r.cost.attribute); v != nil {
		if cost, ok := r.cost.byText[m.counted(v)]; ok {
			return cost
		}
	}
	return r.cost.fallback
}

// Tags of values in what is hashed: a text is never taken for an address.
const (
	tagText byte = iota
	tagIPv4
	tagIPv6
)

// hash is the subject's identity. Every value is preceded by what it is and, unless that fixes it, its length, so
// that different keys are different bytes.
func (r *Rule) hash(m *Match) Hash {
	if m.seeded != r {
		m.hashed, m.seeded = append(m.hashed[:0], r.seed...), r
	}
	b := m.hashed[:len(r.seed)]
	for i := range r.key {
		k := &r.key[i]
		v := m.value(k.number)
		if k.address && v.isAddress() {
			b = r.appendAddress(b, v.address)
			continue
		}
		b = binary.LittleEndian.AppendUint32(append(b, tagText), uint32(len(v.text)))
		b = append(b, v.text...)
	}
	m.hashed = b
	h := xxh3.Hash128(b)
	return Hash{h.Hi, h.Lo}
}

// appendAddress appends what of an address tells subjects apart.
func (r *Rule) appendAddress(b []byte, address netip.Addr) []byte {
	if address.Is4() {
		a := address.As4()
		return append(append(b, tagIPv4), a[:]...)
	}
	a := groupAddress(address, r.IPv6Prefix).As16()
	return append(append(b, tagIPv6), a[:]...)
}

// SubjectOf returns the values of r's key in attrs as they are counted: normalised, addresses grouped. Of a key
// attribute that is not there the value is empty.
func (r *Rule) SubjectOf(attrs []Attribute) []string {
	out := make([]string, len(r.Key))
	for i, name := range r.Key {
		for j := range attrs {
			if attrs[j].Name == name {
				out[i] = r.normal(i, attrs[j].Value)
				break
			}
		}
	}
	return out
}

// NormalKey returns key as it is counted: normalised, addresses grouped. It has no more values than r has key
// attributes.
func (r *Rule) NormalKey(key []string) []string {
	out := make([]string, min(len(key), len(r.Key)))
	for i := range out {
		out[i] = r.normal(i, key[i])
	}
	return out
}

// normal returns the i-th key value as it is counted, as a string of its own.
func (r *Rule) normal(i int, text string) string {
	if r.key[i].address {
		if a, ok := parseAddress(text); ok {
			return groupAddress(a, r.IPv6Prefix).String()
		}
	}
	return strings.Clone(text)
}
