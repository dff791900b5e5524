package rules

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

// entries reads "key=value key=value".
func envoyEntries(text string) (list []EnvoyEntry) {
	for _, e := range strings.Fields(text) {
		key, value, _ := strings.Cut(e, "=")
		list = append(list, EnvoyEntry{key, value})
	}
	return list
}

const envoyDocument = `
envoy:
  - domain: edge
    descriptors:
      - {key: k, value: v, rate_limit: {unit: Minute, requests_per_unit: 1}}
      - {key: k, value: v*, rate_limit: {unit: minute, requests_per_unit: 2}}
      - {key: k, value: "*x", rate_limit: {unit: minute, requests_per_unit: 3}}
      - {key: k, rate_limit: {unit: minute, requests_per_unit: 4}}
      - key: path
        value: /a*/b*c
        detailed_metric: true
        rate_limit: {unit: DAY, requests_per_unit: 5, name: few, replaces: [{name: many}, {name: most}]}
        descriptors:
          - {key: user, rate_limit: {per: 10m, requests_per_unit: 6, algorithm: token-bucket, burst: 9, consistency: exact, on_partition: deny}}
          - {key: open, rate_limit: {unlimited: true}, shadow_mode: true, quota_mode: true}
      - {key: closed, rate_limit: {unit: hour, requests_per_unit: 0, algorithm: token-bucket}, shadow_mode: true}
      - {key: none, metadata: {a: [1, ~, {b: True}]}}
      - {key: above, descriptors: [{key: below, rate_limit: {unit: year, requests_per_unit: 7}, quota_mode: true}]}
  - domain: empty
`

func TestEnvoyMatch(t *testing.T) {
	set := keyedSet(t, envoyDocument)
	if !set.HasEnvoy() || set.EnvoyDomain("other") != nil ||
		set.EnvoyDomain("empty").Match(envoyEntries("k=v")) != nil {
		t.Error("the set has other domains")
	}
	d := set.EnvoyDomain("edge")
	for _, tt := range []struct{ descriptor, want string }{
		{"k=v", "edge.k_v"}, {"k=vx", "edge.k_v*"}, {"k=wx", "edge.k_*x"}, {"k=w", "edge.k"},
		{"k=", "edge.k"}, {"k=V", "edge.k"},
		{"k=v k=v", ""}, {"other=v", ""}, {"", ""}, {"k_v=anything", "edge.k_v*"}, {"none=", ""}, {"none=x k=v", ""},
		{"path=/a1/b2c", "edge.path_/a*/b*c"}, {"path=/a/bc", "edge.path_/a*/b*c"}, {"path=/a/b", ""},
		{"path=/a/bc user=u", "edge.path_/a*/b*c.user"}, {"path=/a/bc user=u k=v", ""}, {"user=u", ""},
		{"path=/a/bc open=1", "edge.path_/a*/b*c.open"}, {"above=1", ""},
		{"above=1 below=1", "edge.above.below"}, {"closed=1", "edge.closed"},
		{"k=" + strings.Repeat("v", 300), "edge.k_v*"}, {"k=" + strings.Repeat("v", 5000), "edge.k_v*"},
	} {
		n, have := d.Match(envoyEntries(tt.descriptor)), ""
		if n != nil {
			have = n.Path
		}
		expect.Equal(t, have, tt.want, "%q", shorten(tt.descriptor))
	}
}

