package document

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

var (
	ruleSettings = settingFields(func(r *RuleSpec) *Settings { return &r.Settings })
	ruleFields   = fieldsOf(
		of("name", codec[string]{(*decoder).name, yaml.Text}, func(r *RuleSpec) *string { return &r.Name }),
		of("match", matchCodec, func(r *RuleSpec) *[]Condition { return &r.Match }),
		of("not", matchCodec, func(r *RuleSpec) *[]Condition { return &r.Not }),
		of("absent", attributesCodec, func(r *RuleSpec) *[]string { return &r.Absent }),
		of("tiers", codec[[]string]{(*decoder).tierNames, unlessEmpty(textsNode)},
			func(r *RuleSpec) *[]string { return &r.OnTiers }),
		of("key", codec[[]KeyPart]{(*decoder).key, keyNode}, func(r *RuleSpec) *[]KeyPart { return &r.Key }),
		of("limits", limitsCodec, func(r *RuleSpec) *[]*LimitSpec { return &r.Limits }),
		of("tiered", flagCodec, func(r *RuleSpec) *bool { return &r.Tiered }),
		of("cost", codec[*CostTable]{(*decoder).cost, unlessZero(costFields.node)},
			func(r *RuleSpec) **CostTable { return &r.Cost }),
		of("scope", wordCodec("region", "global"), func(r *RuleSpec) *string { return &r.Scope }),
		of("regions", codec[[]Region]{(*decoder).regions, unlessEmpty(func(list []Region) *yaml.Node {
			return mapNode(list, func(g Region) string { return g.Name },
				func(g Region) *yaml.Node { return fraction(g.Part) }).OnOneLine()
		})}, func(r *RuleSpec) *[]Region { return &r.Regions }),
		of("shadow", flagCodec, func(r *RuleSpec) *bool { return &r.Shadow }),
		of("usage", wordCodec(UsageMonthly), func(r *RuleSpec) *string { return &r.Usage }),
		of("reservations",
			codec[*ReservationSpec]{(*decoder).reservations, unlessZero(func(r *ReservationSpec) *yaml.Node {
				return reservationFields.node(r).OnOneLine()
			})}, func(r *RuleSpec) **ReservationSpec { return &r.Reservations }),
		of("block", codec[[]Span]{(*decoder).block, blockNode}, func(r *RuleSpec) *[]Span { return &r.Block }),
		of("refusal", codec[*RefusalSpec]{(*decoder).refusal, unlessZero(refusalFields.node)},
			func(r *RuleSpec) **RefusalSpec { return &r.Refusal }),
		ruleSettings["on_limit"], ruleSettings["max_delay"],
		of("adaptive", codec[*Adaptive]{(*decoder).adaptive, unlessZero(adaptiveFields.node)},
			func(r *RuleSpec) **Adaptive { return &r.Adaptive }),
		ruleSettings["consistency"], ruleSettings["on_partition"], ruleSettings["lease"],
		ruleSettings["ipv4_prefix"], ruleSettings["ipv6_prefix"], ruleSettings["tz"],
	)

	costCodec  = codec[int64]{integerCodec(0, int64(algorithms.MaxAmount)).read, integer[int64]}
	costFields = fieldsOf(
		of("by", codec[string]{(*decoder).attribute, text}, func(c *CostTable) *string { return &c.By }),
		of("unit", nameCodec, func(c *CostTable) *string { return &c.Unit }),
		of("values", codec[[]ValueCost]{mapOf(func(d *decoder, key, n *yaml.Node) ValueCost {
			value, _ := d.value(key)
			return ValueCost{value, costCodec.read(d, n)}
		}), unlessEmpty(func(list []ValueCost) *yaml.Node {
			return mapNode(list, func(v ValueCost) string { return v.Value },
				func(v ValueCost) *yaml.Node { return integer(v.Cost) })
		})}, func(c *CostTable) *[]ValueCost { return &c.Values }),
		of("default", costCodec, func(c *CostTable) *int64 { return &c.Default }),
	)

	reservationFields = fieldsOf(
		of("on_expiry", wordCodec("charge"), func(r *ReservationSpec) *string { return &r.OnExpiry }),
	)

	adaptiveFields = fieldsOf(
		of("source", nameCodec, func(a *Adaptive) *string { return &a.Source }),
		of("steps", codec[[]AdaptiveStep]{(*decoder).steps, func(list []AdaptiveStep) *yaml.Node {
			return listNode(list, func(s AdaptiveStep) *yaml.Node { return stepFields.node(&s).OnOneLine() })
		}}, func(a *Adaptive) *[]AdaptiveStep { return &a.Steps }),
	)

	stepFields = fieldsOf(
		of("above", codec[float64]{fractionCodec(0, maxLoad).read, fraction},
			func(s *AdaptiveStep) *float64 { return &s.Above }),
		of("factor", positiveCodec(1, "a factor"), func(s *AdaptiveStep) *float64 { return &s.Factor }),
	)
)

const maxLoad = 1000 // bound on a step's Above

