package rules

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/rules/document"
)

// Compile compiles doc for matching checks. The result depends only on doc and
// version, so all nodes that compile a version get the same Set. Compile fails
// only if a time zone can't be loaded.
func Compile(doc *document.Document, version int64) (*Set, error) {
	s := &Set{
		Version: version, Document: doc,
		Headers:     document.Headers{IETF: true, XRateLimit: true},
		DefaultDeny: doc.Default == "deny",
		Units:       []string{document.Requests},
		byName:      make(map[string]*Rule, len(doc.Rules)),
		unitIDs:     map[string]int{document.Requests: 0},
		slotTTLs:    map[uint64]time.Duration{},
		attributes:  newAttributes(doc.Attributes),
		inline:      &inlineSets{},
		compiled:    new(byte),
	}
	if doc.Headers != nil {
		s.Headers = *doc.Headers
	}

	c := &compiler{set: s, doc: doc, tables: map[tableKey]*subjectTable{}, listed: map[*document.SubjectSpec]*subject{}}
	c.compileRules()
	c.recordSlotTTLs()
	// The names of rules come before those of inline limits, as in Names.
	s.nameInline(doc.Inline)
	c.compileEnvoy()
	s.seed(hashKey{})
	c.fillSubjectTables()

	if c.err != nil {
		return nil, fmt.Errorf("compile rules: %w", c.err)
	}

	// The summary comes after the subjects, because their own limits are part of
	// it.
	s.globals = c.summarizeGlobals()
	variants := make([]indexed, len(s.variants))
	for i, r := range s.variants {
		variants[i] = indexed{r.match, r.key}
	}

	s.ruleIndex = buildIndex(variants)
	s.deny, s.allow = c.compileList(doc.Deny), c.compileList(doc.Allow)
	s.markLists()
	s.namesDecide = !slices.ContainsFunc(s.ruleIndex.attributes, func(a attributeIndex) bool { return !a.presenceOnly })
	s.profiles = compileProfiles(doc.Profiles)

	return s, nil
}

func (c *compiler) compileRules() {
	units := c.doc.UnitsOfRules()
	for i, spec := range c.doc.Rules {
		r := c.compileVariants(spec, i)
		for _, variant := range r.variants() {
			variant.Units = units[spec.Name]
		}
		c.set.Rules = append(c.set.Rules, r)
		c.set.byName[r.Name] = r
	}
}

// recordSlotTTLs records the ttl of each limit of slots in the document.
func (c *compiler) recordSlotTTLs() {
	c.doc.EachSlotLimit(func(rule string, from document.Origin, l *document.LimitSpec) {
		c.set.slotTTLs[slotSource(rule, from, l)] = l.Window
	})
}

// Keyed returns a copy of s that hashes subjects with a key derived from
// secret. The copy has no entries; [Set.WithEntries] adds them. All nodes of a
// cluster must use the same secret for as long as they keep counters. A set
// from [Compile] has a fixed, public key, which is meant for tools.
func (s *Set) Keyed(secret []byte) *Set {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("subjects"))
	sum := h.Sum(nil)
	out := *s
	// Rules that s has interned hash their subjects with the old key.
	out.inline = &inlineSets{}
	key := hashKey{binary.LittleEndian.Uint64(sum), binary.LittleEndian.Uint64(sum[8:])}
	out.seed(key)
	out.overlay = nil // its blocks are filed under hashes by the old key
	out.markLists()
	(&compiler{set: &out, doc: s.Document}).compileEnvoy() // the nodes of s hash with the old key, too
	return &out
}

// seed computes the initial states for hashing. They belong to the set, because
// sets with different keys share rules.
func (s *Set) seed(key hashKey) {
	s.key = key
	s.seeds = make([]hashState, len(s.variants))
	for i, r := range s.variants {
		h := key.state().addWord(uint64(len(r.Name))).addText(r.Name)
		for j, name := range r.Key {
			if r.isChosen(j) { // user=x and ip=x are different subjects
				h = h.addWord(1<<62 | uint64(len(name))).addText(name)
			}
		}
		s.seeds[i] = h
	}
	s.inlineSeed = key.state().addWord(1 << 63) // no rule's name is that long
}