func TestEnvoyNodes(t *testing.T) {
	set := keyedSet(t,
		"defaults: {algorithm: sliding-window, on_limit: delay, on_partition: full}\nrules: [{name: edge.path_/a*/b*c, key: [], limits: [{limit: 1, per: 1m}]}]"+envoyDocument)
	d := set.EnvoyDomain("edge")
	node := func(descriptor string) *EnvoyNode { return d.Match(envoyEntries(descriptor)) }
	few, bucket, open, closed, quota := node("path=/a/bc"), node("path=/a/bc user=u"), node("path=/a/bc open=1"), node("closed=1"), node("above=1 below=1")
	if r := few.Rule; few.Domain != "edge" || few.LimitName != "few" ||
		!slices.Equal(few.Replaces, []string{"many", "most"}) || few.Unit != "day" ||
		few.Requests != 5 ||
		r.Name != few.Path || r.ownLimits[0].Name != "few" || r.Consistency != Hybrid ||
		r.OnPartition != Full || r.OnLimit != Refuse ||
		r.ownLimits[0].Limit != (algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 5,
			Window: 24 * time.Hour}) || r.Inline {
		t.Errorf("have %+v, %+v, %+v", few, few.Rule, few.Rule.ownLimits[0])
	}
	if r := bucket.Rule; bucket.Unit != "" || r.Consistency != Exact ||
		r.OnPartition != RefuseUncounted || !slices.Equal(r.Key, []string{"path", "user"}) ||
		r.ownLimits[0].Limit != (algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 6, Burst: 9,
			Window: 10 * time.Minute}) {
		t.Errorf("have %+v, %+v, %+v", bucket, bucket.Rule, bucket.Rule.ownLimits[0])
	}
	if open.Rule != nil || !open.Unlimited || !open.Shadow || !open.Quota || open.Detailed {
		t.Errorf("have %+v", open)
	}
	if r := closed.Rule; closed.Requests != 0 || !r.Shadow || r.OnPartition != RefuseUncounted ||
		r.ownLimits[0].Limit != (algorithms.Limit{Kind: algorithms.FixedWindow, Window: time.Hour}) {
		t.Errorf("have %+v, %+v, %+v", closed, closed.Rule, closed.Rule.ownLimits[0])
	}
	if quota.Shadow || !quota.Quota || quota.Rule.ownLimits[0].Window != "365d" {
		t.Errorf("have %+v, %+v", quota, quota.Rule.ownLimits[0])
	}
	// A path with its own metrics shares them with the rule of that name.
	if want := []string{"edge.path_/a*/b*c", "inline", "envoy/edge",
		"envoy/empty"}; !slices.Equal(set.Names(),
		want) || few.Rule.Index != 0 || bucket.Rule.Index != 2 {
		t.Errorf("have %q, %d, %d", set.Names(), few.Rule.Index, bucket.Rule.Index)
	}
	if len(set.Rules) != 1 {
		t.Error("descriptors count as rules")
	}
	expect.Equal(t, set.Document.FeatureLevel(), 2, "the section has level")
}

// TestEnvoyByPath: a node's rule is found by its path, and its subjects by the
// values of their entries.
func TestEnvoyByPath(t *testing.T) {
	set := keyedSet(t,
		"lists: {deny: [{k: w}]}\nrules: [{name: edge.k, key: [k], limits: [{limit: 1, per: 1m}]}]"+envoyDocument)
	var m Match
	for _, tt := range []struct {
		path, descriptor string
		key              []string
	}{
		{"edge.k_v", "k=v", []string{"v"}},
		{"edge.k_v*", "k=vw", []string{"vw"}},
		{"edge.path_/a*/b*c.user", "path=/a/bc user=", []string{"/a/bc", ""}},
	} {
		descriptor := envoyEntries(tt.descriptor)
		n := set.EnvoyDomain("edge").Match(descriptor)
		if r := set.Rule(tt.path); r != n.Rule || set.MatchKey(r, tt.key, &m) != nil ||
			len(m.Hits) != 1 || m.Hits[0].Subject != n.Subject(descriptor) || m.List != Unlisted {
			t.Errorf("%s: have %v, %+v", tt.path, r, m.Hits)
		} else if have := r.NormalKey(tt.key); !slices.Equal(have, tt.key) {
			t.Errorf("%s: have key %q, want %q", tt.path, have, tt.key)
		}
	}
	for path, key := range map[string][]string{"edge.k_v": {"w"}, "edge.k_v*": {"v"}, "edge.path_/a*/b*c.user": {"u"}} {
		expect.ErrorIs(t, set.MatchKey(set.Rule(path), key, &m), ErrKey, "%s of %q", path, key)
	}
	if set.Match([]Attribute{{"k", "v"}}, set.Rule("edge.k_v"), &m); len(m.Hits) != 0 {
		t.Error("a node applies to attributes")
	}
	if set.Rule("edge.k").Envoy || set.Rule("edge.path_/a*/b*c.open") != nil || set.Rule("edge.none") != nil {
		t.Error("have another rule")
	}
}