// rule reads a rule; name is the rule's name if the body has none.
func (dec *decoder) rule(n *yaml.Node, name string) *RuleSpec {
	r := &RuleSpec{Name: name, pos: n.Pos, positions: positions{}}
	ok := ruleFields.read(dec, n, r, r.positions)
	r.malformed = !ok
	if !ok {
		return r
	}
	if name == "" {
		dec.need(n, "name", "a rule needs a name")
	}
	dec.need(n, "key", "a rule needs a key; [] is one counter for all")
	return r
}

func (spec *RuleSpec) node() *yaml.Node { return ruleFields.node(spec) }

// tierNames reads the tiers that a rule is for.
func (dec *decoder) tierNames(n *yaml.Node) (list []string) {
	if dec.eachItem(n, func(n *yaml.Node) {
		name := dec.name(n)
		if name != "" && slices.Contains(list, name) {
			dec.fail(n, "duplicate tier %q", name)
		}
		list = append(list, name)
	}) && len(n.Items) == 0 {
		dec.fail(n, "expected at least one tier")
	}
	return list
}

func (dec *decoder) reservations(n *yaml.Node) *ReservationSpec {
	r := &ReservationSpec{}
	if reservationFields.read(dec, n, r, nil) && r.OnExpiry == "" {
		dec.fail(n, "on_expiry is missing: charge keeps callers from getting back what they don't settle")
	}
	return r
}

// maxBlocks bounds the lengths of a rule's blocks.
const maxBlocks = 8

// BlockMemory is how long a block is remembered after its end. A subject that
// is refused again within that time is blocked for the next length.
const BlockMemory = 24 * time.Hour

// block reads the length of a rule's blocks, or several, each longer than the one before it.
func (dec *decoder) block(n *yaml.Node) (list []Span) {
	if n.Kind != yaml.List {
		return []Span{dec.span(n, algorithms.MinWindow, algorithms.MaxWindow)}
	}

	dec.eachItem(n, func(n *yaml.Node) {
		length := dec.span(n, algorithms.MinWindow, algorithms.MaxWindow-BlockMemory)
		last := len(list) - 1
		if last >= 0 && length.Duration > 0 && length.Duration <= list[last].Duration {
			dec.fail(n, "each block must be longer than the one before it")
		}
		list = append(list, length)
	})
	if len(n.Items) == 0 || len(list) > maxBlocks {
		dec.fail(n, "expected 1 to %d durations", maxBlocks)
	}

	return list
}

func blockNode(list []Span) *yaml.Node {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return text(list[0].Text)
	}
	return listNode(list, func(s Span) *yaml.Node { return text(s.Text) }).OnOneLine()
}

func (dec *decoder) cost(n *yaml.Node) *CostTable {
	c := &CostTable{Default: 1}
	if costFields.read(dec, n, c, nil) {
		dec.need(n, "by", "by is missing: the attribute that the cost depends on")
	}
	return c
}

const maxRegions = 32 // of a rule

func (dec *decoder) regions(n *yaml.Node) []Region {
	var out []Region
	sum := 0.0
	mistakes := len(dec.errs)
	dec.eachEntry(n, func(key, v *yaml.Node) {
		part := dec.fraction(v, 0, 1)
		sum += part
		out = append(out, Region{dec.checkName(key, key.Text), part})
	})

	if len(out) > maxRegions {
		dec.fail(n, "%d regions; at most %d are allowed", len(out), maxRegions)
		return nil
	}

	// The tolerance is slightly wider than a thousandth, to allow for errors in
	// adding decimal fractions.
	if len(dec.errs) == mistakes && (sum < 0.999-1e-9 || sum > 1.001+1e-9) {
		dec.fail(n, "the parts add up to %.4g, not to 1", sum)
	}

	return out
}

const maxAdaptiveSteps = 100 // of a rule

func (dec *decoder) adaptive(n *yaml.Node) *Adaptive {
	a := &Adaptive{}
	ok := adaptiveFields.read(dec, n, a, nil)
	for _, key := range adaptiveFields.keys {
		if ok {
			dec.need(n, key, key+" is missing")
		}
	}
	return a
}

func (dec *decoder) steps(n *yaml.Node) (list []AdaptiveStep) {
	if n.Kind == yaml.List && len(n.Items) > maxAdaptiveSteps {
		dec.fail(n, "expected 1 to %d steps", maxAdaptiveSteps)
		return nil
	}

	isList := dec.eachItem(n, func(n *yaml.Node) {
		var step AdaptiveStep
		if stepFields.read(dec, n, &step, nil) && dec.need(n, "above", "a step needs above and factor") {
			dec.need(n, "factor", "a step needs above and factor")
		}

		last := len(list) - 1
		if last >= 0 && step.Above <= list[last].Above {
			dec.fail(n, "each step must be above the one before it")
		}
		list = append(list, step)
	})
	if isList && len(n.Items) == 0 {
		dec.fail(n, "expected 1 to %d steps", maxAdaptiveSteps)
	}

	return list
}
