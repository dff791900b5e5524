package rules

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rlnode/rlnode/internal/yaml"
)

// Part is the kind of piece that a [Change] writes.
type Part uint8

// The kinds of pieces that can be written separately.
const (
	WholeDocument Part = iota
	RulePart
	TierPart
	ListPart // Name is allow or deny
)

// partNames are the parts' names in descriptions, such as Version.What.
var partNames = [...]string{"document", "rule", "tier", "list"}

// Change replaces, adds or deletes a piece of a document.
type Change struct {
	Part   Part
	Name   string // of the rule, tier or list
	Delete bool
	Body   []byte // the piece as YAML or JSON
}

// Apply returns a copy of d with one piece changed; the copy shares the unchanged pieces. A rule's body may leave out
// the name; if it has one, it must be c.Name. A new rule or tier goes to the end; an existing one keeps its place.
//
// The error is of type [Errors], with positions in the body, or wraps [ErrNotFound].
func (d *Document) Apply(c Change) (*Document, error) {
	if c.Part == WholeDocument && c.Delete {
		return nil, Errors{{Message: "the whole document can't be deleted"}}
	}
	if c.Part == WholeDocument {
		return Parse(c.Body)
	}
	if !utf8.ValidString(c.Name) {
		return nil, Errors{{Message: "the name of a piece must be valid UTF-8"}}
	}

	next := *d
	next.source, next.asJSON = "", false
	next.positions = nil
	e := &edit{before: d, doc: &next, change: c}
	e.declared = d.declared
	var body *yaml.Node
	if !c.Delete {
		var err error
		if body, err = parseText(c.Body); err != nil {
			return nil, err
		}
	}

	if err := e.applyChange(body); err != nil {
		return nil, err
	}

	e.checkSize()
	if err := e.decoder.err(); err != nil {
		return nil, err
	}

	next.days = next.days || e.days
	next.loose = e.loose.errs
	return &next, nil
}

// edit is one Apply in progress.
type edit struct {
	decoder
	before, doc *Document
	change      Change
	bodyPath    string // path of the piece; mistakes outside it have no position
}

func (e *edit) applyChange(body *yaml.Node) error {
	var found bool
	switch e.change.Part {
	case RulePart:
		found = e.changeRule(body)
	case TierPart:
		found = e.changeTier(body)
	case ListPart:
		found = e.changeList(body)
	}

	if !found {
		return fmt.Errorf("look for %s: %w", e.change, ErrNotFound)
	}

	return nil
}

// String names the piece.
func (c Change) String() string {
	if c.Part == WholeDocument {
		return partNames[c.Part]
	}
	return fmt.Sprintf("%s %q", partNames[c.Part], c.Name)
}

// setPath sets the path of the piece. Its key is in the change and not in the body.
func (e *edit) setPath(path string) { e.path = append(e.path[:0], path...); e.bodyPath = path }

// keyNode returns the piece's name as a node without a position.
func (e *edit) keyNode() *yaml.Node { return yaml.Text(e.change.Name) }

// piece is a kind of piece of which a document has many.
type piece interface {
	*RuleSpec | *TierSpec
	node() *yaml.Node
}

// replacePiece returns a copy of list with p at index i: if found, p replaces the i-th piece, and otherwise p is inserted
// before it. If p is nil, the piece is removed. replacePiece also updates the document's size.
func replacePiece[P piece](e *edit, list []P, name string, i int, found bool, p P) []P {
	list = slices.Clone(list)
	var before, after func() *yaml.Node
	if found {
		before = list[i].node
	}
	if p != nil {
		after = p.node
	}

	e.resize(name, before, after)

	switch {
	case p == nil:
		return slices.Delete(list, i, i+1)
	case !found:
		return slices.Insert(list, i, p)
	}

	list[i] = p
	return list
}

// insertionPoint returns the index of a piece in a list of n pieces, or the index to insert it at if i is negative
// because the list does not have it.
func insertionPoint(i, n int) (at int, found bool) {
	if i < 0 {
		return n, false
	}
	return i, true
}

func (e *edit) changeRule(body *yaml.Node) bool {
	i, found := insertionPoint(e.before.rule(e.change.Name), len(e.before.Rules))
	var r *RuleSpec
	switch {
	case e.change.Delete && !found:
		return false
	case !e.change.Delete:
		e.setPath(fmt.Sprintf("rules[%d]", i))
		name := e.checkName(e.keyNode(), e.change.Name)
		r = e.rule(body, name)
		if name != "" && r.Name != "" && r.Name != name {
			e.add(r.position("name"), e.bodyPath+".name", "the name %q differs from that of the rule being written, %q", r.Name, name)
			r.Name = name
		}

		if i >= maxRules {
			e.add(yaml.Pos{}, "rules", "more than %d rules", maxRules)
		}
	}

	e.doc.Rules = replacePiece(e, e.before.Rules, e.change.Name, i, found, r)
	e.validateAll()
	return true
}

