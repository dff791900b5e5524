package document

import (
	"errors"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/yaml"
)

// ReadEnvoy reads a configuration file of the reference server. changed lists
// the keys that mean something else here, the keys that were left out because
// documents reject them, and each missing requests_per_unit. The reference
// server reads a missing one as 0, and so does ReadEnvoy. The error is of type
// [Errors]; positions refer to src.
func ReadEnvoy(src []byte) (s *EnvoySpec, changed []Error, err error) {
	root, err := parseText(src)
	if err != nil {
		return nil, nil, err
	}

	d, notes := &decoder{}, &decoder{}
	if root.Kind == yaml.Map && root.Get("domain") == nil && root.Get("envoy") != nil {
		d.fail(root, "this is a rules file, not a configuration of the reference server")
		return nil, nil, d.err()
	}

	notes.adaptEnvoy(root)
	s = d.envoyDomain(root)
	newChecker(&Document{Envoy: []*EnvoySpec{s}}, &d.collector).checkEnvoy()

	for i := range d.errs {
		d.errs[i].Path = strings.TrimPrefix(strings.TrimPrefix(d.errs[i].Path, "envoy[0]"), ".")
	}

	if err := d.err(); err != nil {
		return nil, nil, err
	}

	notes.sort()
	return s, notes.errs, nil
}

// adaptEnvoy rewrites what the reference server accepts and documents reject,
// in a domain, a descriptor or a rate_limit. It notes each change of meaning.
func (dec *decoder) adaptEnvoy(n *yaml.Node) {
	if n.Kind != yaml.Map {
		return
	}

	// The list is filtered in place: a kept pair only overwrites what has been read.
	kept := n.Items[:0]
	for key, v := range n.Pairs {
		mark := dec.push(key.Text)
		keep := true
		switch {
		case key.Text == "metadata":
		case v.Kind == yaml.Null, v.Kind == yaml.String && v.Text == "" &&
			slices.Contains([]string{"value", "name", "unit"}, key.Text):
			keep = false // the reference server treats it as absent
		case key.Text == "share_threshold" && isTrue(v):
			dec.fail(v, "left out, so more is allowed: %s", noShareThreshold)
			keep = false
		case key.Text == "value_to_metric" && isTrue(v):
			dec.fail(v, "left out: %s", noValueToMetric)
			keep = false
		case key.Text == "detailed_metric" && isTrue(v):
			dec.fail(v,
				"metrics are per descriptor as written, not per value in requests; `rlnode top` shows subjects with their values")
		case key.Text == "rate_limit":
			dec.adaptEnvoy(v)
			if v.Kind == yaml.Map && v.Get("requests_per_unit") == nil &&
				(v.Get("unlimited") == nil || !isTrue(v.Get("unlimited"))) {
				dec.fail(v, "requests_per_unit is missing: everything is refused, as by the reference server")
				v.Set("requests_per_unit", integer(0))
			}
		case key.Text == "descriptors":
			for i, item := range v.Items {
				mark := dec.pushIndex(i)
				dec.adaptEnvoy(item)
				dec.path = dec.path[:mark]
			}
		}

		if keep {
			kept = append(kept, key, v)
		}

		dec.path = dec.path[:mark]
	}

	n.Items = kept
}

func isTrue(n *yaml.Node) bool {
	return n.Kind == yaml.Bool && strings.EqualFold(n.Text, "true")
}

// Merge appends the descriptors of other, which must be of the same domain.
func (s *EnvoySpec) Merge(other *EnvoySpec) {
	s.Descriptors = append(s.Descriptors, other.Descriptors...)
}

// EnvoyDocument returns a document with these domains and nothing else. The
// error is of type [Errors], without positions.
func EnvoyDocument(domains []*EnvoySpec) (*Document, error) {
	doc, err := Parse((&Document{Envoy: domains}).node().AppendYAML(nil))
	if mistakes, ok := errors.AsType[Errors](err); ok {
		for i := range mistakes {
			mistakes[i].Line, mistakes[i].Column = 0, 0
		}
		return nil, mistakes
	}
	return doc, err
}
