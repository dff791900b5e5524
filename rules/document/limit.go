package document

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

// Requests is the default unit: a check that gives no cost takes 1 request.
const Requests = "requests"

// The values of LimitSpec.From and InlineLimit.From.
const FromFirst, fromClock = "first", "clock"

const maxLimits = 16 // of a rule, tier or override

// LimitSpec is a limit as written.
type LimitSpec struct {
	Name      string
	Limit     int64
	Per       string // or ttl, in a limit of slots
	Algorithm string
	Burst     int64
	Unit      string
	TZ        string
	From      string // "first": a fixed window begins with its first hit; empty or "clock": with the clock
	Unlimited bool   // there is no limit in Unit, which is empty for all units; the other fields are empty

	Window time.Duration // of Per; for a calendar word, its nominal length
	pos    yaml.Pos
}

// calendar reports whether l has a window of the calendar, such as a month.
func (l *LimitSpec) calendar() bool {
	_, ok := algorithms.ParseCalendarUnit(l.Per)
	return ok
}

// IsSlots reports whether l limits slots. It does not look at the default
// algorithm, which can't be concurrency.
func (l *LimitSpec) IsSlots() bool { return l.Algorithm == algorithms.Concurrency.String() }

// needsLevel2 reports whether l has a key or value that builds of level 1 can't read.
func (l *LimitSpec) needsLevel2() bool {
	return l.Unlimited || l.Limit == 0 || l.From != "" || l.IsSlots()
}

var (
	limitFields = fieldsOf(
		of("name", nameCodec, func(l *LimitSpec) *string { return &l.Name }),
		field[LimitSpec]{"limit", func(d *decoder, n *yaml.Node, l *LimitSpec) {
			l.Limit = d.integer(n, 0, int64(algorithms.MaxAmount))
		}, (*LimitSpec).amountNode},
		field[LimitSpec]{"per", (*decoder).per, func(l *LimitSpec) *yaml.Node { return unlessSlots(l, text(l.Per)) }},
		field[LimitSpec]{"ttl", (*decoder).slotTTL, func(l *LimitSpec) *yaml.Node { return ifSlots(l, text(l.Per)) }},
		of("algorithm", codec[string]{(*decoder).limitAlgorithm, text},
			func(l *LimitSpec) *string { return &l.Algorithm }),
		of("burst", integerCodec(1, int64(algorithms.MaxAmount)), func(l *LimitSpec) *int64 { return &l.Burst }),
		of("unit", nameCodec, func(l *LimitSpec) *string { return &l.Unit }),
		of("tz", zoneCodec, func(l *LimitSpec) *string { return &l.TZ }),
		of("from", wordCodec(FromFirst, fromClock), func(l *LimitSpec) *string { return &l.From }),
		of("unlimited", flagCodec, func(l *LimitSpec) *bool { return &l.Unlimited }),
	)

	limitsCodec = codec[[]*LimitSpec]{(*decoder).limits, limitsNode}
)

// limits reads the limits of a rule, tier or override.
func (dec *decoder) limits(n *yaml.Node) []*LimitSpec {
	dec.alsoWords(n, unlimitedWord)
	if n.Kind == yaml.String && n.Text == unlimitedWord {
		return []*LimitSpec{{Unlimited: true, pos: n.Pos}}
	}

	var out []*LimitSpec
	if n.Kind == yaml.List && len(n.Items) > maxLimits {
		dec.fail(n, "%d limits; at most %d are allowed", len(n.Items), maxLimits)
		return nil
	}

	if dec.eachItem(n, func(n *yaml.Node) { out = append(out, dec.limit(n)) }) && len(n.Items) == 0 {
		dec.fail(n, "expected at least one limit")
	}

	for i, l := range out {
		if l.Name == "" {
			continue
		}
		if slices.ContainsFunc(out[:i], func(o *LimitSpec) bool { return o.Name == l.Name }) {
			mark := dec.pushIndex(i)
			dec.add(l.pos, string(dec.path)+".name", "two limits are called %q", l.Name)
			dec.path = dec.path[:mark]
		}
	}

	return out
}

