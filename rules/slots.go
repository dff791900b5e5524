package rules

import (
	"cmp"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

// A limit of `algorithm: concurrency` says how many slots may be held at once.
// It has a ttl in place of a window, in LimitSpec.Per.

// isSlots reports whether l limits slots. The algorithm has no default: it
// decides which keys a limit has.
func (l *LimitSpec) isSlots() bool { return l.Algorithm == algorithms.Concurrency.String() }

func ifSlots(l *LimitSpec, n *yaml.Node) *yaml.Node {
	if l.isSlots() {
		return n
	}
	return nil
}

func unlessSlots(l *LimitSpec, n *yaml.Node) *yaml.Node {
	if l.isSlots() {
		return nil
	}
	return n
}

// slotTTL reads how long a slot lasts unless it is renewed.
func (dec *decoder) slotTTL(n *yaml.Node, l *LimitSpec) {
	span := dec.span(n, algorithms.MinWindow, algorithms.MaxSlotTTL)
	l.Per, l.window = span.Text, span.Duration
}

// checkSlots checks n, which was read as l, a limit of slots.
func (dec *decoder) checkSlots(n *yaml.Node, l *LimitSpec) {
	for _, key := range []string{"burst", "tz", "from"} {
		if n.Get(key) != nil {
			dec.failAt(n, key, "%s is not for algorithm: concurrency", key)
		}
	}

	switch {
	case n.Get("limit") == nil:
		dec.fail(n, "limit is missing: how many slots may be held at once")
	case l.Limit < 1 || l.Limit > algorithms.MaxSlots:
		dec.failAt(n, "limit", "%d slots; it must be from 1 to %d", l.Limit, algorithms.MaxSlots)
	case n.Get("per") != nil:
		dec.failAt(n, "per",
			"algorithm: concurrency has no window; give ttl: how long a slot lasts unless it is renewed")
	case n.Get("ttl") == nil:
		dec.fail(n, "ttl is missing: how long a slot lasts unless it is renewed")
	}
}

// failAt reports a mistake in the value of a key of n.
func (dec *decoder) failAt(n *yaml.Node, key, format string, args ...any) {
	mark := dec.push(key)
	dec.fail(n.Get(key), format, args...)
	dec.path = dec.path[:mark]
}

// checkSlots checks the limits of slots among limits, which apply to the rule r.
func (ch *checker) checkSlots(path string, r *RuleSpec, limits []*LimitSpec) {
	settings := func(setting func(*Settings) string) string {
		if value := setting(&r.Settings); value != "" {
			return value
		}
		return setting(&ch.doc.Defaults.Settings)
	}
	consistency := settings(func(s *Settings) string { return s.Consistency })
	onLimit := settings(func(s *Settings) string { return s.OnLimit })

	for i, l := range limits {
		if !l.isSlots() {
			continue
		}

		at := fmt.Sprintf("%s[%d].algorithm", path, i)
		switch {
		case r.Scope == "global":
			ch.add(l.pos, at,
				"the rule %q has scope: global, and regions can't divide slots: leave scope out, and each region has the limit for itself",
				r.Name)
		case consistency == "local":
			ch.add(l.pos, at,
				"the rule %q has consistency: local, and slots are held in the whole cluster: write consistency: exact",
				r.Name)
		case onLimit == "delay":
			ch.add(l.pos, at,
				"the rule %q has on_limit: delay, and nobody knows when a slot will be free: write on_limit: refuse, and have callers ask again",
				r.Name)
		}
	}
}

// eachSlotLimit calls yield for each limit of slots in the document, with the
// name of its rule and its origin.
func (d *Document) eachSlotLimit(yield func(rule string, from origin, l *LimitSpec)) {
	d.eachLimits("", func(rule string, from origin, limits []*LimitSpec) {
		for _, l := range limits {
			if l.isSlots() {
				yield(rule, from, l)
			}
		}
	})
}

// SlotTTLs returns the longest ttl of the limits of slots that the document
// gives a rule, for any subject, by the rule's name. It leaves out rules
// without such limits.
func (s *Set) SlotTTLs() map[string]time.Duration {
	longest := map[string]time.Duration{}
	s.Document.eachSlotLimit(func(rule string, _ origin, l *LimitSpec) { longest[rule] = max(longest[rule], l.window) })
	return longest
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

// noteSlotTTLs notes the ttls of all limits of slots of the document.
func (c *compiler) noteSlotTTLs() {
	c.doc.eachSlotLimit(func(rule string, from origin, l *LimitSpec) {
		c.set.slotTTLs[slotSource(rule, from, l)] = l.window
	})
}

// origin is where a list of limits comes from: a tier, a listed subject or an
// entry. The zero origin is the rule itself.
type origin struct{ kind, attribute, name string }

// String identifies o among all that may have limits of a rule.
func (o origin) String() string {
	switch {
	case o.kind == "":
		return ""
	case o.attribute == "":
		return o.kind + " " + o.name
	}
	return o.kind + " " + o.attribute + "=" + o.name
}

// slotSource returns the Source of a limit of a rule. Each unit has its own.
func slotSource(rule string, from origin, l *LimitSpec) uint64 {
	return xxh3.Hash(appendString(appendString(appendString(nil, rule), from.String()), cmp.Or(l.Unit, Requests)))
}

// sourceKey is a Limit.Source.
type sourceKey uint64

// Hash implements entries.Key.
func (k sourceKey) Hash() uint64 { return uint64(k) }

// noteSlotTTLs notes the ttls of the limits of slots that an entry gives its subject.
func (oc *overlayCompiler) noteSlotTTLs(s *subject) {
	for _, l := range s.slotLimits() {
		oc.overlay.slotTTLs = oc.overlay.slotTTLs.With(sourceKey(l.Source), l.Limit.Window)
	}
}

// forgetSlotTTLs undoes noteSlotTTLs. The limits for several variants of a rule
// have the same Source, and so the same ttl.
func (oc *overlayCompiler) forgetSlotTTLs(s *subject) {
	for _, l := range s.slotLimits() {
		oc.overlay.slotTTLs = oc.overlay.slotTTLs.Without(sourceKey(l.Source))
	}
}

// slotLimits lists the limits of slots of a subject's overrides.
func (sub *subject) slotLimits() (list []*Limit) {
	for _, o := range sub.overrides {
		for _, l := range o.limits {
			if l.Kind == algorithms.Concurrency && !l.Unlimited {
				list = append(list, l)
			}
		}
	}
	return list
}

// HasSlots reports whether one of limits is of slots.
func HasSlots(limits []*Limit) bool {
	for _, l := range limits {
		if l.Kind == algorithms.Concurrency && !l.Unlimited {
			return true
		}
	}
	return false
}
