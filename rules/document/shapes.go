package document

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/rlnode/rlnode/internal/yaml"
)

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
	refused  bool         // a primitive has refused its kind, and only accepted counts
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
func (sh *shapes) describe(read func(n *yaml.Node)) *yaml.Node {
	outer := *sh
	var all []*yaml.Node
	for _, sample := range sampleNodes {
		sh.value = &yaml.Node{Kind: sample.kind, Text: sample.text}
		sh.accepted = nil
		sh.refused = false
		read(sh.value)
		if len(sh.accepted) == 0 && !sh.refused {
			sh.accept(sh.value, object("type", yaml.Text(sample.name)))
		}
		all = append(all, sh.accepted...)
	}

	sh.value = outer.value
	sh.accepted = outer.accepted
	sh.refused = outer.refused
	sh.name = outer.name

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
func (sh *shapes) describeFields(n *yaml.Node, keys []string, field func(i int, key, value *yaml.Node)) bool {
	if n.Kind != yaml.Map {
		sh.refuse(n)
		return false
	}

	f := sh.defs[&keys[0]]
	if f == nil {
		f = &def{name: sh.name, properties: yaml.NewMap()}
		for i := 2; slices.ContainsFunc(sh.order, func(o *def) bool { return o.name == f.name }); i++ {
			f.name = sh.name + "-" + strconv.Itoa(i)
		}

		// The definition is stored before it is filled, because it may refer to itself.
		sh.defs[&keys[0]] = f
		sh.order = append(sh.order, f)

		for i, key := range keys {
			sh.name = key
			f.properties.Set(key, sh.describe(func(v *yaml.Node) { field(i, yaml.Text(key), v) }))
		}
	}

	sh.byNode[n] = f
	sh.accept(n, object("$ref", yaml.Text("#/$defs/"+f.name)))
	return true
}

// describeEntries notes that n may be a mapping with any keys.
func (sh *shapes) describeEntries(n *yaml.Node, entry func(key, value *yaml.Node)) bool {
	if n.Kind != yaml.Map {
		sh.refuse(n)
		return false
	}
	schema := sh.describe(func(v *yaml.Node) {
		sh.keys++
		entry(yaml.Text(fmt.Sprintf("key%d", sh.keys)), v)
	})
	sh.accept(n, object("type", yaml.Text("object"), "additionalProperties", schema))
	return true
}

// describeItems notes that n may be a list.
func (sh *shapes) describeItems(n *yaml.Node, item func(n *yaml.Node)) bool {
	if n.Kind != yaml.List {
		sh.refuse(n)
		return false
	}
	sh.accept(n, object("type", yaml.Text("array"), "items", sh.describe(item)))
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
