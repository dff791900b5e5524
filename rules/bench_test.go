package rules

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// manySubjects is a document of two rules, for tenants and users, with n subjects each.
func manySubjects(n int) string {
	var b strings.Builder
	b.WriteString(`
rules:
  - {name: by-tenant, key: [tenant], tiered: true}
  - {name: by-user, key: [user], tiered: true}
tiers:
  t0: {limits: [{limit: 10, per: 1m}]}
  t1: {limits: [{limit: 20, per: 1m}]}
subjects:
`)
	for _, attribute := range []string{"tenant", "user"} {
		fmt.Fprintf(&b, "  %s:\n", attribute)
		for i := range n {
			fmt.Fprintf(&b, "    %s-%06d: {tier: t%d}\n", attribute, i, i%2)
		}
	}
	return b.String()
}

// thousandRules is a document of 1,000 rules with every sort of condition. A
// check matches a few of them.
func thousandRules() string {
	var b strings.Builder
	b.WriteString("lists: {deny: [{ip: 192.0.2.0/24}], allow: [{tenant: internal}]}\nrules:\n")
	for i := range 1000 {
		match := []string{
			fmt.Sprintf("{endpoint: /v1/things/%d}", i),
			fmt.Sprintf("{endpoint: '/v1/globs/%d/*'}", i),
			fmt.Sprintf("{endpoint: '*.%d'}", i),
			fmt.Sprintf("{ip: 10.%d.%d.0/24}", i/256, i%256),
			fmt.Sprintf("{method: POST, plan: p%d}", i),
		}[i%5]
		fmt.Fprintf(&b, "  - {name: r%d, match: %s, key: [ip, tenant], limits: [{limit: 10, per: 1m}]}\n", i, match)
	}
	return b.String()
}

