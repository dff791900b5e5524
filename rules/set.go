package rules

import (
	"time"

	"github.com/rlnode/rlnode/rules/document"
)

// Set is a compiled document. It is immutable and safe for concurrent use.
type Set struct {
	Version     int64
	Document    *document.Document
	Headers     document.Headers
	DefaultDeny bool     // `default: deny`
	Rules       []*Rule  // in document order
	Units       []string // by UnitID; Units[0] is document.Requests

	byName     map[string]*Rule
	unitIDs    map[string]int
	attributes attributes // those that any part of the set uses
	// variants are the rules that can apply to attributes: Rules, but with its
	// variants in place of each rule whose key has alternatives.
	variants         []*Rule
	ruleIndex        index // of the variants
	deny, allow      list
	hasLists         bool // at least one of the lists has entries, in the document or beside it
	hasZero          bool // some limit is 0: see Limit.RefusesAll
	namesDecide      bool // the names of a check's attributes alone say which rules may apply
	profiles         map[string]*Profile
	globals          globals
	slotTTLs         map[uint64]time.Duration // of the document's limits of slots, by Limit.Source
	seeds            []hashState              // by Rule.variantIndex: the initial state for hashing the rule's subjects
	inlineSeed       hashState                // the initial state for hashing subjects with inline limits
	inline           *inlineSets
	inlineNamespaces *Namespaces           // of the document; nil without its section
	inlineNames      map[string]inlineName // by namespace; "" for all that the document does not name
	names            []string              // see Names
	envoy            *envoyTrees           // nil without the section
	heldVersions     *DividingVersions     // nil if global limits are not divided
	division         *division             // of shares; nil without shares
	overlay          *overlay              // what entries add; nil without entries
	compiled         *byte                 // identifies the call of Compile that all copies of the set come from
	key              hashKey               // of seeds
}

// HeldVersion is the part of a rules version that shares depend on: its set,
// and the regions that divide its global limits.
type HeldVersion struct {
	Set     *Set
	Regions []string // the committed regions, sorted
	// RecordedAt is the wall time, in Unix ms, from which no region uses an older
	// version. It is 0 until the version is recorded.
	RecordedAt int64
	// Doubtful means that RecordedAt was not recorded yet when the primary
	// changed, so the previous primary may have recorded an earlier time.
	Doubtful bool
	// NotHonouredAt is a wall time at which this process's region had certainly not
	// honoured the version yet; 0 if none is known. It is in Unix ns, by the clock
	// of this process. See [NotHonoured].
	NotHonouredAt int64
}

// DividingVersions determines a set's global limits in one region. It is
// immutable.
//
// While regions may use different versions of the rules, a share is small
// enough for all of them; see [Set.ApplyShares].
type DividingVersions struct {
	Region string
	// Held are the versions that still count, oldest first; recorded ones precede
	// the rest. The last is the set's own.
	Held []HeldVersion
}

// HasZero reports whether some limit of s is 0; see [Limit.RefusesAll].
func (s *Set) HasZero() bool { return s.hasZero }

// MaxGlobalSpan returns an upper bound of the length of any global limit's
// window and of the time that any global bucket takes to fill. It is 0 if s has
// no global limits.
func (s *Set) MaxGlobalSpan() time.Duration { return s.globals.maxSpan }

// DividesAs reports whether s and other have the same global limits for all
// subjects and the same parts for the regions.
func (s *Set) DividesAs(other *Set) bool { return s.globals.fingerprint == other.globals.fingerprint }

// Rule returns the rule with this name, or else the rule of the EnvoyNode with this path, or nil.
func (s *Set) Rule(name string) *Rule {
	r := s.byName[name]
	if r == nil && s.envoy != nil {
		if n := s.envoy.paths[name]; n != nil {
			r = n.Rule
		}
	}
	return r
}

// SameRules reports whether both sets have the same rules, Envoy's nodes and
// shares, whatever entries are beside them. It is false for sets from different
// calls of [Compile].
func (s *Set) SameRules(o *Set) bool {
	return s.compiled == o.compiled && s.envoy == o.envoy && s.heldVersions == o.heldVersions
}

// Profile returns the profile with this name, or nil.
func (s *Set) Profile(name string) *Profile { return s.profiles[name] }

// UnitID returns the ID of a unit, and whether any limit uses the unit.
func (s *Set) UnitID(name string) (int, bool) {
	id, ok := s.unitIDs[name]
	return id, ok
}

// markLists records whether a list has entries, in the document or beside it.
func (s *Set) markLists() {
	s.hasLists = len(s.Document.Deny)+len(s.Document.Allow) > 0 || s.overlay != nil && s.overlay.listItems > 0
}

// SlotTTL returns the ttl of the limit of slots that has a Source. found is
// false if no limit has that Source any more.
func (s *Set) SlotTTL(source uint64) (ttl time.Duration, found bool) {
	ttl, found = s.slotTTLs[source]
	if found || s.overlay == nil {
		return ttl, found
	}
	return s.overlay.slotTTLs.Get(sourceKey(source))
}

// SlotTTLs returns the longest ttl of the limits of slots that the document
// gives a rule, for any subject, by the rule's name. It leaves out rules
// without such limits.
func (s *Set) SlotTTLs() map[string]time.Duration {
	longest := map[string]time.Duration{}
	s.Document.EachSlotLimit(func(rule string, _ document.Origin, l *document.LimitSpec) {
		longest[rule] = max(longest[rule], l.Window)
	})
	return longest
}
