package rules

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/gaissmai/bart"
)

// manyValues is how many values of a condition are compared one by one; more are looked up.
const manyValues = 8

// condition is a compiled Condition: the attribute is there and has one of the values.
type condition struct {
	attribute int
	address   bool // its values are addresses
	texts     []string
	addresses []netip.Addr
	nets      []netip.Prefix
	globs     []glob

	textSet    map[string]struct{} // of more than manyValues
	addressSet map[netip.Addr]struct{}
	netSet     *bart.Lite
}

func (c *compiler) conditions(specs []Condition) []condition {
	out := make([]condition, 0, len(specs))
	for _, spec := range specs {
		cond := condition{attribute: c.attribute(spec.Attribute), address: holdsAddresses(spec.Attribute)}
		for _, v := range spec.Values {
			cond.add(v)
		}
		cond.finish()
		out = append(out, cond)
	}
	return out
}

func (c *condition) add(value string) {
	if p, ok := parsePrefix(value); ok {
		c.nets = append(c.nets, p.Masked())
		c.texts = append(c.texts, value)
		return
	}
	if a, ok := parseAddress(value); ok && c.address {
		c.addresses = append(c.addresses, a)
		return
	}
	if strings.IndexByte(value, '*') >= 0 {
		c.globs = append(c.globs, newGlob(value))
		return
	}
	c.texts = append(c.texts, value)
}

func (c *condition) finish() {
	if len(c.texts) > manyValues {
		c.textSet = make(map[string]struct{}, len(c.texts))
		for _, s := range c.texts {
			c.textSet[s] = struct{}{}
		}
	}
	if len(c.addresses) > manyValues {
		c.addressSet = make(map[netip.Addr]struct{}, len(c.addresses))
		for _, a := range c.addresses {
			c.addressSet[a] = struct{}{}
		}
	}
	if len(c.nets) > manyValues {
		c.netSet = &bart.Lite{}
		for _, p := range c.nets {
			c.netSet.Insert(p)
		}
	}
}

// holds reports whether v, of m, is one of the values.
func (c *condition) holds(m *Match, v *value) bool {
	if c.textSet != nil {
		if _, ok := c.textSet[v.text]; ok {
			return true
		}
	} else if slices.Contains(c.texts, v.text) {
		return true
	}
	if (len(c.addresses) > 0 || len(c.nets) > 0) && v.isAddress() && c.holdsAddress(v.address) {
		return true
	}
	if len(c.globs) == 0 {
		return false
	}
	text := m.counted(v)
	for i := range c.globs {
		if c.globs[i].matches(text) {
			return true
		}
	}
	return false
}

func (c *condition) holdsAddress(a netip.Addr) bool {
	if c.addressSet != nil {
		if _, ok := c.addressSet[a]; ok {
			return true
		}
	} else if slices.Contains(c.addresses, a) {
		return true
	}
	if c.netSet != nil {
		return c.netSet.Contains(a)
	}
	for _, p := range c.nets {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// glob is a text with * in it, which stands for any characters.
type glob struct {
	prefix, suffix string
	middle         []string // between the first * and the last, in order; none of them empty
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
		i := strings.Index(s, part) // the earliest place leaves most room for the parts behind it
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return true
}