// TestEnvoyUnits: a unit's windows begin at whole multiples of its length since
// 1970, as those of the reference server do.
func TestEnvoyUnits(t *testing.T) {
	for unit, seconds := range map[string]int64{"second": 1, "minute": 60, "hour": 3600,
		"day": 86400, "week": 604800, "month": 2592000, "year": 31536000} {
		set := keyedSet(t,
			"envoy: [{domain: d, descriptors: [{key: k, rate_limit: {unit: "+unit+", requests_per_unit: 1}}]}]")
		l := set.EnvoyDomain("d").Match(envoyEntries("k=v")).Rule.ownLimits[0]
		for range 1000 {
			now := algorithms.At(time.Unix(rand.Int64N(1<<33), rand.Int64N(1e9)))
			s, ok := l.Take(algorithms.State{}, now, 1)
			want := seconds*1e9 - now.Wall%(seconds*1e9)
			if have := l.Describe(s, now, 1, ok); int64(have.ResetAfter) != want || int64(l.WindowLeft(now)) != want {
				t.Fatalf("%s at %d: have %v, want %v", unit, now.Wall, have.ResetAfter, time.Duration(want))
			}
		}
	}
}

// TestEnvoyIdentity: all keys and values tell counters apart, and the domain;
// the path, the amount and the name don't.
func TestEnvoyIdentity(t *testing.T) {
	set := keyedSet(t, `
rules: [{name: d, key: [k], limits: [{limit: 1, per: 1m}]}]
envoy:
  - {domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 1}}]}
  - {domain: dk, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 1}}]}
`)
	seen := map[Hash]string{}
	add := func(h Hash, what string) {
		if other, taken := seen[h]; taken {
			t.Errorf("%s and %s have the same subject", what, other)
		}
		seen[h] = what
	}
	for _, domain := range []string{"d", "dk"} {
		n := set.EnvoyDomain(domain).Match(envoyEntries("k=v"))
		for _, descriptor := range []string{"", "k=v", "k=", "=k", "k=v k=v", "kv=", "k=v l=",
			"k=vl", "k= v=l", "kk=v", "k=v\x00", "l=v k=v"} {
			add(n.Subject(envoyEntries(descriptor)), domain+" "+descriptor)
		}
	}
	var m Match
	set.Match([]Attribute{{"k", "v"}}, nil, &m)
	add(m.Hits[0].Subject, "a rule's")
	inline, _ := set.LocateInline(&InlineSubject{Namespace: "d", Key: []string{"k", "v"}})
	add(inline, "an inline limit's")

	again := keyedSet(t,
		"envoy: [{domain: d, descriptors: [{key: k, value: v, rate_limit: {unit: minute, requests_per_unit: 9, name: n}}]}]")
	a, b := set.EnvoyDomain("d").Match(envoyEntries("k=v")), again.EnvoyDomain("d").Match(envoyEntries("k=v"))
	if a.Path == b.Path || a.Subject(envoyEntries("k=v")) != b.Subject(envoyEntries("k=v")) ||
		a.Rule.ownLimits[0].ID != b.Rule.ownLimits[0].ID {
		t.Error("a counter is lost when its limit changes")
	}
	other, err := Compile(again.Document, 1)
	expect.NoError(t, err)
	if n := other.Keyed([]byte("another")).EnvoyDomain("d").Match(envoyEntries("k=v")); n.Subject(envoyEntries("k=v")) == a.Subject(envoyEntries("k=v")) {
		t.Error("subjects don't depend on the secret")
	}
	expect.EqualSlices(t, a.Key(envoyEntries("k=v l=w")), []string{"v", "w"}, "key")
}

