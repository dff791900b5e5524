package document

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/yaml"
)

// validator checks documents by the parts of JSON Schema that Schema uses.
type validator struct {
	defs     map[string]any
	patterns map[string]*regexp.Regexp
}

func newValidator(t testing.TB) (v *validator, root map[string]any) {
	t.Helper()
	expect.NoError(t, json.Unmarshal(Schema(), &root))
	return &validator{defs: root["$defs"].(map[string]any), patterns: map[string]*regexp.Regexp{}}, root
}

// mistake returns where n breaks schema, and why, or "".
func (v *validator) mistake(schema map[string]any, n *yaml.Node, path string) string {
	for keyword, value := range schema {
		if m := v.breaks(schema, keyword, value, n, path); m != "" {
			return m
		}
	}
	return ""
}

func (v *validator) breaks(schema map[string]any, keyword string, value any, n *yaml.Node, path string) string {
	number, _ := strconv.ParseFloat(n.Text, 64)
	isNumber := n.Kind == yaml.Int || n.Kind == yaml.Float
	switch keyword {
	case "$schema", "title", "$defs":
	case "$ref":
		return v.mistake(v.defs[strings.TrimPrefix(value.(string), "#/$defs/")].(map[string]any), n, path)
	case "anyOf":
		var all []string
		for _, one := range value.([]any) {
			m := v.mistake(one.(map[string]any), n, path)
			if m == "" {
				return ""
			}
			all = append(all, m)
		}
		return strings.Join(all, ", or ")
	case "type":
		types, isList := value.([]any)
		if !isList {
			types = []any{value}
		}
		if !slices.ContainsFunc(types, func(t any) bool { return hasType(n, t.(string), number) }) {
			return fmt.Sprintf("%s: %s is not %v", path, n.Kind, value)
		}
	case "enum":
		if n.Kind != yaml.String || !slices.Contains(value.([]any), any(n.Text)) {
			return fmt.Sprintf("%s: %q is not one of %v", path, n.Text, value)
		}
	case "pattern":
		p := v.patterns[value.(string)]
		if p == nil {
			p = regexp.MustCompile(value.(string))
			v.patterns[value.(string)] = p
		}
		if n.Kind == yaml.String && !p.MatchString(n.Text) {
			return fmt.Sprintf("%s: %q does not match", path, n.Text)
		}
	case "minimum":
		if isNumber && number < value.(float64) {
			return fmt.Sprintf("%s: %s is below %v", path, n.Text, value)
		}
	case "maximum":
		if isNumber && number > value.(float64) {
			return fmt.Sprintf("%s: %s is above %v", path, n.Text, value)
		}
	case "items":
		for i, item := range n.Items {
			if n.Kind != yaml.List {
				break
			}
			if m := v.mistake(value.(map[string]any), item, fmt.Sprintf("%s[%d]", path, i)); m != "" {
				return m
			}
		}
	case "required":
		for _, key := range value.([]any) {
			if n.Kind == yaml.Map && n.Get(key.(string)) == nil {
				return fmt.Sprintf("%s: %s is missing", path, key)
			}
		}
	case "properties", "additionalProperties":
		return v.breaksKeys(schema, keyword, n, path)
	default:
		return "the test does not know " + keyword
	}
	return ""
}

func (v *validator) breaksKeys(schema map[string]any, keyword string, n *yaml.Node, path string) string {
	if n.Kind != yaml.Map {
		return ""
	}
	known, _ := schema["properties"].(map[string]any)
	for key, value := range n.Pairs {
		own, there := known[key.Text].(map[string]any)
		other, isSchema := schema["additionalProperties"].(map[string]any)
		switch {
		case there && keyword == "additionalProperties", !there && keyword == "properties":
			continue
		case !there && !isSchema:
			return fmt.Sprintf("%s: the key %q is unknown", path, key.Text)
		case !there:
			own = other
		}
		if m := v.mistake(own, value, path+"."+key.Text); m != "" {
			return m
		}
	}
	return ""
}

func hasType(n *yaml.Node, name string, number float64) bool {
	switch n.Kind {
	case yaml.Null:
		return name == "null"
	case yaml.Bool:
		return name == "boolean"
	case yaml.Int:
		return name == "integer" || name == "number"
	case yaml.Float:
		return name == "number" || name == "integer" && number == math.Trunc(number)
	case yaml.String:
		return name == "string"
	case yaml.Map:
		return name == "object"
	}
	return name == "array"
}

// mutate changes one part of a document at random.
func mutate(rng *rand.Rand, root *yaml.Node, others []*yaml.Node) {
	var all []*yaml.Node // nodes with items
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if len(n.Items) > 0 {
			all = append(all, n)
		}
		for _, item := range n.Items {
			walk(item)
		}
	}
	walk(root)
	if len(all) == 0 {
		return
	}
	n := all[rng.IntN(len(all))]
	i := rng.IntN(len(n.Items))
	if n.Kind == yaml.Map {
		i |= 1 // a value
	}
	switch rng.IntN(5) {
	case 0: // leave it out
		if n.Kind == yaml.Map {
			n.Items = slices.Delete(n.Items, i-1, i+1)
		} else {
			n.Items = slices.Delete(n.Items, i, i+1)
		}
	case 1: // in brackets
		n.Items[i] = yaml.NewList(n.Items[i])
	case 2: // without brackets
		if v := n.Items[i]; v.Kind == yaml.List && len(v.Items) > 0 {
			n.Items[i] = v.Items[0]
		}
	default:
		n.Items[i] = copyNode(others[rng.IntN(len(others))])
	}
}

func copyNode(n *yaml.Node) *yaml.Node {
	out := *n
	out.Items = make([]*yaml.Node, len(n.Items))
	for i := range n.Items {
		out.Items[i] = copyNode(n.Items[i])
	}
	return &out
}

