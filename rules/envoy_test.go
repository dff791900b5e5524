package rules

import (
	"flag"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// envoyEntries reads "key=value key=value".
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
		expect.Equal(t, have, tt.want, "%q", document.Shorten(tt.descriptor))
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
	if quota.Shadow || !quota.Quota || quota.Rule.ownLimits[0].Per != "365d" {
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

// envoyModel finds the path for a descriptor in the simplest way that follows
// the reference server's documentation.
func envoyModel(path string, list []*document.EnvoyDescriptorSpec, descriptor []EnvoyEntry) string {
	if len(descriptor) == 0 {
		return ""
	}
	text := descriptor[0].Key + "_" + descriptor[0].Value
	tests := []func(s *document.EnvoyDescriptorSpec) bool{
		func(s *document.EnvoyDescriptorSpec) bool { return s.Text() == text },
		func(s *document.EnvoyDescriptorSpec) bool {
			return strings.Contains(s.Text(), "*") &&
				pattern(s.Text()).MatchString(text)
		},
		func(s *document.EnvoyDescriptorSpec) bool { return s.Text() == descriptor[0].Key },
	}
	for _, test := range tests {
		i := slices.IndexFunc(list, test)
		switch {
		case i < 0:
			continue
		case len(descriptor) > 1:
			return envoyModel(path+"."+list[i].Text(), list[i].Descriptors, descriptor[1:])
		case list[i].Limit == nil:
			return ""
		}
		return path + "." + list[i].Text()
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
	var descriptors func(levels int) []*document.EnvoyDescriptorSpec
	descriptors = func(levels int) (list []*document.EnvoyDescriptorSpec) {
		for range r.IntN(6) {
			s := &document.EnvoyDescriptorSpec{Key: pick("a", "b", "a_x", "a*", "*"),
				Value: pick("", "", "x", "y", "x*", "*x", "*", "x*x", "*x*y*", "x**", "é*")}
			if slices.ContainsFunc(list, func(o *document.EnvoyDescriptorSpec) bool { return o.Text() == s.Text() }) {
				continue
			}
			if r.IntN(3) > 0 {
				s.Limit = &document.EnvoyLimitSpec{Unit: "second", HasRequests: true}
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
		doc := &document.Document{Envoy: []*document.EnvoySpec{{Domain: "d", Descriptors: descriptors(3)}}}
		c := &compiler{set: &Set{Units: []string{document.Requests}, unitIDs: map[string]int{document.Requests: 0}}, doc: doc}
		c.compileEnvoy()
		set := c.set
		if i%100 == 0 { // a round trip through text
			set = mustCompile(t, string(doc.YAML())).Keyed([]byte("secret"))
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
				t.Fatalf("seed %d: %q in\n%s\nhave %q, want %q", seed, list, doc.YAML(), have, want)
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