func TestEnvoyMistakes(t *testing.T) {
	in := func(descriptors string) string { return "envoy: [{domain: d, descriptors: [" + descriptors + "]}]" }
	lim := func(limit string) string { return in("{key: k, rate_limit: {" + limit + "}}") }
	const at = "envoy[0].descriptors[0]"
	deep := strings.Repeat("{key: k, descriptors: [", 16) + "{key: k}" + strings.Repeat("]}", 16)
	for _, tt := range []struct {
		name, src string
		want      []string
	}{
		{"no list", "envoy: {domain: d}", []string{"1:8 envoy|expected a list"}},
		{"no domain", "envoy: [{descriptors: []}]", []string{"1:9 envoy[0]|domain is missing"}},
		{"empty domain", "envoy: [{domain: ''}]", []string{"1:18 envoy[0].domain|can't be empty"}},
		{"control", "envoy: [{domain: \"a\\n\"}]", []string{"1:18 envoy[0].domain|control characters"}},
		{"domain twice", "envoy:\n  - domain: a\n  - domain: b\n  - domain: a",
			[]string{`4:5 envoy[2].domain|the domain "a" is taken by envoy[0]`}},
		{"unknown key of a domain", "envoy: [{domain: d, descriptor: []}]",
			[]string{"1:21 envoy[0].descriptor|did you mean descriptors?"}},
		{"no key", in("{value: v}"), []string{"1:35 " + at + "|key is missing"}},
		{"empty key", in("{key: ''}"), []string{"1:41 " + at + ".key|can't be empty"}},
		{"long value", in("{key: k, value: " + strings.Repeat("x", 1025) + "}"),
			[]string{"1:51 " + at + ".value|longer than 1024"}},
		{"many stars", in("{key: k, value: '" + strings.Repeat("*", 17) + "'}"),
			[]string{"1:51 " + at + ".value|more than 16 *"}},
		{"unknown key", in("{key: k, shadow: true}"), []string{"1:44 " + at + ".shadow|unknown key"}},
		{"shadow_mode inside", lim("unit: day, requests_per_unit: 1, shadow_mode: true"),
			[]string{"1:90 " + at + ".rate_limit.shadow_mode|unknown key"}},
		{"twice", in("{key: k}, {key: k, value: v}, {key: k}"),
			[]string{`1:65 envoy[0].descriptors[2]|"k" is a duplicate of descriptors[0]`}},
		{"twice, as the reference server sees it", in("{key: k_v}, {key: k, value: v}"),
			[]string{`1:47 envoy[0].descriptors[1]|"k_v" is a duplicate of descriptors[0]`}},
		{"no unit", lim("requests_per_unit: 1"), []string{"1:56 " + at + ".rate_limit|unit is missing"}},
		{"unit", lim("unit: dya, requests_per_unit: 1"),
			[]string{"1:63 " + at +
				`.rate_limit.unit|"dya" is not one of second, minute, hour, day, week, month, year; did you mean day?`}},
		{"unit unknown", lim("unit: unknown, requests_per_unit: 1"),
			[]string{"1:63 " + at + ".rate_limit.unit|is not one of"}},
		{"unit and per", lim("unit: day, per: 1d, requests_per_unit: 1"),
			[]string{"1:68 " + at + ".rate_limit.per|unit and per exclude each other"}},
		{"no requests", lim("unit: day"),
			[]string{"1:56 " + at + ".rate_limit|requests_per_unit is missing; 0 refuses everything"}},
		{"many requests", lim("unit: day, requests_per_unit: 4294967296"),
			[]string{"1:87 " + at + ".rate_limit.requests_per_unit|is not in 0…4294967295"}},
		{"unlimited with a unit", lim("unit: day, unlimited: true"),
			[]string{"1:57 " + at + ".rate_limit.unit|unlimited excludes unit"}},
		{"burst", lim("unit: day, requests_per_unit: 1, burst: 2"),
			[]string{"1:90 " + at + ".rate_limit.burst|not for fixed-window"}},
		{"calendar", lim("per: day, requests_per_unit: 1, algorithm: token-bucket"),
			[]string{"1:89 " + at + ".rate_limit.algorithm|calendar windows"}},
		{"empty name in replaces", lim("unit: day, requests_per_unit: 1, replaces: [{name: ''}]"),
			[]string{"1:108 " + at + ".rate_limit.replaces[0].name|can't be empty"}},
		{"no name in replaces", lim("unit: day, requests_per_unit: 1, replaces: [{}]"),
			[]string{"1:101 " + at + ".rate_limit.replaces[0]|name is missing"}},
		{"replaces itself", lim("unit: day, requests_per_unit: 1, name: a, replaces: [{name: a}]"),
			[]string{"1:56 " + at + `.rate_limit.replaces|"a" is the limit's own name`}},
		{"share_threshold", in("{key: k, value: v*, share_threshold: true}"),
			[]string{"1:72 " + at + ".share_threshold|is not supported"}},
		{"value_to_metric", in("{key: k, value_to_metric: true}"),
			[]string{"1:61 " + at + ".value_to_metric|is not supported"}},
		{"metadata", in("{key: k, metadata: [1]}"), []string{"1:54 " + at + ".metadata|expected a mapping"}},
		{"number in metadata", in("{key: k, metadata: {a: .nan}}"),
			[]string{"1:58 " + at + ".metadata.a|JSON can't represent .nan"}},
		{"large metadata", in("{key: k, metadata: {a: " + strings.Repeat("x", 4096) + "}}"),
			[]string{"1:54 " + at + ".metadata|4104 bytes as JSON; at most 4096 are allowed"}},
		{"17 levels", in(deep),
			[]string{"1:402 " + at + strings.Repeat(".descriptors[0]", 15) + ".descriptors|more than 16 levels"}},
		{"long path",
			in("{key: " + strings.Repeat("a", 1024) + ", descriptors: [{key: " + strings.Repeat("b", 1022) + "}]}"),
			[]string{"1:1081 " + at + ".descriptors[0]|have 2049 bytes; at most 2048 are allowed"}},
		{"1,001 domains", "envoy: [" + strings.Repeat("1,", 1001) + "]",
			[]string{"1:8 envoy|1001 domains; at most 1000 are allowed"}},
		{"101 replaced",
			lim("unit: day, requests_per_unit: 1, replaces: [" + strings.Repeat("1,", 101) + "]"),
			[]string{"1:100 " + at + ".rate_limit.replaces|101 names; at most 100 are allowed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.src))
			checkErrors(t, err, tt.want)
		})
	}
}

