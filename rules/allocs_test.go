package rules

import (
	"fmt"
	"strings"
	"testing"
)

// everySort is a document with a rule for each sort of condition, list, key,
// tier, override and cost.
const everySort = `
default_tier: free
lists:
  deny: [{ip: 192.0.2.0/24}, {tenant: spammer}]
  allow: [{ip: 203.0.113.7}, {agent: "probe/*"}]
rules:
  - {name: all, key: [], limits: [{limit: 1000, per: 1s}]}
  - {name: text, match: {endpoint: [/a, /b]}, key: [ip], limits: [{limit: 10, per: 1m}]}
  - {name: many, match: {endpoint: [/a, /b, /c, /d, /e, /f, /g, /h, /i, /j]}, key: [ip], limits: [{limit: 10, per: 1m}]}
  - {name: prefix, match: {endpoint: "/v1/*"}, key: [ip, endpoint], limits: [{limit: 10, per: 1m}]}
  - {name: suffix, match: {endpoint: "*.png"}, key: [ip], limits: [{limit: 10, per: 1m}]}
  - {name: both, match: {endpoint: "/v1/*.png"}, key: [ip], limits: [{limit: 10, per: 1m}]}
  - {name: cidr, match: {ip: 10.0.0.0/8}, key: [ip], limits: [{limit: 10, per: 1m}]}
  - {name: inner, match: {ip: 10.1.0.0/16}, key: [tenant], limits: [{limit: 10, per: 1m}]}
  - {name: six, match: {ip: 2001:db8::/32}, key: [ip], limits: [{limit: 10, per: 1m}]}
  - {name: address, match: {ip: [2001:db8::1, 10.1.2.3]}, key: [ip], limits: [{limit: 10, per: 1m}]}
  - {name: glob-of-ip, match: {ip: "2001:db8:*"}, key: [ip], limits: [{limit: 10, per: 1m}]}
  - {name: cost, key: [tenant], cost: {by: endpoint, values: {/a: 5}, default: 2}, limits: [{limit: 10, per: 1m}]}
  - {name: cost-of-ip, key: [tenant], cost: {by: ip, values: {2001:db8::1: 5}, default: 2}, limits: [{limit: 10, per: 1m}]}
  - {name: tiered, key: [tenant], tiered: true}
  - {name: tiered-ip, key: [ip], tiered: true}
  - {name: shadow, shadow: true, key: [user, tenant], limits: [{limit: 10, per: 1m}, {limit: 100, per: 1h, unit: tokens}]}
  - {name: blocks, key: [user], block: 1m, limits: [{limit: 10, per: 1m}]}
tiers:
  free: {limits: [{limit: 10, per: 1m}]}
  gold: {limits: [{limit: 20, per: 1m}]}
subjects:
  tenant: {acme: {tier: gold}, big: {tier: gold, limits: {cost: [{limit: 99, per: 1m}], tiered: [{limit: 77, per: 1m}]}}}
  ip: {10.1.2.3: {tier: gold}, "2001:db8::": {tier: gold}}
`

func TestEverySortAllocatesNothing(t *testing.T) {
	s := mustCompile(t, everySort)
	for name, tt := range map[string]struct {
		attrs []Attribute
		list  Listing
		hits  int
	}{
		"IPv4":        {attrs("ip=10.1.2.3", "tenant=acme", "user=u", "endpoint=/v1/x.png"), Unlisted, 13},
		"IPv6":        {attrs("ip=2001:db8::1", "tenant=big", "user=u", "endpoint=/a"), Unlisted, 12},
		"no address":  {attrs("ip=somebody", "tenant=other"), Unlisted, 5},
		"denied":      {attrs("ip=192.0.2.9", "endpoint=/none"), Denied, 2},
		"allowed":     {attrs("ip=203.0.113.7", "endpoint=/none"), Allowed, 2},
		"by its name": {attrs("agent=probe/2", "unknown=x"), Allowed, 1},
	} {
		var m Match
		if n := testing.AllocsPerRun(100, func() { s.Match(tt.attrs, nil, &m) }); n != 0 {
			t.Errorf("%s: have %v allocations a match, want 0", name, n)
		}
		if m.List != tt.list || len(m.Hits) != tt.hits {
			t.Errorf("%s: have %v and %s, want %v and %d hits", name, m.List, hits(&m), tt.list, tt.hits)
		}
		if n := testing.AllocsPerRun(100, func() { s.Match(tt.attrs, s.Rule("tiered"), &m) }); n != 0 {
			t.Errorf("%s: have %v allocations a match of one rule, want 0", name, n)
		}
	}
}

func TestMatchKeyAllocatesNothing(t *testing.T) {
	s := mustCompile(t, everySort)
	for _, tt := range []struct {
		rule string
		key  []string
	}{
		{"all", nil}, {"cidr", []string{"10.9.9.9"}}, {"six", []string{"2001:db8::1"}},
		{"prefix", []string{"2001:db8::1", "/v1/x"}},
		{"tiered", []string{"big"}}, {"tiered-ip", []string{"2001:db8::2"}}, {"shadow", []string{"u", "acme"}},
	} {
		r := s.Rule(tt.rule)
		var m Match
		if n := testing.AllocsPerRun(100, func() {
			if err := s.MatchKey(r, tt.key, &m); err != nil || len(m.Hits) != 1 {
				t.Errorf("%s: have %d hits, %v", tt.rule, len(m.Hits), err)
			}
		}); n != 0 {
			t.Errorf("%s: have %v allocations a match, want 0", tt.rule, n)
		}
	}
}

func BenchmarkMatchEverySort(b *testing.B) {
	s := mustCompile(b, everySort)
	for name, attributes := range map[string][]Attribute{
		"IPv4": attrs("ip=10.1.2.3", "tenant=acme", "user=u", "endpoint=/v1/x.png"),
		"IPv6": attrs("ip=2001:db8::1", "tenant=big", "user=u", "endpoint=/a"),
	} {
		b.Run(name, func(b *testing.B) {
			var m Match
			b.ReportAllocs()
			for b.Loop() {
				s.Match(attributes, nil, &m)
			}
		})
	}
}

// A subject that overrides many rules gets the right limits for each of them,
// in whatever order they are written.
func TestManyOverrides(t *testing.T) {
	const n = 1000
	var ruleText, limits strings.Builder
	for i := range n {
		fmt.Fprintf(&ruleText,
			"  - {name: r%d, match: {endpoint: /%d}, key: [tenant], limits: [{limit: 1, per: 1m}]}\n",
			i, i)
		fmt.Fprintf(&limits, "r%d: [{limit: %d, per: 1m}], ", n-1-i, n-i+1)
	}
	s := mustCompile(t, "rules:\n"+ruleText.String()+"subjects: {tenant: {acme: {limits: {"+limits.String()+"}}}}\n")
	var m Match
	for _, i := range []int{0, 1, 500, n - 1} {
		s.Match(attrs("tenant=acme", fmt.Sprintf("endpoint=/%d", i)), nil, &m)
		if len(m.Hits) != 1 || m.Hits[0].Limits[0].Amount != int64(i+2) {
			t.Errorf("rule %d: have %s", i, hits(&m))
		}
	}
	s.Match(attrs("tenant=other", "endpoint=/1"), nil, &m)
	if len(m.Hits) != 1 || m.Hits[0].Limits[0].Amount != 1 {
		t.Errorf("have %s", hits(&m))
	}
}
