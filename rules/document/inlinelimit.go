package document

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

// InlineLimit is a limit as a call gives it. Its fields are those of a limit in the document.
type InlineLimit struct {
	Limit     int64
	Per       string
	PerMS     int64 // in place of Per; 0 if not given
	TTL       string
	TTLMS     int64 // in place of TTL; 0 if not given
	Algorithm string
	Burst     int64
	Unit      string
	Name      string
	TZ        string
	From      string // "first": a fixed window begins with its first hit; empty or "clock": with the clock
}

// ReadInline reads the limits that a call brings for one subject. They must be
// such as a document could have, and within what d allows. soleKind is the kind
// of the only counter that a key has in the namespace, or 0. The error is the
// first mistake, of type [Error].
func (d *Document) ReadInline(namespace string, limits []InlineLimit, soleKind algorithms.Kind) ([]*LimitSpec, error) {
	dec := &decoder{path: []byte("limits")}
	specs := dec.limits(inlineNode(limits))
	newChecker(&Document{Defaults: d.Defaults}, &dec.collector).checkLimits("limits", specs, d.ZoneOf(&RuleSpec{}))

	for i := range limits {
		dec.checkInline(i, &limits[i], specs, d)
	}

	if soleKind != 0 && len(dec.errs) == 0 {
		dec.checkSoleCounter(namespace, limits, specs, d, soleKind)
	}

	if len(dec.errs) > 0 {
		return nil, dec.errs[0]
	}
	return specs, nil
}

// inlineNode returns limits as a document would have them.
func inlineNode(limits []InlineLimit) *yaml.Node {
	list := yaml.NewList()
	for i := range limits {
		l := &limits[i]
		n := yaml.NewMap()
		n.Set("name", text(strings.Clone(l.Name)))
		n.Set("limit", integer(l.Limit))
		n.Set("per", inlineDuration(l.Per, l.PerMS))
		n.Set("ttl", inlineDuration(l.TTL, l.TTLMS))
		n.Set("algorithm", text(strings.Clone(l.Algorithm)))

		if l.Burst != 0 {
			n.Set("burst", integer(l.Burst))
		}

		n.Set("unit", text(strings.Clone(l.Unit)))
		n.Set("tz", text(strings.Clone(l.TZ)))
		list.Items = append(list.Items, n)
	}

	return list
}

// inlineDuration returns a duration that a call gives as text or in
// milliseconds; nil if it gives none.
func inlineDuration(given string, ms int64) *yaml.Node {
	if ms > 0 {
		given = FormatDuration(time.Duration(min(ms,
			int64(algorithms.MaxWindow/time.Millisecond)+1)) * time.Millisecond)
	}
	return text(strings.Clone(given))
}

// checkInline reports mistakes in the i-th limit of a call that a document
// could not have, and whatever doc does not allow.
func (dec *decoder) checkInline(i int, q *InlineLimit, specs []*LimitSpec, doc *Document) {
	fail := func(field, format string, args ...any) {
		dec.add(yaml.Pos{}, fmt.Sprintf("limits[%d].%s", i, field), format, args...)
	}

	switch {
	case q.Per != "" && q.PerMS != 0:
		fail("per_ms", "per and per_ms exclude each other")
	case q.TTL != "" && q.TTLMS != 0:
		fail("ttl_ms", "ttl and ttl_ms exclude each other")
	case q.From != "" && q.From != FromFirst && q.From != fromClock:
		fail("from", "%q is not one of %s, %s", Shorten(q.From), FromFirst, fromClock)
	}

	// The checks below read the limit as it was parsed, which says nothing
	// after a mistake.
	if len(dec.errs) > 0 {
		return
	}
	if q.From == FromFirst && (doc.kind(specs[i]) != algorithms.FixedWindow || specs[i].calendar()) {
		fail("from", "%s is for fixed-window with a duration", FromFirst)
		return
	}

	// These are the bounds that the document sets for callers.
	if doc.Inline == nil {
		return
	}
	most, longest := doc.Inline.MaxLimit, doc.Inline.MaxPer
	switch {
	case most > 0 && q.Limit > most:
		fail("limit", "the rules allow no more than %d", most)
	case most > 0 && q.Burst > most:
		fail("burst", "the rules allow no more than %d", most)
	case longest.Duration > 0 && specs[i].Window > longest.Duration:
		field := "per"
		if specs[i].IsSlots() {
			field = "ttl"
		}
		fail(field, "the rules allow no more than %s", longest.Text)
	}
}

// checkSoleCounter reports limits that are legal elsewhere, but not in a
// namespace where a key has only one counter, of the kind soleKind.
func (dec *decoder) checkSoleCounter(
	namespace string, limits []InlineLimit, specs []*LimitSpec, doc *Document, soleKind algorithms.Kind,
) {
	fail := func(field, format string, args ...any) {
		dec.add(yaml.Pos{}, "limits"+field, "in the namespace %q, "+format, append([]any{namespace}, args...)...)
	}

	l := specs[0]
	switch {
	case len(specs) > 1:
		fail("", "a key has one limit, not %d", len(specs))
	case soleKind == algorithms.FirstWindow && limits[0].From != FromFirst:
		fail("[0].from", "a limit must be a fixed-window with from: first")
	case soleKind == algorithms.CellBucket && doc.kind(l) != algorithms.TokenBucket:
		fail("[0].algorithm", "a limit must be a token-bucket")
	case soleKind == algorithms.CellBucket:
		limit := algorithms.Limit{Kind: soleKind, Amount: l.Limit, Burst: cmp.Or(l.Burst, l.Limit), Window: l.Window}
		if err := limit.CheckCell(); err != nil {
			fail("[0].limit", "%v", err)
		}
	}
}