// TestEnvoyCounts: mistakes that only the whole document shows.
func TestEnvoyCounts(t *testing.T) {
	many := func(n int, descriptor string) string {
		var b strings.Builder
		b.WriteString("envoy:\n  - domain: d\n    descriptors:\n")
		for i := range n {
			fmt.Fprintf(&b, "      - "+descriptor+"\n", i)
		}
		return b.String()
	}
	const limit = "rate_limit: {unit: day, requests_per_unit: 1}}"
	for _, tt := range []struct {
		most            int
		descriptor, why string
	}{
		{10_000, "{key: k, value: v%d, " + limit,
			"4:7: envoy[0].descriptors: more than 10000 descriptors in all domains"},
		{1000, "{key: k, value: 'v%d*', " + limit,
			"4:9: envoy[0].descriptors: 1001 sibling descriptors with *; at most 1000 are allowed"},
		{1000, "{key: k, value: v%d, detailed_metric: true, " + limit,
			"envoy: 1001 descriptors with detailed_metric; at most 1000 are allowed"},
	} {
		if _, err := Parse([]byte(many(tt.most, tt.descriptor))); err != nil {
			t.Errorf("%s: %v", tt.descriptor, err)
		}
		if _, err := Parse([]byte(many(tt.most+1, tt.descriptor))); err == nil ||
			!strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: have %v", tt.descriptor, err)
		}
	}
}

func TestEnvoyRoundTrip(t *testing.T) {
	doc := mustParse(t, envoyDocument)
	checkRoundTrip(t, doc)
	text := doc.JSON()
	for _, part := range []string{`"metadata":{"a":[1,null,{"b":true}]}`, `"requests_per_unit":0`,
		`"unit":"day"`, `"replaces":[{"name":"many"},{"name":"most"}]`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%s is not in %s", part, text)
		}
	}
	changed, err := doc.Apply(Change{Part: RulePart, Name: "r",
		Body: []byte("{key: [], limits: [{limit: 1, per: 1m}]}")})
	expect.NoError(t, err)
	checkRoundTrip(t, changed)
	if changed.FeatureLevel() != 2 || len(changed.Envoy) != 2 {
		t.Error("a change of a rule loses the section")
	}
}

