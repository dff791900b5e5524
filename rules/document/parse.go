package document

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/rlnode/rlnode/internal/yaml"
)

// MaxDocument bounds a document's text, in bytes.
const MaxDocument = 8 << 20

// Parse reads a whole document from YAML or JSON of at most [MaxDocument]
// bytes. The error is of type [Errors] and lists every mistake, or only the one
// that makes the text unreadable.
func Parse(src []byte) (*Document, error) {
	root, err := parseText(src)
	if err != nil {
		return nil, err
	}

	d := &decoder{}
	doc := &Document{source: string(src), positions: positions{}}
	doc.asJSON = json.Valid(src)

	if root.Kind == yaml.Null {
		d.fail(root, "the document is empty")
		return nil, d.err()
	}

	moveFirst(root, "attributes") // the other parts name them
	documentFields.read(d, root, doc, doc.positions)
	validate(doc, &d.collector)

	if err := d.err(); err != nil {
		return nil, err
	}

	doc.days = d.days
	doc.loose = d.loose.errs
	return doc, nil
}

func parseText(src []byte) (*yaml.Node, error) {
	if len(src) > MaxDocument {
		return nil, Errors{{Message: "the document is larger than 8 MiB"}}
	}
	if err := refuseManyRules(string(src)); err != nil {
		return nil, err
	}
	root, err := yaml.Parse(string(src))
	if syntax, ok := errors.AsType[*yaml.SyntaxError](err); ok {
		return nil, Errors{{Line: int(syntax.Line), Column: int(syntax.Column), Message: syntax.Message}}
	}
	return root, err
}

// refuseManyRules returns an error if src, in block style, has more rules than
// are allowed. It counts the lines that begin a rule, before the text is
// parsed: the tree of a document takes fifty times the memory of its text, and
// this one will be refused anyway.
func refuseManyRules(src string) error {
	var begin, line, count int
	indent := -1
	inside := false
	for text := range strings.Lines(src) {
		line++
		item := strings.TrimLeft(text, " ")
		depth := len(text) - len(item)
		isItem := strings.HasPrefix(item, "- ")

		blank := strings.TrimSpace(item) == "" || item[0] == '#'
		switch {
		case blank:
		case depth == 0 && !isItem:
			inside = strings.TrimSpace(text) == "rules:" && count == 0
		case !inside || !isItem:
		case indent < 0:
			begin = line
			indent = depth
			count = count + 1
		case depth == indent:
			count++
		}
	}

	if count <= maxRules {
		return nil
	}

	return Errors{{Line: begin, Column: indent + 1,
		Message: fmt.Sprintf("rules: %d rules; at most %d are allowed", count, maxRules)}}
}

// The keys allowed in each mapping, in the order in which they are written.
var (
	documentFields = fieldsOf(
		field[Document]{"version", func(d *decoder, n *yaml.Node, _ *Document) {
			if d.shapes != nil {
				d.shapes.describeNumber(n, yaml.Int, integer(1), integer(1))
				return
			}
			if n.Kind != yaml.Int || n.Text != "1" {
				d.fail(n, "the only version is 1")
			}
		}, func(*Document) *yaml.Node { return integer(1) }},
		field[Document]{"attributes", (*decoder).declare,
			func(doc *Document) *yaml.Node { return declarationNode(doc.Attributes) }},
		field[Document]{"defaults", func(d *decoder, n *yaml.Node, doc *Document) {
			defaultsFields.read(d, n, &doc.Defaults, nil)
		}, func(doc *Document) *yaml.Node { return nilIfEmpty(defaultsFields.node(&doc.Defaults)) }},
		of("default", wordCodec("allow", "deny"), func(doc *Document) *string { return &doc.Default }),
		field[Document]{"headers", func(d *decoder, n *yaml.Node, doc *Document) {
			doc.Headers = &Headers{IETF: true, XRateLimit: true}
			headerFields.read(d, n, doc.Headers, nil)
		}, func(doc *Document) *yaml.Node {
			if doc.Headers == nil {
				return nil
			}
			return headerFields.node(doc.Headers).OnOneLine()
		}},
		field[Document]{"lists", func(d *decoder, n *yaml.Node, doc *Document) {
			listFields.read(d, n, doc, nil)
		}, func(doc *Document) *yaml.Node { return nilIfEmpty(listFields.node(doc)) }},
		field[Document]{"rules", (*decoder).rules, func(doc *Document) *yaml.Node {
			return nilIfEmpty(listNode(doc.Rules, ruleFields.node))
		}},
		of("tiers", codec[[]*TierSpec]{mapOf((*decoder).tier), unlessEmpty(func(tiers []*TierSpec) *yaml.Node {
			return mapNode(tiers, func(t *TierSpec) string { return t.Name }, tierFields.node)
		})}, func(doc *Document) *[]*TierSpec { return &doc.Tiers }),
		of("default_tier", nameCodec, func(doc *Document) *string { return &doc.DefaultTier }),
		of("subjects", codec[[]*Group]{(*decoder).groups, unlessEmpty(func(groups []*Group) *yaml.Node {
			return mapNode(groups, func(g *Group) string { return g.Attribute }, func(g *Group) *yaml.Node {
				return mapNode(g.Subjects, func(s *SubjectSpec) string { return s.Value }, (*SubjectSpec).node)
			})
		})}, func(doc *Document) *[]*Group { return &doc.Subjects }),
		of("profiles",
			codec[[]*ProfileSpec]{mapOf((*decoder).profile), unlessEmpty(func(profiles []*ProfileSpec) *yaml.Node {
				return mapNode(profiles, func(p *ProfileSpec) string { return p.Name }, (*ProfileSpec).node)
			})}, func(doc *Document) *[]*ProfileSpec { return &doc.Profiles }),
		of("inline", codec[*InlineSpec]{(*decoder).inline, unlessZero(inlineFields.node)},
			func(doc *Document) **InlineSpec { return &doc.Inline }),
		of("envoy", codec[[]*EnvoySpec]{(*decoder).envoy, unlessEmpty(func(list []*EnvoySpec) *yaml.Node {
			return listNode(list, envoyFields.node)
		})}, func(doc *Document) *[]*EnvoySpec { return &doc.Envoy }),
	)

	listFields = fieldsOf(
		of("deny", entriesCodec, func(doc *Document) *[]*ListEntry { return &doc.Deny }),
		of("allow", entriesCodec, func(doc *Document) *[]*ListEntry { return &doc.Allow }),
	)
)

// maxRules bounds the rules of a document.
const maxRules = 1000

func (dec *decoder) rules(n *yaml.Node, doc *Document) {
	if n.Kind == yaml.List && len(n.Items) > maxRules {
		dec.fail(n, "%d rules; at most %d are allowed", len(n.Items), maxRules)
		return
	}
	dec.eachItem(n, func(n *yaml.Node) { doc.Rules = append(doc.Rules, dec.rule(n, "")) })
}

// moveFirst moves a key to the front of a mapping.
func moveFirst(n *yaml.Node, key string) {
	for i := 2; i+1 < len(n.Items); i += 2 {
		if n.Kind == yaml.Map && n.Items[i].Text == key {
			pair := []*yaml.Node{n.Items[i], n.Items[i+1]}
			copy(n.Items[2:i+2], n.Items[:i])
			copy(n.Items, pair)
			return
		}
	}
}
