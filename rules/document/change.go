package document

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

// Apply returns a copy of d with one piece changed. The copy has no text,
// unless c writes the whole document. A rule's body may leave out the name; if
// it has one, the name must be c.Name. A new rule or tier goes to the end; an
// existing one keeps its place.
//
// The error is of type [Errors], with positions in the body, or wraps
// [ErrNotFound].
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

	var body *yaml.Node
	if !c.Delete {
		var err error
		body, err = parseText(c.Body)
		if err != nil {
			return nil, err
		}
	}

	e := &application{change: c}
	root := d.node()
	if err := e.applyChange(root, body); err != nil {
		return nil, err
	}

	next := &Document{positions: positions{}}
	documentFields.read(&e.decoder, root, next, next.positions)
	e.checkRuleName(next)
	validate(next, &e.collector)
	if err := e.decoder.err(); err != nil {
		return nil, err
	}

	next.days = e.days
	next.loose = e.loose.errs
	return next, nil
}

// application is one Apply in progress.
type application struct {
	decoder
	change Change
	index  int // of the rule, if one is written
}

// applyChange replaces, adds or removes the piece in root, the tree of a
// document. A nil body removes it. Only the body's nodes have positions: other
// nodes are in no text that the writer has.
func (e *application) applyChange(root, body *yaml.Node) error {
	found := false
	c := e.change
	switch c.Part {
	case RulePart:
		rules := section(root, "rules", yaml.List)
		e.index = slices.IndexFunc(rules.Items, func(r *yaml.Node) bool { return r.Get("name").Text == c.Name })
		found = e.index >= 0
		if !found {
			e.index = len(rules.Items)
		}
		if body != nil {
			e.nameRule(body)
		}
		replaceItems(rules, e.index, 1, found, body)

		if len(rules.Items) > maxRules {
			return Errors{{Path: "rules", Message: fmt.Sprintf("more than %d rules", maxRules)}}
		}
	case TierPart:
		found = replacePair(section(root, "tiers", yaml.Map), c.Name, body)
	case ListPart:
		if c.Name == "deny" || c.Name == "allow" {
			found = replacePair(section(root, "lists", yaml.Map), c.Name, body) || !c.Delete
		}
	}

	// Only rules and tiers may be new.
	if !found && (body == nil || e.change.Part > TierPart) {
		return fmt.Errorf("look for %s: %w", e.change, ErrNotFound)
	}
	return nil
}

// section returns the value of a key of the tree's root. It adds the key if it
// is missing.
func section(root *yaml.Node, key string, kind yaml.Kind) *yaml.Node {
	n := root.Get(key)
	if n == nil {
		n = &yaml.Node{Kind: kind}
		root.Set(key, n)
	}
	return n
}

// replacePair replaces, adds or removes the pair of a key, and reports whether
// n had it. A nil value removes it.
func replacePair(n *yaml.Node, key string, value *yaml.Node) (found bool) {
	at := len(n.Items)
	for i := 0; i < len(n.Items) && !found; i += 2 {
		if n.Items[i].Text == key {
			at, found = i, true
		}
	}
	replaceItems(n, at, 2, found, yaml.Text(key), value)
	return found
}

// replaceItems puts items at index at. If found is true, they replace as many
// items there as step says. If the last of items is nil, none are added.
func replaceItems(n *yaml.Node, at, step int, found bool, items ...*yaml.Node) {
	end := at
	if found {
		end += step
	}
	if items[len(items)-1] == nil {
		items = nil
	}
	n.Items = slices.Replace(n.Items, at, end, items...)
}

// nameRule adds the name that a rule is written under to its body, if the body
// has none.
func (e *application) nameRule(body *yaml.Node) {
	e.path = fmt.Appendf(nil, "rules[%d]", e.index)
	name := e.checkName(yaml.Text(e.change.Name), e.change.Name)
	if name != "" && body.Kind == yaml.Map && body.Get("name") == nil {
		body.Set("name", yaml.Text(name))
	}
	e.path = nil
}

// checkRuleName reports a rule whose body has another name than the one that it
// is written under.
func (e *application) checkRuleName(doc *Document) {
	if e.change.Part != RulePart || e.change.Delete {
		return
	}
	r := doc.Rules[e.index]
	name := e.change.Name
	if name != "" && r.Name != "" && r.Name != name {
		e.add(r.position("name"), fmt.Sprintf("rules[%d].name", e.index),
			"the name %q differs from that of the rule being written, %q", r.Name, name)
		r.Name = name
	}
}

// String names the piece.
func (c Change) String() string {
	if c.Part == WholeDocument {
		return partNames[c.Part]
	}
	return fmt.Sprintf("%s %q", partNames[c.Part], c.Name)
}

// What names what c changes: "document", "rule login" and "delete tier free".
func (c Change) What() string {
	if c.Part == WholeDocument {
		return partNames[c.Part]
	}

	var words []string
	if c.Delete {
		words = append(words, "delete")
	}

	for _, w := range []string{partNames[c.Part], c.Name} {
		if w != "" {
			words = append(words, w)
		}
	}

	return strings.Join(words, " ")
}

// Piece returns a piece of the document as JSON and as YAML. It uses only c's
// Part and Name. The error wraps [ErrNotFound].
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
		if i := d.ruleIndex(c.Name); i >= 0 {
			return d.Rules[i].node()
		}
	case TierPart:
		if i := d.TierIndex(c.Name); i >= 0 {
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
