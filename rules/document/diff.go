package document

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

// The kinds of pieces in a [PieceChange]. A setting of the whole document has
// its key as its kind, such as "defaults".
const (
	KindRule    = "rule"
	KindTier    = "tier"
	KindSubject = "subject" // named by attribute and value
	KindDeny    = "deny"    // an entry of the deny list, named by its text
	KindAllow   = "allow"
	KindProfile = "profile"
	KindEnvoy   = "envoy" // a domain
	KindOrder   = "order" // of the rules; it breaks ties
	KindText    = "text"  // comments and layout alone
)

// The values of PieceChange.Change.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// PieceChange is a piece in which two documents differ.
type PieceChange struct {
	Kind    string   `json:"kind"`
	Name    string   `json:"name,omitempty"`
	Change  string   `json:"change"`
	Details []string `json:"details,omitempty"` // what is different, such as "limits: 100 → 200 per 1h"
	// Anew says why counts begin anew, if they do, such as "the window changed".
	Anew string `json:"counts_begin_anew,omitempty"`

	after string // the piece as JSON in the second document; empty if removed
}

// String names the piece, such as "rule login".
func (c *PieceChange) String() string { return strings.TrimSuffix(c.Kind+" "+c.Name, " ") }

// docPiece is a piece of a document.
type docPiece struct {
	kind, name string
	node       *yaml.Node
	json       string
}

// diffPieces returns the pieces of d: the settings first, then the rest in the
// order in which it is written.
func (d *Document) diffPieces() []docPiece {
	if d == nil {
		return nil
	}

	var out []docPiece
	add := func(kind, name string, n *yaml.Node) {
		out = append(out, docPiece{kind, name, n, string(n.AppendJSON(nil))})
	}
	for _, f := range documentFields.list {
		switch f.key {
		case "version", "rules", "tiers", "subjects", "lists", "profiles", "envoy":
		default:
			if n := f.write(d); n != nil {
				add(f.key, "", n)
			}
		}
	}

	for _, list := range []struct {
		kind    string
		entries []*ListEntry
	}{{KindDeny, d.Deny}, {KindAllow, d.Allow}} {
		for _, e := range list.entries {
			n := conditionsNode(e.Match)
			add(list.kind, strings.TrimSpace(string(n.AppendYAML(nil))), n)
		}
	}

	for _, r := range d.Rules {
		add(KindRule, r.Name, r.node())
	}

	for _, t := range d.Tiers {
		add(KindTier, t.Name, t.node())
	}

	for _, g := range d.Subjects {
		for _, s := range g.Subjects {
			add(KindSubject, g.Attribute+" "+s.Value, s.node())
		}
	}

	for _, p := range d.Profiles {
		add(KindProfile, p.Name, p.node())
	}

	for _, s := range d.Envoy {
		add(KindEnvoy, s.Domain, envoyFields.node(s))
	}

	return out
}

// Diff returns the changes from one document to another: first the pieces of
// before, in order, and then the added ones. before may be nil. The result is
// empty if both mean the same and have the same text.
func Diff(before, after *Document) []PieceChange {
	piecesBefore, piecesAfter := before.diffPieces(), after.diffPieces()
	type id struct{ kind, name string }

	// left has the pieces of after that have no counterpart yet. An entry may
	// be listed twice.
	left := make(map[id][]*docPiece, len(piecesAfter))
	for i := range piecesAfter {
		p := &piecesAfter[i]
		left[id{p.kind, p.name}] = append(left[id{p.kind, p.name}], p)
	}

	var out []PieceChange
	matched := map[*docPiece]bool{}
	for i := range piecesBefore {
		p := &piecesBefore[i]
		same := left[id{p.kind, p.name}]
		if len(same) == 0 {
			out = append(out, PieceChange{Kind: p.kind, Name: p.name, Change: Removed})
			continue
		}

		left[id{p.kind, p.name}] = same[1:]
		matched[same[0]] = true
		if p.json != same[0].json {
			c := PieceChange{Kind: p.kind, Name: p.name, Change: Changed, after: same[0].json}
			c.Details = nodeDetails(p.node, same[0].node)
			out = append(out, c)
		}
	}

	for i := range piecesAfter {
		p := &piecesAfter[i]
		if !matched[p] {
			out = append(out,
				PieceChange{Kind: p.kind, Name: p.name, Change: Added, Details: summary(p), after: p.json})
		}
	}

	if before == nil {
		return out
	}

	out = addBeginsAnew(out, before, after)
	markRenames(out, piecesBefore, piecesAfter)
	if c, moved := orderChange(before, after); moved {
		out = append(out, c)
	}

	if len(out) == 0 && before.source != after.source {
		out = append(out,
			PieceChange{Kind: KindText, Change: Changed,
				Details: []string{"only comments and layout differ"}, after: "text"})
	}

	return out
}

