package rules

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rlnode/rlnode/internal/yaml"
)

// Part says which piece of a document a [Change] is about.
type Part uint8

// The pieces that can be written by themselves.
const (
	WholeDocument Part = iota
	RulePart
	TierPart
	SubjectPart
	ListPart // Name is allow or deny
)

// partNames are what the parts are called in descriptions, and where they are kept.
var partNames = [...]string{"document", "rule", "tier", "subject", "list"}

// Change replaces, adds or deletes a piece of a document.
type Change struct {
	Part      Part
	Name      string // of the rule, tier or list; the subject's value
	Attribute string // of a subject
	Delete    bool
	Body      []byte // the piece as YAML or JSON
}

// Apply returns the document with one piece changed. d stays as it is; what did not change is shared. A rule's
// body may leave its name out, and must agree with the change if it doesn't. A new rule or tier goes to the end, an
// existing one keeps its place.
//
// The error is of type [Errors], with places in the body, or wraps [ErrNotFound].
func (d *Document) Apply(c Change) (*Document, error) {
	if c.Part == WholeDocument && c.Delete {
		return nil, Errors{{Message: "the whole document can't be deleted"}}
	}
	if c.Part == WholeDocument {
		return Parse(c.Body)
	}
	if !utf8.ValidString(c.Name) || !utf8.ValidString(c.Attribute) {
		return nil, Errors{{Message: "the name of a piece must be valid UTF-8"}}
	}
	next := *d
	next.source, next.asJSON = "", false
	next.at, next.atDefaults = nil, nil
	e := &edit{before: d, doc: &next, change: c}
	var body *yaml.Node
	if !c.Delete {
		var err error
		if body, err = parseText(c.Body); err != nil {
			return nil, err
		}
	}
	if err := e.run(body); err != nil {
		return nil, err
	}
	e.checkSize()
	if err := e.decoder.err(); err != nil {
		return nil, err
	}
	return &next, nil
}

// edit is one Apply at work.
type edit struct {
	decoder
	before, doc *Document
	change      Change
	body        string // path of the piece: places are those of mistakes in it
}

