package rules

import (
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/yaml"
)

// ListTiers returns as JSON objects, sorted by name, the first n tiers after
// the one named after. If there are more, next is the name of the last one
// returned.
func (d *Document) ListTiers(after string, n int) (list []string, next string) {
	tiers := slices.Clone(d.Tiers)
	slices.SortFunc(tiers, func(a, b *TierSpec) int { return strings.Compare(a.Name, b.Name) })
	return page(tiers, after, n, "name", func(t *TierSpec) string { return t.Name })
}

// page returns the first n of the sorted pieces after the one named after. Each
// object has the piece's name in field.
func page[P interface{ node() *yaml.Node }](
	pieces []P, after string, n int, field string, name func(P) string,
) (list []string, next string) {
	from := 0
	if after != "" {
		at, found := slices.BinarySearchFunc(pieces, after,
			func(p P, v string) int { return strings.Compare(name(p), v) })
		from = at
		if found {
			from++
		}
	}

	for _, p := range pieces[from:min(len(pieces), from+n)] {
		object := yaml.NewMap()
		object.Set(field, yaml.Text(name(p)))
		object.Items = append(object.Items, p.node().Items...)
		list = append(list, string(object.AppendJSON(nil)))
	}

	if from+n < len(pieces) {
		next = name(pieces[from+n-1])
	}

	return list, next
}
