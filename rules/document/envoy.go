package document

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

// Bounds of the section `envoy`.
const (
	maxEnvoyDomains   = 1000
	maxEnvoyNodes     = 10_000 // descriptors of all domains
	maxEnvoyLevels    = 16     // of descriptors in a domain
	maxEnvoyPath      = 2048   // bytes of EnvoyNode.Path
	maxEnvoyWildcards = 1000   // sibling descriptors with a *: matching tries them one by one
	maxEnvoyStars     = 16     // in one descriptor
	maxEnvoyDetailed  = 1000   // descriptors with their own metrics
	maxEnvoyReplaces  = 100    // of a descriptor
	maxEnvoyMetadata  = 4096   // bytes of a descriptor's metadata as JSON
)

// EnvoySpec is the configuration of one domain of Envoy's rate limit service,
// as written for the reference server.
type EnvoySpec struct {
	Domain      string
	Descriptors []*EnvoyDescriptorSpec
	pos         yaml.Pos
}

// EnvoyDescriptorSpec is a descriptor as written.
type EnvoyDescriptorSpec struct {
	Key         string
	Value       string // may contain *; if empty, any value that no sibling matches
	Limit       *EnvoyLimitSpec
	Shadow      bool
	Quota       bool
	Detailed    bool
	Metadata    *yaml.Node // has no effect; kept for readers of the document
	Descriptors []*EnvoyDescriptorSpec
	pos         yaml.Pos
}

// EnvoyLimitSpec is a rate_limit as written.
type EnvoyLimitSpec struct {
	Unit        string // second … year; empty if the limit has a Per
	Unlimited   bool
	Replaces    []string
	Consistency string
	OnPartition string
	LimitSpec        // Limit is requests_per_unit, which may be 0
	HasRequests bool // requests_per_unit was written
}

// envoyUnits are the reference server's units. All its windows begin at whole
// multiples of their length since 1970.
var envoyUnits = []struct {
	name   string
	length time.Duration
}{
	{"second", time.Second}, {"minute", time.Minute}, {"hour", time.Hour}, {"day", day},
	{"week", 7 * day}, {"month", 30 * day}, {"year", 365 * day},
}

// EnvoyUnit returns the length of a unit, or 0.
func EnvoyUnit(name string) time.Duration {
	for _, u := range envoyUnits {
		if u.name == name {
			return u.length
		}
	}
	return 0
}

// The reasons for rejecting keys of the reference server.
const (
	noShareThreshold = "each value that a wildcard matches has its own counter; have Envoy send one value for all of them"
	noValueToMetric  = "values from requests would create metrics without bound; `rlnode top` shows subjects with their values"
)

// falseOnlyField returns a key that may only be false.
func falseOnlyField[T any](key, why string) field[T] {
	return field[T]{key, func(d *decoder, n *yaml.Node, _ *T) {
		if d.boolean(n) {
			d.fail(n, "%s is not supported: %s", key, why)
		}
	}, func(*T) *yaml.Node { return nil }}
}

var (
	envoyFields = fieldsOf(
		of("domain", codec[string]{(*decoder).envoyText, text}, func(s *EnvoySpec) *string { return &s.Domain }),
		field[EnvoySpec]{"descriptors", func(d *decoder, n *yaml.Node, s *EnvoySpec) {
			s.Descriptors = d.envoyDescriptors(n, envoyDescriptorFields)
		}, func(s *EnvoySpec) *yaml.Node { return nilIfEmpty(listNode(s.Descriptors, envoyDescriptorFields.node)) }},
	)

	envoyDescriptorFields = newEnvoyDescriptorFields()

	envoyLimitFields = fieldsOf(
		of("unit", codec[string]{(*decoder).envoyUnit, text}, func(l *EnvoyLimitSpec) *string { return &l.Unit }),
		field[EnvoyLimitSpec]{"per",
			func(d *decoder, n *yaml.Node, l *EnvoyLimitSpec) { d.per(n, &l.LimitSpec) },
			func(l *EnvoyLimitSpec) *yaml.Node { return text(l.Per) }},
		field[EnvoyLimitSpec]{"requests_per_unit",
			func(d *decoder, n *yaml.Node, l *EnvoyLimitSpec) { l.Limit = d.integer(n, 0, 1<<32-1) },
			(*EnvoyLimitSpec).requestsNode},
		of("unlimited", flagCodec, func(l *EnvoyLimitSpec) *bool { return &l.Unlimited }),
		of("name", nameCodec, func(l *EnvoyLimitSpec) *string { return &l.Name }),
		of("replaces", codec[[]string]{(*decoder).envoyReplaces, unlessEmpty(func(names []string) *yaml.Node {
			return listNode(names, func(name string) *yaml.Node { return replaceFields.node(&name) }).OnOneLine()
		})}, func(l *EnvoyLimitSpec) *[]string { return &l.Replaces }),
		of("algorithm", algorithmCodec, func(l *EnvoyLimitSpec) *string { return &l.Algorithm }),
		of("burst", integerCodec(1, int64(algorithms.MaxAmount)), func(l *EnvoyLimitSpec) *int64 { return &l.Burst }),
		of("consistency", wordCodec("exact", "hybrid", "local"),
			func(l *EnvoyLimitSpec) *string { return &l.Consistency }),
		of("on_partition", wordCodec(PartitionWords[:]...), func(l *EnvoyLimitSpec) *string { return &l.OnPartition }),
	)

	replaceFields = fieldsOf(of("name", nameCodec, func(name *string) *string { return name }))
)