// orderChange compares the order of the rules that both documents have.
func orderChange(before, after *Document) (PieceChange, bool) {
	names := func(d, other *Document) (list []string) {
		for _, r := range d.Rules {
			if other.ruleIndex(r.Name) >= 0 {
				list = append(list, r.Name)
			}
		}
		return list
	}
	orderBefore, orderAfter := names(before, after), names(after, before)
	if slices.Equal(orderBefore, orderAfter) {
		return PieceChange{}, false
	}

	return PieceChange{Kind: KindOrder, Change: Changed,
		Details: []string{"the rules are in another order"}, after: strings.Join(orderAfter, "\n")}, true
}

// maxDetail bounds a value in details, in bytes.
const maxDetail = 160

// valueText writes a value for people.
func valueText(n *yaml.Node) string {
	if n == nil {
		return "(none)"
	}
	text := strings.TrimSpace(string(yaml.NewList(n).OnOneLine().AppendYAML(nil)))
	text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	if len(text) > maxDetail {
		text = strings.ToValidUTF8(text[:maxDetail], "") + "…"
	}
	return text
}

// summary says what an added piece has, in a few words.
func summary(p *docPiece) []string {
	if p.kind == KindDeny || p.kind == KindAllow || p.node.Kind != yaml.Map {
		return nil
	}
	var out []string
	for k, v := range p.node.Pairs {
		if k.Text != "name" && k.Text != "descriptors" {
			out = append(out, k.Text+": "+valueText(v))
		}
	}
	return out[:min(len(out), 4)]
}

// nodeDetails lists in which keys two mappings differ.
func nodeDetails(before, after *yaml.Node) (out []string) {
	if before.Kind != yaml.Map || after.Kind != yaml.Map {
		return []string{valueText(before) + " → " + valueText(after)}
	}

	detail := func(key string, a, b *yaml.Node) {
		if key == "limits" && a != nil && b != nil && a.Kind == yaml.List && b.Kind == yaml.List {
			out = append(out, limitDetails(a, b)...)
			return
		}
		out = append(out, key+": "+valueText(a)+" → "+valueText(b))
	}
	for k, a := range before.Pairs {
		b := after.Get(k.Text)
		if b == nil || string(a.AppendJSON(nil)) != string(b.AppendJSON(nil)) {
			detail(k.Text, a, b)
		}
	}

	for k, b := range after.Pairs {
		if before.Get(k.Text) == nil {
			detail(k.Text, nil, b)
		}
	}

	return out
}

// limitDetails compares two lists of limits. Two limits that agree in unit,
// window, algorithm and zone count as one limit, of which other keys change.
func limitDetails(before, after *yaml.Node) (out []string) {
	id := func(n *yaml.Node) string {
		text := ""
		for _, key := range []string{"unit", "per", "algorithm", "tz"} {
			text += valueText(n.Get(key)) + "\n"
		}
		return text
	}
	rest := slices.Clone(after.Items)

	var removed []*yaml.Node
	for _, a := range before.Items {
		i := slices.IndexFunc(rest, func(b *yaml.Node) bool { return id(a) == id(b) })
		if i < 0 {
			removed = append(removed, a)
			continue
		}

		b := rest[i]
		rest = slices.Delete(slices.Clone(rest), i, i+1)

		if string(a.AppendJSON(nil)) == string(b.AppendJSON(nil)) {
			continue
		}

		text := "limit: " + valueText(a.Get("limit")) + " → " + valueText(b.Get("limit"))
		if per := b.Get("per"); per != nil {
			text += " per " + valueText(per)
		}
		if valueText(a.Get("limit")) == valueText(b.Get("limit")) || !sameBut(a, b, "limit") {
			text = "limit: " + valueText(a) + " → " + valueText(b)
		}

		out = append(out, text)
	}

	for i := range max(len(removed), len(rest)) {
		switch {
		case i >= len(rest):
			out = append(out, "limit: "+valueText(removed[i])+" → (none)")
		case i >= len(removed):
			out = append(out, "limit: (none) → "+valueText(rest[i]))
		default:
			out = append(out, "limit: "+valueText(removed[i])+" → "+valueText(rest[i]))
		}
	}

	return out
}