func benchmarkCases(subjects int) []struct {
	name, src string
	attrs     []Attribute
	hits      int
} {
	return []struct {
		name, src string
		attrs     []Attribute
		hits      int
	}{
		{"1000-rules", thousandRules(),
			attrs("ip=10.3.60.9", "tenant=acme", "endpoint=/v1/globs/501/x.702", "method=POST", "plan=p4"),
			4},
		{"subjects", manySubjects(subjects),
			attrs("tenant=tenant-007777", "user=user-002345", "ip=1.2.3.4", "endpoint=/x"), 2},
		{"ipv6", one, attrs("ip=2001:db8::1"), 1},
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, bb := range benchmarkCases(100_000) {
		s := mustCompile(b, bb.src)
		b.Run(bb.name, func(b *testing.B) {
			var m Match
			b.ReportAllocs()
			for b.Loop() {
				s.Match(bb.attrs, nil, &m)
			}
			if len(m.Hits) != bb.hits {
				b.Errorf("have %s, want %d hits", hits(&m), bb.hits)
			}
		})
	}
}

func BenchmarkMatchKey(b *testing.B) {
	s := mustCompile(b, manySubjects(100_000))
	r, key := s.Rule("by-user"), []string{"user-012345"}
	var m Match
	b.ReportAllocs()
	for b.Loop() {
		expect.NoError(b, s.MatchKey(r, key, &m))
	}
}

func TestMatch_doesNotAllocate(t *testing.T) {
	for _, tt := range benchmarkCases(10_000) {
		s := mustCompile(t, tt.src)
		var m Match
		if n := testing.AllocsPerRun(100, func() { s.Match(tt.attrs, nil, &m) }); n != 0 {
			t.Errorf("%s: %v allocations", tt.name, n)
		}
		if len(m.Hits) != tt.hits {
			t.Errorf("%s: have %s, want %d hits", tt.name, hits(&m), tt.hits)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	src := []byte(manySubjects(50_000))
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		if _, err := document.Parse(src); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	doc := mustParse(b, manySubjects(50_000)) // 100,000 in all
	for b.Loop() {
		if _, err := Compile(doc, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// manyDescriptors is a document with the most domains and descriptors for
// Envoy: 1,000 with 10 each.
func manyDescriptors() string {
	var b strings.Builder
	b.WriteString("envoy:\n")
	const limit = "rate_limit: {unit: minute, requests_per_unit: 100}"
	for i := range 1000 {
		fmt.Fprintf(&b, "  - domain: domain-%d\n    descriptors:\n", i)
		for j := range 5 {
			fmt.Fprintf(&b, "      - {key: path, value: '/v1/%d/*', %s}\n", j, limit)
		}
		fmt.Fprintf(&b,
			"      - key: path\n        descriptors:\n          - {key: method, value: GET, %s}\n          - {key: method, detailed_metric: true, %s}\n",
			limit, limit)
		fmt.Fprintf(&b,
			"      - {key: user, %s}\n      - {key: user, value: root, rate_limit: {unlimited: true}}\n",
			limit)
	}
	return b.String()
}

// manyWildcards is a document with the most sibling wildcards.
func manyWildcards() string {
	var b strings.Builder
	b.WriteString("envoy:\n  - domain: d\n    descriptors:\n")
	for i := range 1000 {
		fmt.Fprintf(&b,
			"      - {key: path, value: '/v1/*/%d', rate_limit: {unit: minute, requests_per_unit: 100}}\n",
			i)
	}
	return b.String()
}

func envoyCases() []struct{ name, src, domain, descriptor, path string } {
	long := strings.Repeat("x", 1000)
	return []struct{ name, src, domain, descriptor, path string }{
		{"exact", manyDescriptors(), "domain-500", "path=/ method=GET", "domain-500.path.method_GET"},
		{"key", manyDescriptors(), "domain-999", "user=someone", "domain-999.user"},
		{"wildcard", manyDescriptors(), "domain-0", "path=/v1/4/things", "domain-0.path_/v1/4/*"},
		{"long", manyDescriptors(), "domain-0", "path=/v1/4/" + long, "domain-0.path_/v1/4/*"},
		{"1000-wildcards", manyWildcards(), "d", "path=/v1/things/999", "d.path_/v1/*/999"},
	}
}

func TestEnvoyMatch_doesNotAllocate(t *testing.T) {
	for _, tt := range envoyCases() {
		d, descriptor := mustCompile(t, tt.src).EnvoyDomain(tt.domain), envoyEntries(tt.descriptor)
		var n *EnvoyNode
		var subject Hash
		if allocs := testing.AllocsPerRun(100,
			func() { n = d.Match(descriptor); subject = n.Subject(descriptor) }); allocs != 0 {
			t.Errorf("%s: %v allocations", tt.name, allocs)
		}
		if n.Path != tt.path || subject == (Hash{}) {
			t.Errorf("%s: have %q, want %q", tt.name, n.Path, tt.path)
		}
	}
}

// TestEnvoyNames: the number of names in metrics is bounded, whatever the requests.
func TestEnvoyNames(t *testing.T) {
	set := mustCompile(t, manyDescriptors())
	expect.Equal(t, len(set.Names()), 1+1000+1000, "names")
}

func BenchmarkEnvoyMatch(b *testing.B) {
	for _, bb := range envoyCases() {
		d, descriptor := mustCompile(b, bb.src).EnvoyDomain(bb.domain), envoyEntries(bb.descriptor)
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if n := d.Match(descriptor); n == nil || n.Subject(descriptor) == (Hash{}) {
					b.Fatal("no match")
				}
			}
		})
	}
}

// BenchmarkEnvoyApply parses, validates and compiles the largest section, and
// reports the memory it then takes.
func BenchmarkEnvoyApply(b *testing.B) {
	src := []byte(manyDescriptors())
	var kept []*Set
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		doc, err := document.Parse(src)
		expect.NoError(b, err)
		set, err := Compile(doc, 1)
		expect.NoError(b, err)
		kept = append(kept[:0], set, set.Keyed([]byte("secret")))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
	runtime.KeepAlive(kept)
}
