package document

import (
	"strconv"

	"github.com/rlnode/rlnode/internal/yaml"
)

// nilIfEmpty returns nil for an empty collection, so that its key is left out.
func nilIfEmpty(collection *yaml.Node) *yaml.Node {
	if len(collection.Items) == 0 {
		return nil
	}
	return collection
}

func listNode[V any](list []V, node func(V) *yaml.Node) *yaml.Node {
	n := yaml.NewList()
	for _, v := range list {
		n.Items = append(n.Items, node(v))
	}
	return n
}

func mapNode[V any](list []V, key func(V) string, node func(V) *yaml.Node) *yaml.Node {
	n := yaml.NewMap()
	for _, v := range list {
		n.Set(key(v), node(v))
	}
	return n
}

func textsNode(texts []string) *yaml.Node { return listNode(texts, yaml.Text).OnOneLine() }

// object returns a mapping of keys and values in turn.
func object(pairs ...any) *yaml.Node {
	n := yaml.NewMap()
	for i := 0; i+1 < len(pairs); i += 2 {
		n.Set(pairs[i].(string), pairs[i+1].(*yaml.Node))
	}
	return n
}

// text returns nil for an empty text, so that its key is left out.
func text(s string) *yaml.Node {
	if s == "" {
		return nil
	}
	return yaml.Text(s)
}

func integer[N int | int64](v N) *yaml.Node {
	return yaml.Scalar(yaml.Int, strconv.FormatInt(int64(v), 10))
}

func fraction(v float64) *yaml.Node {
	return yaml.Scalar(yaml.Float, strconv.FormatFloat(v, 'f', -1, 64))
}

func boolean(v bool) *yaml.Node { return yaml.Scalar(yaml.Bool, strconv.FormatBool(v)) }