// sameBut reports whether two mappings are equal but for one key.
func sameBut(a, b *yaml.Node, key string) bool {
	for _, pair := range [][2]*yaml.Node{{a, b}, {b, a}} {
		for k, v := range pair[0].Pairs {
			other := pair[1].Get(k.Text)
			if k.Text != key && (other == nil || string(v.AppendJSON(nil)) != string(other.AppendJSON(nil))) {
				return false
			}
		}
	}
	return true
}

// addBeginsAnew says for each rule why its counts begin anew, if they do. It adds a
// change for a rule that is as before if the reason lies elsewhere, such as in
// the defaults.
func addBeginsAnew(out []PieceChange, before, after *Document) []PieceChange {
	for _, r := range after.Rules {
		i := before.ruleIndex(r.Name)
		if i < 0 {
			continue
		}

		why := anew(before, before.Rules[i], after, r)
		if why == "" {
			continue
		}

		at := slices.IndexFunc(out, func(c PieceChange) bool { return c.Kind == KindRule && c.Name == r.Name })
		if at < 0 {
			at = len(out)
			out = append(out,
				PieceChange{Kind: KindRule, Name: r.Name, Change: Changed, after: string(r.node().AppendJSON(nil))})
			out[at].Details = []string{"what it takes from elsewhere in the document changed"}
		}

		out[at].Anew = why
	}

	return out
}

// anew returns why the counts of a rule begin anew, or "" if none do.
func anew(before *Document, ruleBefore *RuleSpec, after *Document, ruleAfter *RuleSpec) string {
	keyBefore, keyAfter := valueText(ruleBefore.node().Get("key")), valueText(ruleAfter.node().Get("key"))
	if keyBefore != keyAfter {
		return fmt.Sprintf("the key changed from %s to %s", keyBefore, keyAfter)
	}
	if why := valuesAnew(before, ruleBefore, after, ruleAfter); why != "" {
		return why
	}

	now := after.limitLists(ruleAfter)
	for _, old := range before.limitLists(ruleBefore) {
		for _, l := range now {
			if l.tier != old.tier {
				continue
			}

			why := limitsAnew(before.identities(ruleBefore, old.limits), after.identities(ruleAfter, l.limits))
			switch {
			case why != "" && l.tier != "":
				return why + " in tier " + l.tier
			case why != "":
				return why
			}
		}
	}

	return ""
}

// valuesAnew returns why values of the key are counted differently than before,
// or "" if they aren't.
func valuesAnew(before *Document, ruleBefore *RuleSpec, after *Document, ruleAfter *RuleSpec) string {
	grouped := func(d *Document, r *RuleSpec) string {
		return fmt.Sprintf("/%d and /%d", cmp.Or(r.IPv4Prefix, d.Defaults.IPv4Prefix, DefaultIPv4Prefix),
			cmp.Or(r.IPv6Prefix, d.Defaults.IPv6Prefix, DefaultIPv6Prefix))
	}
	for _, name := range slices.Concat(ruleAfter.Key...) {
		a, b := grouped(before, ruleBefore), grouped(after, ruleAfter)
		if HoldsAddresses(name) && a != b {
			return fmt.Sprintf("addresses, of IPv4 and IPv6, are grouped by %s instead of %s", b, a)
		}
		if before.foldingOf(name) != after.foldingOf(name) {
			return fmt.Sprintf("other spellings of %s are the same", name)
		}
	}

	return ""
}

// foldingOf returns which spellings of an attribute's values are the same.
func (d *Document) foldingOf(attribute string) Folding {
	if a := d.declared[attribute]; a != nil {
		return a.Folding
	}
	return Folding{}
}

