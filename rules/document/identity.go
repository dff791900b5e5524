package document

import (
	"cmp"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// kind returns a limit's algorithm: its own; else fixed-window for a calendar
// window, or the default. A fixed window that begins with its first hit is a
// kind of its own.
func (d *Document) kind(l *LimitSpec) algorithms.Kind {
	kind := d.kindByClock(l)
	if kind == algorithms.FixedWindow && l.From == FromFirst {
		return algorithms.FirstWindow
	}
	return kind
}

// kindByClock is kind without regard to from.
func (d *Document) kindByClock(l *LimitSpec) algorithms.Kind {
	if l.Algorithm == "" && l.calendar() {
		return algorithms.FixedWindow
	}
	// Without a default, it is SlidingWindow, the zero Kind.
	kind, _ := algorithms.ParseKind(cmp.Or(l.Algorithm, d.Defaults.Algorithm))
	return kind
}

// ZoneOf returns the time zone of a rule's limits that don't name one.
func (d *Document) ZoneOf(r *RuleSpec) string {
	return cmp.Or(r.TZ, d.Defaults.TZ, "UTC")
}

// CounterIdentity distinguishes the counters of one rule and subject.
type CounterIdentity struct {
	Unit string
	Kind algorithms.Kind
	// Window is 0 for calendar windows, which have Word and Zone instead, and for
	// slots, whose ttl may change without another counter.
	Window time.Duration
	Word   string
	Zone   string
}

// Identity returns the identity of a limit of a rule in zone.
func (d *Document) Identity(l *LimitSpec, zone string) CounterIdentity {
	id := CounterIdentity{Unit: cmp.Or(l.Unit, Requests), Kind: d.kind(l)}
	if l.IsSlots() {
		return id
	}
	if !l.calendar() {
		id.Window = l.Window
		return id
	}
	id.Word = l.Per
	id.Zone = cmp.Or(l.TZ, zone)
	return id
}

// LimitName returns the name that the i-th of a rule's limits has in answers if
// it has none of its own. If others have the same unit and window, the name
// ends with what tells them apart: the algorithm or, for calendar windows, the
// zone.
func (d *Document) LimitName(rule string, limits []*LimitSpec, i int) string {
	l := limits[i]
	if len(limits) == 1 {
		return rule
	}

	name := rule + "/" + cmp.Or(l.Unit, Requests) + "/" + l.Per
	if l.IsSlots() {
		return rule + "/" + cmp.Or(l.Unit, Requests) + "/" + l.Algorithm
	}

	isAlike := func(o *LimitSpec) bool {
		return o != l && o.Name == "" && cmp.Or(o.Unit, Requests) == cmp.Or(l.Unit, Requests) && o.Per == l.Per
	}
	if slices.ContainsFunc(limits, func(o *LimitSpec) bool { return isAlike(o) && d.kind(o) != d.kind(l) }) {
		name += "/" + d.kind(l).String()
		if l.From == FromFirst {
			name += "/" + FromFirst
		}
	}

	if l.TZ != "" &&
		slices.ContainsFunc(limits, func(o *LimitSpec) bool { return isAlike(o) && d.kind(o) == d.kind(l) }) {
		name += "/" + l.TZ
	}

	return name
}
