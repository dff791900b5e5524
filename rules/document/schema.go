package document

import (
	"sync"

	"github.com/rlnode/rlnode/internal/yaml"
)

// Schema returns a JSON Schema (2020-12) of the rules file. The schema accepts
// all that [Parse] accepts. It rejects unknown keys, missing ones, and values
// of the wrong kind or outside their bounds. It can't check one part of a
// document against another.
//
// The parser writes the schema itself. In place of every value it reads an
// empty node of each kind, and the decoder's primitives, such as integer and
// word, note what they would accept. So the schema can't disagree with the
// tables that parse.
var Schema = sync.OnceValue(func() []byte {
	d := &decoder{shapes: &shapes{defs: map[*string]*def{}, byNode: map[*yaml.Node]*def{}, name: "document"}}
	root := d.shapes.describe(func(n *yaml.Node) { documentFields.read(d, n, &Document{}, positions{}) })

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