// envoyModel finds the path for a descriptor in the simplest way that follows
// the reference server's documentation.
func envoyModel(path string, list []*EnvoyDescriptorSpec, descriptor []EnvoyEntry) string {
	if len(descriptor) == 0 {
		return ""
	}
	text := descriptor[0].Key + "_" + descriptor[0].Value
	tests := []func(s *EnvoyDescriptorSpec) bool{
		func(s *EnvoyDescriptorSpec) bool { return s.text() == text },
		func(s *EnvoyDescriptorSpec) bool {
			return strings.Contains(s.text(), "*") &&
				pattern(s.text()).MatchString(text)
		},
		func(s *EnvoyDescriptorSpec) bool { return s.text() == descriptor[0].Key },
	}
	for _, test := range tests {
		i := slices.IndexFunc(list, test)
		switch {
		case i < 0:
			continue
		case len(descriptor) > 1:
			return envoyModel(path+"."+list[i].text(), list[i].Descriptors, descriptor[1:])
		case list[i].Limit == nil:
			return ""
		}
		return path + "." + list[i].text()
	}
	return ""
}

var patterns = map[string]*regexp.Regexp{}

func pattern(text string) *regexp.Regexp {
	if patterns[text] == nil {
		patterns[text] = regexp.MustCompile(`(?s)\A` + strings.ReplaceAll(regexp.QuoteMeta(text), `\*`, ".*") + `\z`)
	}
	return patterns[text]
}

var configurations = flag.Int("configurations", 20_000, "random configurations of TestEnvoyModel; make models has more")

// TestEnvoyModel compares matching with the model, in random configurations.
func TestEnvoyModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 1))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	var descriptors func(levels int) []*EnvoyDescriptorSpec
	descriptors = func(levels int) (list []*EnvoyDescriptorSpec) {
		for range r.IntN(6) {
			s := &EnvoyDescriptorSpec{Key: pick("a", "b", "a_x", "a*", "*"),
				Value: pick("", "", "x", "y", "x*", "*x", "*", "x*x", "*x*y*", "x**", "é*")}
			if slices.ContainsFunc(list, func(o *EnvoyDescriptorSpec) bool { return o.text() == s.text() }) {
				continue
			}
			if r.IntN(3) > 0 {
				s.Limit = &EnvoyLimitSpec{Unit: "second", hasRequests: true}
			}
			if levels > 1 && r.IntN(2) > 0 {
				s.Descriptors = descriptors(levels - 1)
			}
			list = append(list, s)
		}
		return list
	}
	matched := 0
	for i := range *configurations {
		doc := &Document{Envoy: []*EnvoySpec{{Domain: "d", Descriptors: descriptors(3)}}}
		c := &compiler{set: &Set{Units: []string{Requests}, units: map[string]int{Requests: 0}}, doc: doc}
		c.compileEnvoy()
		set := c.set
		if i%100 == 0 { // a round trip through text
			set = mustCompile(t, string(doc.node().AppendYAML(nil))).Keyed([]byte("secret"))
		}
		for range 3 {
			var list []EnvoyEntry
			for range 1 + r.IntN(4)*r.IntN(2) {
				list = append(list,
					EnvoyEntry{pick("a", "b", "a_x", "a*", "c"),
						pick("", "x", "y", "xx", "yx", "xyx", "x*", "*", "xzx", "é", "éx", "xy")})
			}
			have, want := "", envoyModel("d", doc.Envoy[0].Descriptors, list)
			if n := set.EnvoyDomain("d").Match(list); n != nil {
				have = n.Path
				matched++
			}
			if have != want {
				t.Fatalf("seed %d: %q in\n%s\nhave %q, want %q", seed, list, doc.node().AppendYAML(nil), have, want)
			}
		}
	}
	if matched < *configurations/10 {
		t.Errorf("only %d descriptors were matched", matched)
	}
}

// TestEnvoyManual: the example in docs/rules.md is a valid section.
func TestEnvoyManual(t *testing.T) {
	manual, err := os.ReadFile("../docs/rules.md")
	expect.NoError(t, err)
	_, text, _ := strings.Cut(string(manual), "```yaml\nenvoy:")
	text, _, _ = strings.Cut(text, "```")
	set := keyedSet(t, "envoy:"+text)
	n := set.EnvoyDomain("edge").Match(envoyEntries("path=/items/7 user=alice"))
	if n == nil || !strings.Contains(string(manual), "--rule '"+n.Path+"' --key /items/7 --key alice") {
		t.Errorf("have %+v", n)
	}
}
