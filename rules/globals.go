package rules

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/algorithms"
)

// globals summarises the limits of a set that regions divide.
type globals struct {
	maxSpan     time.Duration // see MaxGlobalSpan
	maxFill     time.Duration // the same, for buckets only
	fingerprint Hash          // of everything that shares depend on; zero if there are no global limits
}

// summarizeGlobals computes the summary from the compiled rules.
func (c *compiler) summarizeGlobals() globals {
	g := globals{}
	h := xxh3.New()
	var b []byte
	attributes := map[string]bool{} // of global rules' keys

	hasGlobals := false
	for _, r := range c.set.variants {
		if r.Scope != GlobalScope {
			continue
		}

		b = append(appendString(b[:0], r.Name), byte(len(r.Key)), byte(r.grouping.ipv6), byte(r.grouping.ipv4))
		for _, name := range r.Key {
			b = appendString(b, name)
			attributes[name] = true
		}

		for _, applies := range r.onTiers {
			b = append(b, map[bool]byte{false: 1, true: 2}[applies])
		}

		for _, p := range r.Regions {
			b = binary.LittleEndian.AppendUint64(appendString(b, p.Name), math.Float64bits(p.Part))
		}

		hasGlobals = true
		b = g.addLimits(binary.LittleEndian.AppendUint32(b, uint32(r.fallbackTier)), r.ownLimits)
		for _, list := range r.byTier {
			b = g.addLimits(b, list)
		}

		_, _ = h.Write(b) // it can't fail
	}

	if !hasGlobals {
		return g
	}

	for _, group := range c.doc.Subjects {
		if !attributes[group.Attribute] {
			continue
		}
		_, _ = h.Write(appendString(b[:0], group.Attribute))
		for _, spec := range group.Subjects {
			b = g.addSubject(appendString(appendString(b[:0], spec.Value), spec.Tier), c.listed[spec], c.set.variants)
			_, _ = h.Write(b)
		}
	}

	sum := h.Sum128()
	g.fingerprint = Hash{sum.Hi, sum.Lo}
	return g
}

// addSubject is addLimits for a listed subject: its tier and its own limits.
func (g *globals) addSubject(b []byte, s *subject, all []*Rule) []byte {
	if s == nil {
		return b
	}
	b = append(b, byte(s.tier), byte(s.tier>>8), byte(s.tier>>16))
	for _, o := range s.overrides {
		r := all[o.rule]
		if r.Scope == GlobalScope {
			b = g.addLimits(appendString(b, r.Name), o.limits)
		}
	}
	return b
}

// addLimits appends to b, which will be hashed, what shares depend on of a list
// of limits. It also raises the maximums.
func (g *globals) addLimits(b []byte, limits []*Limit) []byte {
	b = append(b, byte(len(limits)))
	for _, l := range limits {
		if l.Unlimited {
			b = append(b, l.Unit...)
			continue
		}

		g.maxSpan = max(g.maxSpan, maxSpan(l))
		if l.Kind.IsBucket() {
			g.maxFill = max(g.maxFill, maxSpan(l))
		}

		b = binary.LittleEndian.AppendUint64(b, l.ID)
		b = binary.LittleEndian.AppendUint64(b, uint64(l.Amount))
		b = binary.LittleEndian.AppendUint64(b, uint64(l.Burst))
	}

	return b
}

// maxSpan returns the bound of MaxGlobalSpan for one limit and all its shares.
func maxSpan(l *Limit) time.Duration {
	switch {
	case l.Calendar != nil:
		return l.Calendar.Unit().Longest()
	case !l.Kind.IsBucket() || l.Amount == 0:
		return l.Limit.Window
	}
	// Rounding may make a share's bucket fill more slowly than the whole one. But a
	// share's amount is at least 1 and at least half of the exact part, and its
	// burst exceeds the exact part by less than 1.
	times := 2*(float64(l.Burst)/float64(l.Amount)) + 3
	return time.Duration(min(times*float64(l.Limit.Window), float64(algorithms.Forever)))
}
