package rules

import (
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/rlnode/rlnode/internal/yaml"
)

// Schema returns a JSON Schema (2020-12) of the rules file. It never marks what
// [Parse] accepts. It marks unknown keys, missing ones, and values of the wrong
// kind or outside their bounds. It can't check one part of a document against
// another.
//
// The parser writes the schema itself: it reads an empty node of each kind in
// place of every value, and the decoder's primitives note what they would
// accept. So the schema can't disagree with the tables that parse.
var Schema = sync.OnceValue(func() []byte {
	d := &decoder{shapes: &shapes{defs: map[*string]*def{}, byNode: map[*yaml.Node]*def{}, name: "document"}}
	root := d.describe(func(n *yaml.Node) { documentFields.read(d, n, &Document{}, positions{}) })

	all := object("$schema", yaml.Text("https://json-schema.org/draft/2020-12/schema"), "title",
		yaml.Text("The rules of rlnode"))
	all.Items = append(all.Items, root.Items...)
	defs := yaml.NewMap()
	for _, one := range d.shapes.order {
		defs.Set(one.name, one.node())
	}
	all.Set("$defs", defs)
	return all.AppendJSON(nil)
})

// durationPattern matches all that ParseDuration accepts and that is above 0.
const durationPattern = `^\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d))+$`

// shapes notes what values a decoder would accept.
type shapes struct {
	defs   map[*string]*def    // by the first key of a mapping's table
	byNode map[*yaml.Node]*def // of the nodes that are read as mappings of a table
	order  []*def
	name   string // of the key that leads to the value being read; definitions are named by it
	keys   int    // number of keys made up so far, which must all differ

	value    *yaml.Node   // that is being read, an empty node
	accepted []*yaml.Node // schemas of what it may be
	refused  bool         // it may be nothing of its kind, unless something is accepted
}

// def is the definition of a mapping with known keys.
type def struct {
	name       string
	properties *yaml.Node
	required   []string
	either     [][]string // keys that it needs, too: all of one of these
}

func (f *def) node() *yaml.Node {
	n := object("type", yaml.Text("object"), "properties", f.properties, "additionalProperties", boolean(false))
	if len(f.required) > 0 {
		n.Set("required", textsNode(f.required))
	}

	var either []*yaml.Node
	for _, keys := range f.either {
		either = append(either, object("required", textsNode(keys)))
	}
	if len(either) > 0 {
		n.Set("anyOf", yaml.NewList(either...))
	}
	return n
}

// object returns a mapping of keys and values in turn.
func object(pairs ...any) *yaml.Node {
	n := yaml.NewMap()
	for i := 0; i+1 < len(pairs); i += 2 {
		n.Set(pairs[i].(string), pairs[i+1].(*yaml.Node))
	}
	return n
}

// sampleNodes are the empty nodes of all kinds, with the names that JSON Schema has for the kinds.
var sampleNodes = []struct {
	kind yaml.Kind
	text string
	name string
}{
	{yaml.Null, "null", "null"}, {yaml.Bool, "true", "boolean"}, {yaml.Int, "1", "integer"},
	{yaml.Float, "1.5", "number"},
	{yaml.String, "", "string"}, {yaml.Map, "", "object"}, {yaml.List, "", "array"},
}

// describe returns a schema of what read accepts.
func (dec *decoder) describe(read func(n *yaml.Node)) *yaml.Node {
	s := dec.shapes
	outer := *dec.shapes
	var all []*yaml.Node
	for _, sample := range sampleNodes {
		s.value = &yaml.Node{Kind: sample.kind, Text: sample.text}
		s.accepted = nil
		s.refused = false
		read(s.value)
		if len(s.accepted) == 0 && !s.refused {
			s.accept(s.value, object("type", yaml.Text(sample.name)))
		}
		all = append(all, s.accepted...)
	}

	s.value = outer.value
	s.accepted = outer.accepted
	s.refused = outer.refused
	s.name = outer.name

	return anyOf(all)
}

// anyOf returns a schema of what any of list accepts. Mere types are put together.
func anyOf(list []*yaml.Node) *yaml.Node {
	var types []string
	var others []*yaml.Node

	seen := map[string]bool{}
	for _, n := range list {
		text := string(n.AppendJSON(nil))
		if t := n.Get("type"); t != nil && len(n.Items) == 2 {
			types = append(types, t.Text)
		} else if !seen[text] {
			others = append(others, n)
		}
		seen[text] = true
	}

	if slices.Contains(types, "number") {
		types = slices.DeleteFunc(types, func(t string) bool { return t == "integer" })
	}

	slices.Sort(types)
	types = slices.Compact(types)
	switch len(types) {
	case 0:
	case 1:
		others = append(others, object("type", yaml.Text(types[0])))
	default:
		others = append(others, object("type", textsNode(types)))
	}

	if len(others) == 1 {
		return others[0]
	}

	return object("anyOf", yaml.NewList(others...))
}

// accept notes a schema for n, if that is the value being read.
func (sh *shapes) accept(n *yaml.Node, schema *yaml.Node) {
	if n == sh.value {
		sh.accepted = append(sh.accepted, schema)
	}
}

