package rules

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules/document"
)

const defaultMaxDelay = 5 * time.Second

// compileLimits compiles specs, one list of limits of a rule. from says where
// the list comes from: the rule itself, a tier, a listed subject or an entry.
// If the rule's key has alternatives, the limits' names end with the attributes
// that were chosen for r, as in login/ip.
func (c *compiler) compileLimits(
	rule *document.RuleSpec, r *Rule, from document.Origin, specs []*document.LimitSpec,
) []*Limit {
	chosen := ""
	for i, name := range r.Key {
		if len(rule.Key) > 0 && len(rule.Key[i]) > 1 {
			chosen += "/" + name
		}
	}

	all := make([]Limit, len(specs))
	out := make([]*Limit, len(specs))
	for i, spec := range specs {
		out[i] = &all[i]
		out[i].Name = cmp.Or(spec.Name, rule.Name) + chosen
		if spec.Unlimited {
			out[i].Unlimited = true
			out[i].Unit = spec.Unit
			out[i].UnitID = -1
			continue
		}

		c.compileLimit(out[i], rule, spec)
		if spec.IsSlots() {
			out[i].Source = slotSource(rule.Name, from, spec)
		}
		if spec.Name == "" {
			out[i].Name = c.doc.LimitName(rule.Name+chosen, specs, i)
		}
		c.set.hasZero = c.set.hasZero || spec.Limit == 0
	}
	slices.SortStableFunc(out, func(a, b *Limit) int { return cmp.Compare(unlimitedLast(a), unlimitedLast(b)) })

	if rule.Adaptive != nil && len(out) > 0 {
		out[0].loweredCache = &loweredCache{}
	}
	if rule.Scope == "global" && len(out) > 0 {
		c.globalLists++
		out[0].shareCache = &shareCache{number: c.globalLists}
	}
	return out
}

// compileLimit sets the fields of l that spec determines, together with the
// settings of its rule and the document's defaults.
func (c *compiler) compileLimit(l *Limit, rule *document.RuleSpec, spec *document.LimitSpec) {
	id := c.doc.Identity(spec, c.doc.ZoneOf(rule))
	l.Unit = id.Unit
	l.UnitID = c.unitID(id.Unit)
	l.Per = spec.Per
	l.Limit = algorithms.Limit{Kind: id.Kind, Amount: spec.Limit, Window: spec.Window}

	// Limits whose windows begin with the first hit can't delay: nobody knows when
	// the next window begins.
	onLimit, longest := c.onLimit(&rule.Settings)
	if onLimit == DelayCheck && l.Kind != algorithms.FirstWindow {
		l.MaxDelay = longest
	}
	if l.Kind.IsBucket() {
		l.Burst = cmp.Or(spec.Burst, spec.Limit)
	}

	if id.Word != "" {
		unit, _ := algorithms.ParseCalendarUnit(id.Word)
		var err error
		l.Calendar, err = algorithms.CalendarOf(unit, id.Zone)
		if err != nil && c.err == nil {
			c.err = fmt.Errorf("load time zone %q: %w", id.Zone, err)
		}
	}

	l.ID = hashIdentity(id)
}

// onLimit returns what a rule does with a check over a limit, and the longest delay it may impose.
func (c *compiler) onLimit(s *document.Settings) (OnLimit, time.Duration) {
	d := &c.doc.Defaults.Settings
	longest := cmp.Or(s.MaxDelay.Duration, d.MaxDelay.Duration, defaultMaxDelay)
	if cmp.Or(s.OnLimit, d.OnLimit) == "delay" {
		return DelayCheck, longest
	}
	return Refuse, longest
}

// blockLimits represents a rule's blocks as limits, one for each length; see
// [Rule.Blocks]. Their IDs leave the lengths out, so that a block in force
// survives a change of length.
func blockLimits(rule string, lengths []document.Span) (out []*Limit) {
	for i, length := range lengths {
		if length.Duration == 0 {
			continue // a mistake, which is reported
		}

		l := &Limit{Name: rule + "/block", Unit: "block", UnitID: -1,
			Per: length.Duration.String(), ID: xxh3.HashString("block")}
		l.Limit = algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 1, Burst: 1, Window: length.Duration}

		if i > 0 {
			l.ID = xxh3.HashString(fmt.Sprintf("block/%d", i))
		}
		if len(lengths) > 1 {
			l.Limit.Window = length.Duration + document.BlockMemory
			l.MaxDelay = document.BlockMemory
		}

		out = append(out, l)
	}

	return out
}

// hashIdentity returns the Limit.ID of the counters with an identity.
func hashIdentity(id document.CounterIdentity) uint64 {
	b := appendString(nil, id.Unit)
	b = append(b, byte(id.Kind))
	b = binary.LittleEndian.AppendUint64(b, uint64(id.Window))
	b = appendString(b, id.Word)
	return xxh3.Hash(appendString(b, id.Zone))
}

// slotSource returns the Limit.Source of l, a limit of slots of a rule that
// comes from from. Limits in different units have different sources.
func slotSource(rule string, from document.Origin, l *document.LimitSpec) uint64 {
	b := appendString(appendString(nil, rule), from.String())
	return xxh3.Hash(appendString(b, cmp.Or(l.Unit, document.Requests)))
}