// limitList is a list of limits that may apply to a subject of a rule.
type limitList struct {
	tier   string // empty for the rule's own
	limits []*LimitSpec
}

// limitLists returns the lists of limits that may apply to a subject of r.
func (d *Document) limitLists(r *RuleSpec) (lists []limitList) {
	if !r.Tiered {
		return []limitList{{"", r.Limits}}
	}
	for _, t := range d.Tiers {
		lists = append(lists, limitList{t.Name, t.Limits})
	}
	return lists
}

// identities returns the identities of the counters of limits, which r has.
func (d *Document) identities(r *RuleSpec, limits []*LimitSpec) (ids []CounterIdentity) {
	for _, l := range limits {
		if l.Unlimited {
			continue
		}
		ids = append(ids, d.Identity(l, d.ZoneOf(r)))
	}
	return ids
}

// limitsAnew returns why the counts of a list of limits begin anew. A limit
// that is only added or removed is no reason.
func limitsAnew(idsBefore, idsAfter []CounterIdentity) string {
	onlyIn := func(list, other []CounterIdentity) []CounterIdentity {
		return slices.DeleteFunc(slices.Clone(list), func(id CounterIdentity) bool { return slices.Contains(other, id) })
	}
	removed := onlyIn(idsBefore, idsAfter)
	added := onlyIn(idsAfter, idsBefore)

	for _, g := range removed {
		for _, id := range added {
			switch {
			case id.Unit != g.Unit:
			case id.Kind != g.Kind && id.Kind.String() == g.Kind.String(): // the two differ in `from`
				return fmt.Sprintf("windows now begin %s instead of %s", id.beginText(), g.beginText())
			case id.Kind != g.Kind:
				return fmt.Sprintf("the algorithm changed from %s to %s", g.Kind, id.Kind)
			case id.Window != g.Window || id.Word != g.Word:
				return fmt.Sprintf("the window changed from %s to %s", g.windowText(), id.windowText())
			default:
				return fmt.Sprintf("the time zone changed from %s to %s", cmp.Or(g.Zone, "UTC"), cmp.Or(id.Zone, "UTC"))
			}
		}
	}

	if len(removed) > 0 && len(added) > 0 {
		return fmt.Sprintf("the unit changed from %s to %s", removed[0].Unit, added[0].Unit)
	}

	return ""
}

func (id CounterIdentity) windowText() string {
	if id.Word != "" {
		return id.Word
	}
	return FormatDuration(id.Window)
}

// beginText says when windows begin.
func (id CounterIdentity) beginText() string {
	if id.Kind == algorithms.FirstWindow {
		return "with the first hit"
	}
	return "by the clock"
}

// markRenames says which added rule is a removed one under another name.
func markRenames(out []PieceChange, before, after []docPiece) {
	body := func(list []docPiece, name string) string {
		for _, p := range list {
			if p.kind == KindRule && p.name == name {
				n := *p.node
				n.Items = n.Items[2:] // the name comes first
				return string(n.AppendJSON(nil))
			}
		}
		return ""
	}
	for i := range out {
		if out[i].Kind != KindRule || out[i].Change != Removed {
			continue
		}

		for j := range out {
			c := &out[j]
			isNew := c.Kind == KindRule && c.Change == Added && c.Anew == ""
			if isNew && body(before, out[i].Name) == body(after, c.Name) {
				c.Anew = fmt.Sprintf("it was named %s", out[i].Name)
				break
			}
		}
	}
}

// NotIn returns those of changes that d lacks: the new piece is absent from d,
// or a removed piece is still in d. changes are what [Diff] returned.
func NotIn(changes []PieceChange, d *Document) (out []PieceChange) {
	type id struct{ kind, name string }
	have := map[id][]string{}
	for _, p := range d.diffPieces() {
		have[id{p.kind, p.name}] = append(have[id{p.kind, p.name}], p.json)
	}

	for _, c := range changes {
		if c.Kind == KindText || c.Kind == KindOrder {
			continue // nothing is lost
		}
		now := have[id{c.Kind, c.Name}]
		if c.Change == Removed && len(now) > 0 || c.Change != Removed && !slices.Contains(now, c.after) {
			out = append(out, c)
		}
	}

	return out
}
