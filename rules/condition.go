package rules

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/gaissmai/bart"

	"github.com/rlnode/rlnode/internal/ipaddr"
)

// condition is a compiled document.Condition: it holds if the attribute is
// present and has one of the values.
type condition struct {
	attribute int
	address   bool         // its values are addresses
	texts     []string     // sorted
	addresses []netip.Addr // sorted
	nets      []netip.Prefix
	netSet    *bart.Lite // of the nets; nil if there are none
	globs     []glob
}

func (cond *condition) add(value string) {
	// A CIDR matches the addresses in it, and its own text.
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
