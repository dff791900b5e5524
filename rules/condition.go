package rules

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/gaissmai/bart"

	"github.com/rlnode/rlnode/internal/ipaddr"
)

// condition is a compiled Condition: it holds if the attribute is present and
// has one of the values.
type condition struct {
	attribute int
	address   bool         // its values are addresses
	texts     []string     // sorted
	addresses []netip.Addr // sorted
	nets      []netip.Prefix
	netSet    *bart.Lite // of the nets; nil if there are none
	globs     []glob
}

func (c *compiler) compileConditions(specs []Condition) []condition {
	out := make([]condition, 0, len(specs))
	for _, spec := range specs {
		cond := condition{attribute: c.attributeNumber(spec.Attribute), address: holdsAddresses(spec.Attribute)}
		declared := c.doc.declared[spec.Attribute]
		for _, v := range spec.Values {
			if strings.IndexByte(v, '*') >= 0 {
				v = declared.foldPattern(v)
			} else {
				v = declared.fold(v)
			}
			cond.add(v)
		}

		cond.finish()
		out = append(out, cond)
	}

	return out
}

func (cond *condition) add(value string) {
	if p, ok := ipaddr.ParsePrefix(value); ok {
		cond.nets = append(cond.nets, p.Masked())
		cond.texts = append(cond.texts, value)
		return
	}

	if a, ok := ipaddr.Parse(value); ok && cond.address {
		cond.addresses = append(cond.addresses, a)
		return
	}
	if strings.IndexByte(value, '*') >= 0 {
		cond.globs = append(cond.globs, newGlob(value))
		return
	}

	cond.texts = append(cond.texts, value)
}

func (cond *condition) finish() {
	slices.Sort(cond.texts)
	slices.SortFunc(cond.addresses, netip.Addr.Compare)
	for _, p := range cond.nets {
		if cond.netSet == nil {
			cond.netSet = &bart.Lite{}
		}
		cond.netSet.Insert(p)
	}
}

// isMetBy reports whether v, a value in m, is one of the condition's values.
func (cond *condition) isMetBy(m *Match, v *value) bool {
	if _, found := slices.BinarySearch(cond.texts, v.text); found {
		return true
	}

	if (len(cond.addresses) > 0 || cond.netSet != nil) && v.isAddress() {
		_, found := slices.BinarySearchFunc(cond.addresses, v.address, netip.Addr.Compare)
		if found || cond.netSet != nil &&
			(cond.netSet.Contains(v.address) || v.written.IsValid() && cond.netSet.Contains(v.written)) {
			return true
		}
	}

	if len(cond.globs) == 0 {
		return false
	}

	text := m.canonicalText(v)
	for i := range cond.globs {
		if cond.globs[i].matches(text) {
			return true
		}
	}

	return false
}

// glob is a pattern in which * stands for any text, including none.
type glob struct {
	prefix, suffix string
	middle         []string // between the first * and the last, in order; none is empty
}

func newGlob(pattern string) glob {
	parts := strings.Split(pattern, "*")
	g := glob{prefix: parts[0], suffix: parts[len(parts)-1]}
	for _, s := range parts[1 : len(parts)-1] {
		if s != "" {
			g.middle = append(g.middle, s)
		}
	}
	return g
}

func (g *glob) matches(s string) bool {
	if len(s) < len(g.prefix)+len(g.suffix) || !strings.HasPrefix(s, g.prefix) || !strings.HasSuffix(s, g.suffix) {
		return false
	}
	s = s[len(g.prefix) : len(s)-len(g.suffix)]
	for _, part := range g.middle {
		i := strings.Index(s, part) // the earliest match leaves the most text for the parts after it
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return true
}