func (e *edit) changeTier(body *yaml.Node) bool {
	i, found := insertionPoint(e.before.tier(e.change.Name), len(e.before.Tiers))
	var t *TierSpec
	switch {
	case e.change.Delete && !found:
		return false
	case !e.change.Delete:
		e.setPath(keyPath("tiers", e.change.Name))
		t = e.tier(e.keyNode(), body)
	}
	e.doc.Tiers = replacePiece(e, e.before.Tiers, e.change.Name, i, found, t)
	e.validateAll()
	return true
}

func (e *edit) changeList(body *yaml.Node) bool {
	list := map[string]*[]*Entry{"deny": &e.doc.Deny, "allow": &e.doc.Allow}[e.change.Name]
	if list == nil {
		return false
	}
	before := *list
	*list = nil
	if !e.change.Delete {
		e.setPath("lists." + e.change.Name)
		*list = e.entries(body)
	}
	e.resize(e.change.Name, func() *yaml.Node { return entriesNode(before) }, func() *yaml.Node { return entriesNode(*list) })
	return !e.change.Delete || len(before) > 0
}

// validateAll validates the changed document. It drops positions outside the body, which mean nothing to the writer.
func (e *edit) validateAll() {
	validate(e.doc, &e.collector)
	e.clearOutsidePositions()
}

func (e *edit) clearOutsidePositions() {
	for i := range e.errs {
		if p := e.errs[i].Path; e.bodyPath == "" || p != e.bodyPath && !strings.HasPrefix(p, e.bodyPath+".") && !strings.HasPrefix(p, e.bodyPath+"[") {
			e.errs[i].Line, e.errs[i].Column = 0, 0
		}
	}
}

// resize updates the document's size: the second piece takes the place of the first. Nil stands for none. A piece with mistakes can't
// be encoded, and nobody asks for its size.
func (e *edit) resize(name string, before, after func() *yaml.Node) {
	if e.decoder.err() != nil {
		return
	}
	if before != nil {
		e.doc.size -= pieceSize(name, before())
	}
	if after != nil {
		e.doc.size += pieceSize(name, after())
	}
}

// checkSize rejects a change that makes the document too large. A change that makes it smaller always passes.
func (e *edit) checkSize() {
	if len(e.doc.Subjects) > maxGroups {
		e.add(yaml.Pos{}, "subjects", "more than %d attributes with subjects", maxGroups)
	}
	if e.doc.size > MaxDocument && e.doc.size > e.before.size {
		e.add(yaml.Pos{}, "", "the document would be larger than 8 MiB")
	}
}

// Piece returns a piece of the document as JSON and as YAML. It uses only c's Part and Name. The error wraps
// [ErrNotFound].
func (d *Document) Piece(c Change) (asJSON, asYAML []byte, err error) {
	n := d.pieceNode(c)
	if n == nil {
		return nil, nil, fmt.Errorf("look for %s: %w", c, ErrNotFound)
	}
	return n.AppendJSON(nil), n.AppendYAML(nil), nil
}

func (d *Document) pieceNode(c Change) *yaml.Node {
	switch c.Part {
	case WholeDocument:
		return d.node()
	case RulePart:
		if i := d.rule(c.Name); i >= 0 {
			return d.Rules[i].node()
		}
	case TierPart:
		if i := d.tier(c.Name); i >= 0 {
			return d.Tiers[i].node()
		}
	case ListPart:
		switch c.Name {
		case "deny":
			return entriesNode(d.Deny)
		case "allow":
			return entriesNode(d.Allow)
		}
	}

	return nil
}

// Subject returns the document's entry for a subject, or nil.
func (d *Document) Subject(attribute, value string) *SubjectSpec {
	gi := d.group(attribute)
	if gi < 0 {
		return nil
	}
	i, found := d.Subjects[gi].find(canonicalValue(d.declared, attribute, value))
	if !found {
		return nil
	}
	return d.Subjects[gi].Subjects[i]
}

// find returns the index of a subject, given by its canonical value, or the index at which to insert it.
func (g *Group) find(value string) (i int, found bool) {
	return slices.BinarySearchFunc(g.Subjects, value, func(s *SubjectSpec, v string) int {
		return strings.Compare(s.Value, v)
	})
}