// newEnvoyDescriptorFields returns the keys of a descriptor. Descriptors nest,
// so the table refers to itself.
func newEnvoyDescriptorFields() *fields[EnvoyDescriptorSpec] {
	f := &fields[EnvoyDescriptorSpec]{}

	limitNode := unlessZero(func(l *EnvoyLimitSpec) *yaml.Node { return envoyLimitFields.node(l).OnOneLine() })
	metadataNode := func(n *yaml.Node) *yaml.Node { return n }

	*f = *fieldsOf(
		of("key", codec[string]{(*decoder).envoyText, text}, func(s *EnvoyDescriptorSpec) *string { return &s.Key }),
		of("value", codec[string]{(*decoder).envoyValue, text},
			func(s *EnvoyDescriptorSpec) *string { return &s.Value }),
		of("rate_limit", codec[*EnvoyLimitSpec]{(*decoder).envoyLimit, limitNode},
			func(s *EnvoyDescriptorSpec) **EnvoyLimitSpec { return &s.Limit }),

		of("shadow_mode", flagCodec, func(s *EnvoyDescriptorSpec) *bool { return &s.Shadow }),
		of("quota_mode", flagCodec, func(s *EnvoyDescriptorSpec) *bool { return &s.Quota }),
		of("detailed_metric", flagCodec, func(s *EnvoyDescriptorSpec) *bool { return &s.Detailed }),
		falseOnlyField[EnvoyDescriptorSpec]("value_to_metric", noValueToMetric),
		falseOnlyField[EnvoyDescriptorSpec]("share_threshold", noShareThreshold),
		of("metadata", codec[*yaml.Node]{(*decoder).envoyMetadata, metadataNode},
			func(s *EnvoyDescriptorSpec) **yaml.Node { return &s.Metadata }),

		field[EnvoyDescriptorSpec]{"descriptors", func(d *decoder, n *yaml.Node, s *EnvoyDescriptorSpec) {
			s.Descriptors = d.envoyDescriptors(n, f)
		}, func(s *EnvoyDescriptorSpec) *yaml.Node { return nilIfEmpty(listNode(s.Descriptors, f.node)) }},
	)
	return f
}

func (l *EnvoyLimitSpec) requestsNode() *yaml.Node {
	if !l.HasRequests {
		return nil
	}
	return integer(l.Limit)
}

// envoy reads the section.
func (dec *decoder) envoy(n *yaml.Node) (list []*EnvoySpec) {
	if n.Kind == yaml.List && len(n.Items) > maxEnvoyDomains {
		dec.fail(n, "%d domains; at most %d are allowed", len(n.Items), maxEnvoyDomains)
		return nil
	}
	dec.eachItem(n, func(n *yaml.Node) { list = append(list, dec.envoyDomain(n)) })
	return list
}

func (dec *decoder) envoyDomain(n *yaml.Node) *EnvoySpec {
	s := &EnvoySpec{pos: n.Pos}
	if envoyFields.read(dec, n, s, nil) {
		dec.need(n, "domain", "domain is missing")
	}
	return s
}

func (dec *decoder) envoyDescriptors(n *yaml.Node, f *fields[EnvoyDescriptorSpec]) (list []*EnvoyDescriptorSpec) {
	if dec.envoyLevel == maxEnvoyLevels {
		dec.fail(n, "more than %d levels of descriptors", maxEnvoyLevels)
		return nil
	}

	before := dec.envoyNodes
	dec.envoyNodes += len(n.Items)
	if dec.envoyNodes > maxEnvoyNodes {
		// Only the first list that exceeds the bound is reported.
		if before <= maxEnvoyNodes {
			dec.fail(n, "more than %d descriptors in all domains", maxEnvoyNodes)
		}
		return nil
	}

	dec.envoyLevel++
	dec.eachItem(n, func(n *yaml.Node) {
		s := &EnvoyDescriptorSpec{pos: n.Pos}
		if f.read(dec, n, s, nil) {
			dec.need(n, "key", "key is missing")
		}
		list = append(list, s)
	})
	dec.envoyLevel--
	return list
}

// envoyText reads a domain or a key.
func (dec *decoder) envoyText(n *yaml.Node) string {
	s := dec.envoyValue(n)
	if s == "" && n.Text == "" && n.Kind == yaml.String {
		dec.fail(n, "this can't be empty")
	}
	return s
}