var allDocuments = flag.Int("documents", 600, "random valid documents; a quarter in a short run; make models has more")

// The schema marks nothing that Parse accepts: random documents, each of which
// differs in some parts from one that has every key.
func TestSchema_marksNothingValid(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	v, root := newValidator(t)
	sources := []string{string(readContract(t)), readConditions(t)}
	for _, name := range StarterNames {
		sources = append(sources, string(StarterSet(name)))
	}
	var documents, values []*yaml.Node
	for _, text := range []string{"1", "0", "1.0", "0.5", "true", "x", "''", "1m", "day", "1d12h",
		".5h", "auto", "null", "[]", "{}", "[x, 1]", "{x: y}", "{limit: 1, per: 1m}",
		"{unlimited: true, unit: x}", "unlimited", "{limit: 2, ttl: 1m, algorithm: concurrency}",
		"12", "007", "'7'", "1e3", "10.0.0.1"} {
		n, err := yaml.Parse(text)
		expect.NoError(t, err)
		values = append(values, n)
	}
	for _, text := range sources {
		n, err := yaml.Parse(text)
		expect.NoError(t, err)
		documents = append(documents, n)
		expect.Equal(t, v.mistake(root, n, ""), "", "a document as it")
	}

	want, valid := *allDocuments, 0
	if testing.Short() {
		want /= 4
	}
	for tries := 0; valid < want && tries < 100*want; tries++ {
		n := copyNode(documents[rng.IntN(len(documents))])
		for range 1 + rng.IntN(4) {
			mutate(rng, n, values)
		}
		text := n.AppendYAML(nil)
		if _, err := Parse(text); err != nil {
			continue
		}
		valid++
		read, err := yaml.Parse(string(text))
		expect.NoError(t, err)
		if m := v.mistake(root, read, ""); m != "" {
			t.Fatalf("seed %d: the schema marks what is valid: %s\n%s", seed, m, text)
		}
	}
	if valid < want {
		t.Errorf("seed %d: got %d valid documents, want %d", seed, valid, want)
	}
}

// The schema marks what a mapping's table and a value's kind and bounds say.
func TestSchema_marksMistakes(t *testing.T) {
	v, root := newValidator(t)
	rule := func(more string) string {
		return "rules: [{name: a, key: [user], limits: [{limit: 1, per: 1m}]" + more + "}]"
	}
	for _, src := range []string{
		"ruels: []", "version: 2", "version: x", "rules: {}", "default: maybe",
		"rules: [{key: [user]}]", "rules: [{name: a}]",
		"rules: [{name: a, key: user}]",
		"rules: [{name: a, key: [user], limits: {limit: 1, per: 1m}}]",
		"rules: [{name: a, key: [[[user]]]}]",
		"rules: [{name: a, key: [user], limits: [{limit: -1, per: 1m}]}]",
		"rules: [{name: a, key: [user], limits: [{limit: 1.5, per: 1m}]}]",
		"rules: [{name: a, key: [user], limits: [{limit: 1}]}]", "rules: [{name: a, key: [user], limits: [{per: 1m}]}]",
		"rules: [{name: a, key: [user], limits: [{unit: tokens}]}]",
		"rules: [{name: a, key: [user], limits: [{ttl: 1m, algorithm: concurrency}]}]",
		"tiers: {free: {limits: [{limit: 1, burst: 2}]}}",
		"rules: [{name: a, key: [user], limits: [{limit: 1, per: 60}]}]",
		"rules: [{name: a, key: [user], limits: [{limit: 1, per: 1 minute}]}]",
		"rules: [{name: a, key: [user], limits: [{limit: 1, per: 1m, algorithm: bucket}]}]",
		rule(", shadow: 1"), rule(", block: 5"), rule(", block: [5m, 1]"), rule(", matches: {}"),
		rule(", match: [x]"), rule(", match: {a: {b: c}}"),
		rule(", cost: {values: {a: 1}}"), rule(", cost: {by: a, values: {a: x}}"),
		rule(", refusal: {status: 399}"), rule(", refusal: {header: {}}"),
		rule(", lease: {threshold: 0.4}"), rule(", lease: {ttl: soon}"),
		rule(", adaptive: {source: x}"), rule(", adaptive: {source: x, steps: [{above: 1}]}"),
		"attributes: user", "attributes: {user: {fold: [upper]}}", "tiers: {free: {}}",
		"subjects: {user: [x]}", "headers: {reset: never}",
		"envoy: [{descriptors: []}]", "envoy: [{domain: a, descriptors: [{value: b}]}]",
		"envoy: [{domain: a, descriptors: [{key: b, descriptors: [{key: c, rate_limit: {requests_per_unit: -1}}]}]}]",
	} {
		n, err := yaml.Parse(src)
		expect.NoError(t, err)
		if _, err := Parse([]byte(src)); err == nil {
			t.Errorf("%s: Parse accepts it", src)
		}
		if v.mistake(root, n, "") == "" {
			t.Errorf("%s: the schema does not mark it", src)
		}
	}
}

// Every key of the rules file is in the schema.
func TestSchema_isComplete(t *testing.T) {
	v, _ := newValidator(t)
	for name, keys := range map[string][]string{"document": documentFields.keys,
		"rules": ruleFields.keys, "limits": limitFields.keys, "defaults": defaultsFields.keys,
		"refusal": refusalFields.keys} {
		properties := v.defs[name].(map[string]any)["properties"].(map[string]any)
		for _, key := range keys {
			if shape, there := properties[key].(map[string]any); !there || len(shape) == 0 {
				t.Errorf("%s.%s: got %v, want a schema", name, key, shape)
			}
		}
	}
}
