package document

import (
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

// InlineSpec is a document's section about inline limits.
type InlineSpec struct {
	Refuse      bool     // allow: false
	Namespaces  []string // names, or globs with *; empty for all
	MaxLimit    int64    // 0 for no bound
	MaxPer      Span
	OnPartition string
}

var inlineFields = fieldsOf(
	of("allow", allowCodec, func(s *InlineSpec) *bool { return &s.Refuse }),
	of("namespaces",
		codec[[]string]{(*decoder).namespaces, func(list []string) *yaml.Node { return nilIfEmpty(textsNode(list)) }},
		func(s *InlineSpec) *[]string { return &s.Namespaces }),
	of("max_limit", integerCodec(1, int64(algorithms.MaxAmount)), func(s *InlineSpec) *int64 { return &s.MaxLimit }),
	of("max_per", spanCodec(algorithms.MinWindow, algorithms.MaxWindow),
		func(s *InlineSpec) *Span { return &s.MaxPer }),
	of("on_partition", wordCodec(PartitionWords[:]...), func(s *InlineSpec) *string { return &s.OnPartition }),
)

// allowCodec reads and writes the key "allow", which is the opposite of InlineSpec.Refuse.
var allowCodec = codec[bool]{
	func(d *decoder, n *yaml.Node) bool { return d.expectKind(n, yaml.Bool) && !d.boolean(n) },
	func(refuse bool) *yaml.Node { return boolean(!refuse) },
}

// maxNamespaces bounds the namespaces of inline limits that a document names:
// each has its own metrics.
const maxNamespaces = 100

func (dec *decoder) inline(n *yaml.Node) *InlineSpec {
	s := &InlineSpec{}
	inlineFields.read(dec, n, s, nil)
	return s
}

func (dec *decoder) namespaces(n *yaml.Node) (list []string) {
	dec.eachItem(n, func(n *yaml.Node) {
		name := dec.name(n)
		if name != "" && slices.Contains(list, name) {
			dec.fail(n, "duplicate namespace %q", name)
		}
		list = append(list, name)
	})
	if len(n.Items) == 0 || len(list) > maxNamespaces {
		dec.fail(n, "expected 1 to %d namespaces", maxNamespaces)
	}
	return list
}