// refuse notes that n may be nothing of its kind.
func (sh *shapes) refuse(n *yaml.Node) { sh.refused = sh.refused || n == sh.value }

// acceptKind notes that n may be of a kind, and reports whether it is. Unless
// schema is nil, n must also match schema.
func (sh *shapes) acceptKind(n *yaml.Node, kind yaml.Kind, schema *yaml.Node) bool {
	if n.Kind != kind {
		sh.refuse(n)
		return false
	}
	if schema != nil {
		sh.accept(n, schema)
	}
	return true
}

// describeFields notes that n may be a mapping with keys.
func (dec *decoder) describeFields(n *yaml.Node, keys []string, field func(i int, key, value *yaml.Node)) bool {
	s := dec.shapes
	if n.Kind != yaml.Map {
		s.refuse(n)
		return false
	}

	f := s.defs[&keys[0]]
	if f == nil {
		f = &def{name: s.name, properties: yaml.NewMap()}
		for i := 2; slices.ContainsFunc(s.order, func(o *def) bool { return o.name == f.name }); i++ {
			f.name = s.name + "-" + strconv.Itoa(i)
		}

		s.defs[&keys[0]] = f
		s.order = append(s.order, f)

		for i, key := range keys {
			s.name = key
			f.properties.Set(key, dec.describe(func(v *yaml.Node) { field(i, yaml.Text(key), v) }))
		}
	}

	s.byNode[n] = f
	s.accept(n, object("$ref", yaml.Text("#/$defs/"+f.name)))
	return true
}

// describeEntries notes that n may be a mapping with any keys.
func (dec *decoder) describeEntries(n *yaml.Node, entry func(key, value *yaml.Node)) bool {
	s := dec.shapes
	if n.Kind != yaml.Map {
		s.refuse(n)
		return false
	}
	schema := dec.describe(func(v *yaml.Node) {
		s.keys++
		entry(yaml.Text(fmt.Sprintf("key%d", s.keys)), v)
	})
	s.accept(n, object("type", yaml.Text("object"), "additionalProperties", schema))
	return true
}

// describeItems notes that n may be a list.
func (dec *decoder) describeItems(n *yaml.Node, item func(n *yaml.Node)) bool {
	s := dec.shapes
	if n.Kind != yaml.List {
		s.refuse(n)
		return false
	}
	s.accept(n, object("type", yaml.Text("array"), "items", dec.describe(item)))
	return true
}

// describeText notes that n may be any scalar.
func (sh *shapes) describeText(n *yaml.Node) (string, bool) {
	switch n.Kind {
	case yaml.Bool:
		sh.accept(n, object("type", yaml.Text("boolean")))
	case yaml.Int, yaml.Float:
		sh.accept(n, object("type", yaml.Text("number")))
	case yaml.String:
		sh.accept(n, object("type", yaml.Text("string")))
	default:
		sh.refuse(n)
		return "", false
	}
	return n.Text, true
}

// describeWords notes that n may be one of words.
func (sh *shapes) describeWords(n *yaml.Node, words []string) {
	sh.acceptKind(n, yaml.String, object("enum", textsNode(words)))
}

// describeNumber notes that n may be a number within bounds, a whole one if kind is yaml.Int.
func (sh *shapes) describeNumber(n *yaml.Node, kind yaml.Kind, low, high *yaml.Node) {
	if n.Kind != yaml.Int && n.Kind != kind {
		sh.refuse(n)
		return
	}
	name := "number"
	if kind == yaml.Int {
		name = "integer"
	}
	sh.accept(n, object("type", yaml.Text(name), "minimum", low, "maximum", high))
}

// alsoWords notes words that n may be besides what a primitive accepts. It has
// no effect while a document is read.
func (dec *decoder) alsoWords(n *yaml.Node, words ...string) {
	if dec.shapes != nil && n.Kind == yaml.String {
		dec.shapes.accept(n, object("enum", textsNode(words)))
	}
}

// isAny notes that n may be any mapping, and reports whether it has noted so.
// If it has, the caller must not read n.
func (dec *decoder) isAny(n *yaml.Node) bool {
	return dec.shapes != nil && dec.shapes.acceptKind(n, yaml.Map, object("type", yaml.Text("object")))
}

// needEither notes that n needs all keys of one of these lists. It has no
// effect while a document is read.
func (dec *decoder) needEither(n *yaml.Node, lists ...[]string) {
	if dec.shapes == nil {
		return
	}
	if f := dec.shapes.byNode[n]; f != nil {
		f.either = lists
	}
}

// need returns false if n lacks a key, and reports so by message.
func (dec *decoder) need(n *yaml.Node, key, message string) bool {
	if dec.shapes != nil {
		if f := dec.shapes.byNode[n]; f != nil && !slices.Contains(f.required, key) {
			f.required = append(f.required, key)
		}
		return true
	}
	if n.Get(key) == nil {
		dec.fail(n, "%s", message)
		return false
	}
	return true
}