// envoyValue reads a text that becomes part of a path.
func (dec *decoder) envoyValue(n *yaml.Node) string {
	s, ok := dec.text(n)
	switch {
	case !ok:
	case len(s) > MaxValueBytes:
		dec.fail(n, "this can't be longer than %d bytes", MaxValueBytes)
	case strings.IndexFunc(s, unicode.IsControl) >= 0:
		dec.fail(n, "this can't contain control characters")
	case strings.Count(s, "*") > maxEnvoyStars:
		dec.fail(n, "more than %d *", maxEnvoyStars)
	default:
		return s
	}

	return ""
}

func (dec *decoder) envoyUnit(n *yaml.Node) string {
	s, ok := dec.text(n)
	if !ok {
		return ""
	}

	unit := strings.ToLower(s)
	if EnvoyUnit(unit) == 0 {
		var names []string
		for _, u := range envoyUnits {
			names = append(names, u.name)
		}
		dec.fail(n, "%q is not one of %s%s", Shorten(s), strings.Join(names, ", "), suggest(s, names))
		return ""
	}

	return unit
}

func (dec *decoder) envoyReplaces(n *yaml.Node) (names []string) {
	if n.Kind == yaml.List && len(n.Items) > maxEnvoyReplaces {
		dec.fail(n, "%d names; at most %d are allowed", len(n.Items), maxEnvoyReplaces)
		return nil
	}
	dec.eachItem(n, func(n *yaml.Node) {
		name := ""
		if replaceFields.read(dec, n, &name, nil) {
			dec.need(n, "name", "name is missing: the name of the limit that this one replaces")
		}
		names = append(names, name)
	})
	return names
}

// envoyMetadata reads metadata, which may be any mapping that JSON can represent.
func (dec *decoder) envoyMetadata(n *yaml.Node) *yaml.Node {
	mistakes := len(dec.errs)
	if dec.isAny(n) || !dec.expectKind(n, yaml.Map) {
		return nil
	}

	dec.plainValue(n)
	if len(dec.errs) > mistakes || len(n.Items) == 0 {
		return nil
	}
	if size := len(n.AppendJSON(nil)); size > maxEnvoyMetadata {
		dec.fail(n, "%d bytes as JSON; at most %d are allowed", size, maxEnvoyMetadata)
		return nil
	}

	return n
}

// plainValue checks that JSON can represent n.
func (dec *decoder) plainValue(n *yaml.Node) {
	switch n.Kind {
	case yaml.Map:
		dec.eachEntry(n, func(_, v *yaml.Node) { dec.plainValue(v) })
	case yaml.List:
		dec.eachItem(n, dec.plainValue)
	case yaml.Null:
		setText(n, "null")
	case yaml.Bool:
		setText(n, strings.ToLower(n.Text))
	case yaml.Int, yaml.Float:
		if !json.Valid([]byte(n.Text)) {
			dec.fail(n, "JSON can't represent %s", Shorten(n.Text))
		}
	}
}

// setText sets the text of n, unless n already has it. Documents share
// metadata, and may be read at the same time. What they share has such a text
// already.
func setText(n *yaml.Node, text string) {
	if n.Text != text {
		n.Text = text
	}
}

func (dec *decoder) envoyLimit(n *yaml.Node) *EnvoyLimitSpec {
	l := &EnvoyLimitSpec{}
	at := positions{}
	l.pos = n.Pos

	if !envoyLimitFields.read(dec, n, l, at) {
		return l
	}

	has := func(key string) bool { _, ok := at[key]; return ok }
	fail := func(key, format string, args ...any) {
		if has(key) {
			dec.add(at[key], string(appendKey(slices.Clone(dec.path), key)), format, args...)
		}
	}
	kind := algorithms.FixedWindow
	if l.Algorithm != "" {
		kind, _ = algorithms.ParseKind(l.Algorithm)
	}

	l.HasRequests = has("requests_per_unit")

	switch {
	case l.Unlimited:
		for _, key := range []string{"unit", "per", "algorithm", "burst"} {
			fail(key, "unlimited excludes %s", key)
		}
		return l
	case has("unit") && has("per"):
		fail("per", "unit and per exclude each other")
	case !has("unit") && !has("per"):
		dec.fail(n, "unit is missing: the length of the window; for other lengths, use per")
	}

	if !l.HasRequests {
		dec.fail(n, "requests_per_unit is missing; 0 refuses everything")
	}
	if !kind.IsBucket() {
		fail("burst", "burst is for token-bucket and leaky-bucket, not for %s", kind)
	}
	if kind != algorithms.FixedWindow && l.calendar() {
		fail("algorithm", "calendar windows are for fixed-window only, per is %s", l.Per)
	}

	return l
}

// Text returns the descriptor as matching compares it: its key, or its key, an
// underscore and its value.
func (s *EnvoyDescriptorSpec) Text() string {
	if s.Value == "" {
		return s.Key
	}
	return s.Key + "_" + s.Value
}
