package rules

import (
	"fmt"
	"slices"
)

// matchEnvoyKey is MatchKey for the rule of a node; key holds the values of its
// descriptor's entries.
func (s *Set) matchEnvoyKey(r *Rule, key []string, m *Match) error {
	n := s.envoy.paths[r.Name]
	entries := slices.Clone(n.levels)
	for i := range entries {
		entries[i].Value = key[i]
	}
	// Another node may apply to these values, and it has other counters.
	if other := s.envoy.domains[n.Domain].Match(entries); other != n {
		return fmt.Errorf("%w: %q does not apply to %q", ErrKey, r.Name, key)
	}
	s.loadAttributes(nil, m)
	m.List = Unlisted
	m.Hits = append(m.Hits, Hit{Rule: r, Limits: r.ownLimits, Subject: n.Subject(entries), Cost: 1})
	return nil
}

// MatchEnvoy adds a hit for a descriptor to which n applies; n must not be
// Unlimited. With shadow, a Quota node counts but never refuses. first is true
// for the first subject of a check: it clears m. The error wraps ErrInline.
func (s *Set) MatchEnvoy(n *EnvoyNode, entries []EnvoyEntry, quotaShadow, first bool, m *Match) error {
	if first {
		s.loadAttributes(nil, m)
		m.List = Unlisted
	}

	r := n.Rule
	if quotaShadow && n.shadowRule != nil {
		r = n.shadowRule
	}

	subject := n.Subject(entries)
	for i := range m.Hits {
		if m.Hits[i].Subject == subject {
			return inlineError{fmt.Errorf("the entries are the same as those of subjects[%d]", i)}
		}
	}

	m.Hits = append(m.Hits, Hit{Rule: r, Limits: r.ownLimits, Subject: subject, Cost: 1})
	return nil
}

// Limit returns the limit of n, or nil if n is Unlimited.
func (n *EnvoyNode) Limit() *Limit {
	if n.Rule == nil {
		return nil
	}
	return n.Rule.ownLimits[0]
}
