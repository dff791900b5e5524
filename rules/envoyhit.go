package rules

import "fmt"

// MatchEnvoy adds a hit for a descriptor that n applies to; n is not Unlimited. With shadow a Quota node counts and never
// refuses. first says that it is the first subject of the check. The error wraps ErrInline.
func (s *Set) MatchEnvoy(n *EnvoyNode, entries []EnvoyEntry, shadow, first bool, m *Match) error {
	if first {
		s.load(nil, m)
		m.List = Unlisted
	}
	r := n.Rule
	if shadow && n.lenient != nil {
		r = n.lenient
	}
	subject := n.Subject(entries)
	for i := range m.Hits {
		if m.Hits[i].Subject == subject {
			return inlineError{fmt.Errorf("its entries are those of subjects[%d]", i)}
		}
	}
	m.Hits = append(m.Hits, Hit{Rule: r, Limits: r.own, Subject: subject, Cost: 1})
	return nil
}

// Limit returns the limit of n, nil if n is Unlimited.
func (n *EnvoyNode) Limit() *Limit {
	if n.Rule == nil {
		return nil
	}
	return n.Rule.own[0]
}