func (e *edit) run(body *yaml.Node) error {
	var found bool
	switch e.change.Part {
	case RulePart:
		found = e.changeRule(body)
	case TierPart:
		found = e.changeTier(body)
	case SubjectPart:
		found = e.changeSubject(body)
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
	switch c.Part {
	case WholeDocument:
		return partNames[c.Part]
	case SubjectPart:
		return fmt.Sprintf("%s %s %q", partNames[c.Part], c.Attribute, c.Name)
	}
	return fmt.Sprintf("%s %q", partNames[c.Part], c.Name)
}

// begin makes path that of the piece, whose key stands in the change and not in the body.
func (e *edit) begin(path string) { e.path = append(e.path[:0], path...); e.body = path }

// key is the piece's name as a node without a place.
func (e *edit) key() *yaml.Node { return yaml.Text(e.change.Name) }

// piece is what a document has many of.
type piece interface {
	*RuleSpec | *TierSpec | *SubjectSpec
	node() *yaml.Node
}

// replaced is list with p in the place of the i-th piece if there is one, else before it; without that one if p is nil. It keeps
// account of the document's size.
func replaced[P piece](e *edit, list []P, name string, i int, found bool, p P) []P {
	list = slices.Clone(list)
	var before, after *yaml.Node
	if found {
		before = list[i].node()
	}
	if p != nil {
		after = p.node()
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

// place is where a piece stands, or is to stand, in a list of n; i is below 0 if it is not there.
func place(i, n int) (at int, found bool) {
	if i < 0 {
		return n, false
	}
	return i, true
}

func (e *edit) changeRule(body *yaml.Node) bool {
	i, found := place(e.before.rule(e.change.Name), len(e.before.Rules))
	var r *RuleSpec
	switch {
	case e.change.Delete && !found:
		return false
	case !e.change.Delete:
		e.begin(fmt.Sprintf("rules[%d]", i))
		name := e.checkName(e.key(), e.change.Name)
		r = e.rule(body, name)
		if name != "" && r.Name != "" && r.Name != name {
			e.add(r.place("name"), e.body+".name", "the name %q is not that of the rule written, %q", r.Name, name)
			r.Name = name
		}
		if i >= maxRules {
			e.add(yaml.Pos{}, "rules", "more than %d rules", maxRules)
		}
	}
	e.doc.Rules = replaced(e, e.before.Rules, e.change.Name, i, found, r)
	e.validateAll()
	return true
}

func (e *edit) changeTier(body *yaml.Node) bool {
	i, found := place(e.before.tier(e.change.Name), len(e.before.Tiers))
	var t *TierSpec
	switch {
	case e.change.Delete && !found:
		return false
	case !e.change.Delete:
		e.begin(keyPath("tiers", e.change.Name))
		t = e.tier(e.key(), body)
	}
	e.doc.Tiers = replaced(e, e.before.Tiers, e.change.Name, i, found, t)
	e.validateAll()
	return true
}

// changeSubject changes one subject of perhaps very many, and so looks only at that one.
func (e *edit) changeSubject(body *yaml.Node) bool {
	attribute := e.change.Attribute
	gi := e.before.group(attribute)
	group := &Group{Attribute: attribute}
	if gi >= 0 {
		group = &Group{Attribute: attribute, Subjects: e.before.Subjects[gi].Subjects, pos: e.before.Subjects[gi].pos}
	}
	i, found := group.find(e.change.Name)
	var s *SubjectSpec
	switch {
	case e.change.Delete && !found:
		return false
	case !e.change.Delete:
		e.begin(keyPath("subjects", attribute))
		e.checkName(yaml.Text(attribute), attribute)
		e.begin(keyPath(e.body, e.change.Name))
		s = e.subject(attribute, e.key(), body)
		newChecker(e.doc, &e.collector).subject(keyPath("subjects", attribute), attribute, s)
		e.forgetPlaces()
	}
	group.Subjects = replaced(e, group.Subjects, usualAddress(attribute, e.change.Name), i, found, s)
	e.doc.Subjects = slices.Clone(e.before.Subjects)
	switch {
	case gi < 0:
		e.resize(attribute, nil, yaml.NewMap())
		e.doc.Subjects = append(e.doc.Subjects, group)
	case len(group.Subjects) == 0:
		e.resize(attribute, yaml.NewMap(), nil)
		e.doc.Subjects = slices.Delete(e.doc.Subjects, gi, gi+1)
	default:
		e.doc.Subjects[gi] = group
	}
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
		e.begin("lists." + e.change.Name)
		*list = e.entries(body)
	}
	e.resize(e.change.Name, entriesNode(before), entriesNode(*list))
	return !e.change.Delete || len(before) > 0
}

// validateAll checks the changed document; the places of parts that are not in the body mean nothing to the
// writer.
func (e *edit) validateAll() {
	validate(e.doc, &e.collector)
	e.forgetPlaces()
}

func (e *edit) forgetPlaces() {
	for i := range e.errs {
		if p := e.errs[i].Path; e.body == "" || p != e.body && !strings.HasPrefix(p, e.body+".") && !strings.HasPrefix(p, e.body+"[") {
			e.errs[i].Line, e.errs[i].Column = 0, 0
		}
	}
}

// resize keeps account of the document's size.
func (e *edit) resize(name string, before, after *yaml.Node) {
	e.doc.size += pieceSize(name, after) - pieceSize(name, before)
}

// checkSize refuses what makes the document too large; what makes it smaller is always welcome.
func (e *edit) checkSize() {
	if len(e.doc.Subjects) > maxGroups {
		e.add(yaml.Pos{}, "subjects", "more than %d attributes with subjects", maxGroups)
	}
	if e.doc.size > MaxDocument && e.doc.size > e.before.size {
		e.add(yaml.Pos{}, "", "the document would be larger than 8 MiB")
	}
}

// Piece returns a piece of the document, as JSON and as YAML. Of c only Part, Name and Attribute are looked at. The
// error wraps [ErrNotFound].
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
	case SubjectPart:
		if s := d.Subject(c.Attribute, c.Name); s != nil {
			return s.node()
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

// Subject returns what is listed of a subject, or nil.
func (d *Document) Subject(attribute, value string) *SubjectSpec {
	gi := d.group(attribute)
	if gi < 0 {
		return nil
	}
	i, found := d.Subjects[gi].find(value)
	if !found {
		return nil
	}
	return d.Subjects[gi].Subjects[i]
}

// find is where a subject stands, or would stand.
func (g *Group) find(value string) (i int, found bool) {
	return slices.BinarySearchFunc(g.Subjects, usualAddress(g.Attribute, value), func(s *SubjectSpec, v string) int {
		return strings.Compare(s.Value, v)
	})
}