func (dec *decoder) limit(n *yaml.Node) *LimitSpec {
	l := &LimitSpec{pos: n.Pos}
	ok := limitFields.read(dec, n, l, nil)
	if !ok {
		return l
	}

	dec.needEither(n, []string{"unlimited"}, []string{"limit", "per"}, []string{"limit", "ttl"})
	if l.Unlimited {
		dec.unlimited(n, l)
		return l
	}

	switch {
	case dec.shapes != nil:
	case l.IsSlots():
		dec.checkSlots(n, l)
		return l
	case n.Get("limit") == nil:
		dec.fail(n, "limit is missing: how much is allowed per window")
	case n.Get("ttl") != nil:
		dec.failAt(n, "ttl", "ttl is for algorithm: concurrency; the length of a window is per")
	case n.Get("per") == nil:
		dec.fail(n, "per is missing: the length of the window")
	}

	if l.Algorithm != "" && l.calendar() && l.Algorithm != algorithms.FixedWindow.String() {
		dec.failAt(n, "algorithm", "calendar windows are for fixed-window only, per is %s", l.Per)
	}

	if burst := n.Get("burst"); burst != nil && l.Limit == 0 && n.Get("limit") != nil {
		dec.failAt(n, "burst", "a limit of 0 allows nothing at once")
	} else if burst != nil && l.Algorithm != "" {
		kind, _ := algorithms.ParseKind(l.Algorithm)
		if !kind.IsBucket() {
			dec.failAt(n, "burst", "burst is for token-bucket and leaky-bucket, not for %s", l.Algorithm)
		}
	}

	return l
}

// unlimitedWord stands in place of a list of limits. It means that there is no
// limit.
const unlimitedWord = "unlimited"

// unlimited makes l a limit without amounts, and rejects the keys that have no
// meaning beside `unlimited: true`.
func (dec *decoder) unlimited(n *yaml.Node, l *LimitSpec) {
	for _, key := range []string{"limit", "per", "ttl", "algorithm", "burst", "tz", "from"} {
		if n.Get(key) != nil {
			dec.failAt(n, key, "unlimited: true excludes %s", key)
		}
	}
	*l = LimitSpec{Name: l.Name, Unit: l.Unit, Unlimited: true, pos: l.pos}
}

// limitAlgorithm reads the algorithm of a limit. Unlike a default, it may be
// concurrency.
func (dec *decoder) limitAlgorithm(n *yaml.Node) string {
	return dec.word(n,
		append(windowAlgorithms[:len(windowAlgorithms):len(windowAlgorithms)], algorithms.Concurrency.String())...)
}

// per reads a window: a word of the calendar or a duration.
func (dec *decoder) per(n *yaml.Node, l *LimitSpec) {
	dec.alsoWords(n, "minute", "hour", "day", "week", "month", "year")
	if unit, ok := algorithms.ParseCalendarUnit(n.Text); ok && n.Kind == yaml.String {
		l.Per, l.Window = n.Text, unit.Nominal()
		return
	}
	span := dec.span(n, algorithms.MinWindow, algorithms.MaxWindow)
	l.Per, l.Window = span.Text, span.Duration
}

// amountNode writes the amount of a limit, which may be 0.
func (l *LimitSpec) amountNode() *yaml.Node {
	if l.Unlimited {
		return nil
	}
	return integer(l.Limit)
}

func limitsNode(limits []*LimitSpec) *yaml.Node {
	if len(limits) == 0 {
		return nil
	}
	if len(limits) == 1 && limits[0].Unlimited && limits[0].Unit == "" && limits[0].Name == "" {
		return text(unlimitedWord)
	}
	return listNode(limits, func(l *LimitSpec) *yaml.Node { return limitFields.node(l).OnOneLine() })
}

// slotTTL reads how long a slot lasts unless it is renewed.
func (dec *decoder) slotTTL(n *yaml.Node, l *LimitSpec) {
	span := dec.span(n, algorithms.MinWindow, algorithms.MaxSlotTTL)
	l.Per, l.Window = span.Text, span.Duration
}

// checkSlots checks l, a limit of slots, which was read from n.
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

func ifSlots(l *LimitSpec, n *yaml.Node) *yaml.Node {
	if l.IsSlots() {
		return n
	}
	return nil
}

func unlessSlots(l *LimitSpec, n *yaml.Node) *yaml.Node {
	if l.IsSlots() {
		return nil
	}
	return n
}
