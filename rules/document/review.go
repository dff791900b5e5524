package document

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/internal/yaml"
)

// Review is Parse for a document that somebody is about to put in force as a
// whole. It also refuses what Parse accepts because earlier releases accepted
// it: see [Document.Objections]. The error is of type [Errors].
//
// Nothing else may refuse such a document. A document that is stored, or comes
// from another region, must stay readable in every release, and a write of a
// single piece must not fail for a mistake elsewhere.
func Review(src []byte) (*Document, error) {
	doc, err := Parse(src)
	if err != nil {
		return nil, err
	}

	objections := doc.Objections()
	if len(objections) > 0 {
		return nil, Errors(objections)
	}
	return doc, nil
}

// ReviewPiece refuses a change of one list if an item uses a field of entries,
// such as `until`, as an attribute. GET of a list shows such fields beside the
// attributes. Put back, they would be conditions that no check meets, and the
// item would match nothing.
//
// The attribute is meant if d, which may be nil, declares it. `origin` is always
// refused, because GET shows one whatever is declared. The error is of type
// [Errors], with positions in the body.
func (d *Document) ReviewPiece(c Change) error {
	if c.Part != ListPart || c.Delete {
		return nil
	}
	list, err := parseText(c.Body)
	if err != nil {
		return err
	}
	if list.Kind != yaml.List {
		return nil // Apply says what is wrong
	}

	isMeant := func(attribute string) bool {
		return attribute != "origin" && d != nil && d.declared[attribute] != nil
	}
	var found collector
	for i, item := range list.Items {
		if item.Kind != yaml.Map {
			continue // again, Apply says what is wrong
		}
		for key := range item.Pairs {
			if slices.Contains(metaFields[:], key.Text) && !isMeant(key.Text) {
				found.add(key.Pos, fmt.Sprintf("lists.%s[%d].%s", c.Name, i, key.Text),
					"%s is a field of entries, which can't be an attribute here: leave it out, or write the whole document",
					key.Text)
			}
		}
	}
	return found.err()
}

// Objections lists the mistakes for which [Review] refuses d, although nodes
// can run it. For all other readers they are warnings. Errors have positions
// only if d is unchanged since it was parsed.
func (d *Document) Objections() []Error {
	var found collector
	for i, r := range d.Rules {
		path := fmt.Sprintf("rules[%d]", i)
		d.reviewCost(&found, path, r)
		reviewNames(&found, path+".limits", r.Limits)
	}

	for _, t := range d.Tiers {
		reviewNames(&found, keyPath("tiers", t.Name)+".limits", t.Limits)
	}

	for _, g := range d.Subjects {
		for _, s := range g.Subjects {
			path := keyPath(keyPath("subjects", g.Attribute), s.Value) + ".limits"
			for _, o := range s.Overrides {
				reviewNames(&found, keyPath(path, o.Rule), o.Limits)
			}
		}
	}

	return d.placed(&found)
}

// placed returns what c has found, in the order of the text. If d has no text,
// it drops the positions.
func (d *Document) placed(c *collector) []Error {
	if d.source == "" {
		for i := range c.errs {
			c.errs[i].Line, c.errs[i].Column = 0, 0
		}
	}
	c.sort()
	return c.errs
}

// reviewCost objects to a cost table that charges no limit.
func (d *Document) reviewCost(found *collector, path string, r *RuleSpec) {
	if r.Cost == nil {
		return
	}
	unit := cmp.Or(r.Cost.Unit, Requests)
	charges := func(l *LimitSpec) bool { return cmp.Or(l.Unit, Requests) == unit || l.Unlimited && l.Unit == "" }
	if d.someLimit(r, charges) {
		return
	}

	var units []string
	d.someLimit(r, func(l *LimitSpec) bool {
		u := cmp.Or(l.Unit, Requests)
		if !slices.Contains(units, u) {
			units = append(units, u)
		}
		return false
	})
	if len(units) == 0 {
		return // the rule has no limits at all, which is another mistake
	}
	found.add(r.position("cost"), path+".cost", "its unit is %s, but no limit of the rule has that unit%s",
		Shorten(unit), hintUnit(units))
}

// reviewNames objects to limits of one list that have the same unit and window,
// and no names of their own. Callers adjust and reset a limit by its name,
// which is made of unit and window in this case.
func reviewNames(found *collector, path string, limits []*LimitSpec) {
	for i, l := range limits {
		if l.Name != "" || l.Unlimited {
			continue
		}

		isAlike := func(o *LimitSpec) bool {
			return o.Name == "" && !o.Unlimited &&
				cmp.Or(o.Unit, Requests) == cmp.Or(l.Unit, Requests) && o.Per == l.Per
		}
		if j := slices.IndexFunc(limits[:i], isAlike); j >= 0 {
			found.add(l.pos, fmt.Sprintf("%s[%d]", path, i),
				"%s[%d] has the same unit and window, which tell limits without a name apart; give one of them a name",
				path, j)
		}
	}
}

// hintUnit names the unit that a cost table without effect was probably meant for.
func hintUnit(units []string) string {
	if len(units) == 1 {
		return "; did you mean unit: " + Shorten(units[0]) + "?"
	}
	return ""
}

// someLimit reports whether holds is true for some limit that applies to some
// subject of r: the rule's own, a tier's or an override's.
func (d *Document) someLimit(r *RuleSpec, holds func(*LimitSpec) bool) bool {
	found := false
	d.eachLimits(r.Name,
		func(_ string, _ Origin, limits []*LimitSpec) { found = found || slices.ContainsFunc(limits, holds) })
	return found
}
