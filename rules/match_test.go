package rules

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

func readContract(t testing.TB) []byte {
	t.Helper()
	src, err := os.ReadFile("document/testdata/contract.yaml")
	expect.NoError(t, err)
	return src
}

// readConditions returns a document with every kind of condition.
func readConditions(t testing.TB) string {
	t.Helper()
	src, err := os.ReadFile("document/testdata/conditions.yaml")
	expect.NoError(t, err)
	return string(src)
}

const one = "rules:\n  - name: a\n    key: [ip]\n    limits: [{limit: 1, per: 1m}]\n"

func mustParse(t testing.TB, src string) *document.Document {
	t.Helper()
	doc, err := document.Parse([]byte(src))
	if err != nil {
		t.Fatalf("Parse: %v\n%s", err, src)
	}
	return doc
}

func mustCompile(t testing.TB, src string) *Set {
	t.Helper()
	s, err := Compile(mustParse(t, src), 1)
	if err != nil {
		t.Fatalf("Compile: %v", err)
	}
	return s
}

// attrs makes attributes from name=value pairs.
func attrs(pairs ...string) []Attribute {
	var out []Attribute
	for _, p := range pairs {
		name, value, _ := strings.Cut(p, "=")
		out = append(out, Attribute{name, value})
	}
	return out
}

// hits describes what applies: each rule, the amounts of its limits and, unless 1, the cost.
func hits(m *Match) string {
	var out []string
	for _, h := range m.Hits {
		s := h.Rule.Name
		for _, l := range h.Limits {
			s += fmt.Sprintf(" %d", l.Amount)
		}
		if h.Cost != 1 {
			s += fmt.Sprintf(" cost %d", h.Cost)
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestMatch_contractExample(t *testing.T) {
	s := mustCompile(t, string(readContract(t)))
	tests := []struct {
		attrs []Attribute
		want  string
		list  Listing
	}{
		{nil, "everything 50000", Unlisted},
		{attrs("ip=1.2.3.4"), "ip-flood 100, everything 50000", Unlisted},
		{attrs("ip=192.0.2.77"), "ip-flood 100, everything 50000", Denied},
		{attrs("ip=::ffff:192.0.2.77"), "ip-flood 100, everything 50000", Denied},
		{attrs("ip=192.0.2.77", "tenant=internal"), "ip-flood 100, tenant 100, everything 50000", Denied},
		{attrs("ip=203.0.113.15"), "ip-flood 100, everything 50000", Allowed},
		{attrs("ip=203.0.113.16"), "ip-flood 100, everything 50000", Unlisted},
		{attrs("tenant=internal"), "tenant 100, everything 50000", Allowed},
		{attrs("tenant=acme"), "tenant 10000 200, everything 50000", Unlisted},
		{attrs("tenant=globex"), "tenant 1000, everything 50000", Unlisted},
		{attrs("tenant=other"), "tenant 100, everything 50000", Unlisted},
		{attrs("tenant="), "everything 50000", Unlisted},
		{attrs("tenant=globex", "endpoint=/chat/completions"), "tenant 1000, chat 600, everything 50000", Unlisted},
		{attrs("tenant=acme", "endpoint=/chat/completions"), "tenant 10000 200, chat 60, everything 50000", Unlisted},
		{attrs("endpoint=/chat/completions"), "everything 50000", Unlisted},
		{attrs("user=u", "endpoint=/search"), "search-cost 1000 cost 10, everything 50000, new-idea 30", Unlisted},
		{attrs("user=u", "endpoint=/search/suggest"), "search-cost 1000, everything 50000, new-idea 30", Unlisted},
		{attrs("user=u", "endpoint=/search/x"), "search-cost 1000 cost 5, everything 50000, new-idea 30", Unlisted},
		{attrs("user=u", "endpoint=/searc"), "everything 50000, new-idea 30", Unlisted},
		{attrs("user=u", "endpoint=/Search"), "everything 50000, new-idea 30", Unlisted},
		{attrs("tenant=acme", "plan=global"), "tenant 10000 200, everything 50000, world-wide 900", Unlisted},
		{attrs("ip=1.2.3.4", "ip=192.0.2.1"), "ip-flood 100, everything 50000", Unlisted},
	}
	var m Match
	for _, tt := range tests {
		s.Match(tt.attrs, nil, &m)
		if have := hits(&m); have != tt.want || m.List != tt.list {
			t.Errorf("%v: have %s (list %d), want %s (list %d)", tt.attrs, have, m.List, tt.want, tt.list)
		}
		for _, r := range s.Rules {
			s.Match(tt.attrs, r, &m)
			want := ""
			for _, h := range strings.Split(tt.want, ", ") {
				if h == r.Name || strings.HasPrefix(h, r.Name+" ") {
					want = h
				}
			}
			if have := hits(&m); have != want || m.List != tt.list {
				t.Errorf("%v, only %s: have %q, want %q", tt.attrs, r.Name, have, want)
			}
		}
	}
}

func TestMatch_conditions(t *testing.T) {
	tests := []struct{ match, attr, yes, no string }{
		{"e: /a", "e", "/a", "/A /ab /"},
		{"e: [/a, /b*]", "e", "/a /b /bc/d", "/ab"},
		{`e: "*"`, "e", "x /", ""},
		{`e: "*/x"`, "e", "/x a/x", "/x/ x"},
		{`e: "/v*/users/*/keys"`, "e", "/v1/users/7/keys /v/users/a/b/keys", "/v1/users/keys /v1/users/7/keys/"},
		{`e: "a*a"`, "e", "aa aba", "a"},
		{`e: "*a*b*"`, "e", "ab xaxbx", "ba"},
		{"ip: 10.0.0.0/8", "ip", "10.1.2.3 ::ffff:10.1.2.3 10.0.0.0/8", "11.0.0.1 10.1.2 x"},
		{"ip: ['2001:db8::/32', 10.0.0.1]", "ip",
			"2001:db8:1::1 10.0.0.1 ::ffff:10.0.0.1 2001:DB8::%eth0", "2001:db9:: 10.0.0.2"},
		{"ip: '2001:db8::1'", "ip", "2001:db8::1 2001:db8:0::1", "2001:db8::2"},
		{"ip: '::ffff:10.0.0.0/104'", "ip", "10.1.2.3", "11.1.2.3"},
		{"ip: 198.51.100.0/24", "ip", "64:ff9b::c633:6407 2002:c633:64ff:1::5",
			"64:ff9b::c633:6507 64:ff9b:1::c633:6407 2002:c633:6507::"},
		{"ip: '64:ff9b::c633:6400/120'", "ip", "198.51.100.7 64:ff9b::c633:6407 2002:c633:6407::", "198.51.101.7"},
		{"ip: '2002:c633:6407::/48'", "ip", "198.51.100.7 2002:c633:6407:9::1", "198.51.100.8"},
		// A CIDR of all of a form is not all of IPv4.
		{"ip: '64:ff9b::/96'", "ip", "64:ff9b::c633:6407", "198.51.100.7 2002:c633:6407:: ::ffff:198.51.100.7"},
		{"ip: ['2002::/16', 10.0.0.0/8]", "ip", "2002:c633:6407::1 10.1.2.3 2002:a01:203::",
			"198.51.100.7 64:ff9b::c633:6407"},
		{"ip: '::/0'", "ip", "2002:c633:6407::1 2001:db8::1", "198.51.100.7 ::ffff:198.51.100.7"},
		{"ip: '192.168.*'", "ip", "192.168.1.1 ::ffff:192.168.7.7", "192.169.1.1"},
		{"ip: unknown", "ip", "unknown", "1.2.3.4"},
		{"host: 10.0.0.0/8", "host", "10.9.9.9 10.0.0.0/8", "ten"},
		{"host: 10.0.0.1", "host", "10.0.0.1", "::ffff:10.0.0.1"},
		{"n: 123", "n", "123", "0123"},
		{"t: [a, b, c, d, e, f, g, h, i, j]", "t", "a j", "k"},
		{"ip: [10.0.0.0/24, 10.0.2.0/24, 10.0.4.0/24, 10.0.6.0/24, 10.0.8.0/24, 10.0.10.0/24, 10.0.12.0/24, 10.0.14.0/24, 10.0.16.0/24]", "ip", "10.0.16.1 10.0.0.1", "10.0.1.1"},
		{"ip: [1.0.0.1, 1.0.0.2, 1.0.0.3, 1.0.0.4, 1.0.0.5, 1.0.0.6, 1.0.0.7, 1.0.0.8, 1.0.0.9]",
			"ip", "1.0.0.9", "1.0.0.10"},
	}
	for _, tt := range tests {
		s := mustCompile(t,
			"lists: {deny: [{"+tt.match+"}]}\nrules: [{name: a, match: {"+tt.match+
				"}, key: [], limits: [{limit: 1, per: 1m}]}]")
		var m Match
		check := func(value string, want bool) {
			s.Match([]Attribute{{tt.attr, value}}, nil, &m)
			if len(m.Hits) == 1 != want || (m.List == Denied) != want {
				t.Errorf("%s: %q: have %d hits, list %d, want %v", tt.match, value, len(m.Hits), m.List, want)
			}
		}
		for _, v := range strings.Fields(tt.yes) {
			check(v, true)
		}
		for _, v := range strings.Fields(tt.no) {
			check(v, false)
		}
		s.Match(attrs("other=x"), nil, &m)
		if len(m.Hits) > 0 || m.List != Unlisted {
			t.Errorf("%s applies without the attribute", tt.match)
		}
	}
}

func TestMatchKey(t *testing.T) {
	s := mustCompile(t, `
lists: {deny: [{tenant: evil}, {tenant: half, ip: 1.1.1.1}]}
rules:
  - {name: pair, match: {x: y}, key: [tenant, endpoint], cost: {by: endpoint, values: {/a: 9}, default: 3}, limits: [{limit: 5, per: 1m}]}
  - {name: tiered, key: [tenant], tiered: true}
tiers: {gold: {limits: [{limit: 7, per: 1h}]}}
subjects: {tenant: {acme: {tier: gold}}}
`)
	tests := []struct {
		rule string
		key  []string
		want string
		list Listing
	}{
		{"pair", []string{"t", "/a"}, "pair 5 cost 3", Unlisted},
		{"pair", []string{"evil", "/a"}, "pair 5 cost 3", Denied},
		{"pair", []string{"half", "1.1.1.1"}, "pair 5 cost 3", Unlisted},
		{"tiered", []string{"acme"}, "tiered 7", Unlisted},
		{"tiered", []string{"other"}, "", Unlisted},
	}
	var m, byAttrs Match
	for _, tt := range tests {
		expect.NoError(t, s.MatchKey(s.Rule(tt.rule), tt.key, &m))
		if have := hits(&m); have != tt.want || m.List != tt.list {
			t.Errorf("%s %q: have %s (list %d), want %s (list %d)", tt.rule, tt.key, have, m.List, tt.want, tt.list)
		}
	}
	s.Match(attrs("x=y", "tenant=t", "endpoint=/b"), nil, &byAttrs)
	if err := s.MatchKey(s.Rule("pair"), []string{"t", "/b"}, &m); err != nil ||
		m.Hits[0].Subject != byAttrs.Hits[0].Subject {
		t.Errorf("by key %v and by attributes %v differ, error %v", m.Hits, byAttrs.Hits, err)
	}
	for _, key := range [][]string{nil, {"a"}, {"a", "b", "c"}} {
		err := s.MatchKey(s.Rule("pair"), key, &m)
		want := fmt.Sprintf(`key does not fit the rule: rule "pair" has 2 key attributes [tenant, endpoint], %d values are given`, len(key))
		if !errors.Is(err, ErrKey) || err.Error() != want {
			t.Errorf("have %v, want %s", err, want)
		}
	}
}

func TestSubjects_identity(t *testing.T) {
	s := mustCompile(t, `
rules:
  - {name: pair, key: [a, b], limits: [{limit: 1, per: 1m}]}
  - {name: ip, key: [ip], limits: [{limit: 1, per: 1m}]}
  - {name: wide, key: [client_ip], ipv6_prefix: 48, limits: [{limit: 1, per: 1m}]}
  - {name: text, key: [host], limits: [{limit: 1, per: 1m}]}
  - {name: net, key: [net_ip], ipv4_prefix: 24, limits: [{limit: 1, per: 1m}]}
`)
	tests := []struct {
		rule string
		a, b []string
		same bool
		text string // of a, as counted
	}{
		{"pair", []string{"a:b", "c"}, []string{"a", "b:c"}, false, "a:b c"},
		{"pair", []string{"abcdefgh", "i"}, []string{"abcdefg", "hi"}, false, "abcdefgh i"},
		{"ip", []string{"1.2.3.4"}, []string{"::ffff:1.2.3.4"}, true, "1.2.3.4"},
		{"ip", []string{"::ffff:1.2.3.4"}, []string{"1.2.3.5"}, false, "1.2.3.4"},
		{"ip", []string{"2001:db8:0:1::1"}, []string{"2001:db8:0:1:ffff::"}, true, "2001:db8:0:1::"},
		{"ip", []string{"2001:db8:0:1::1"}, []string{"2001:db8:0:2::1"}, false, "2001:db8:0:1::"},
		{"ip", []string{"fe80::1%eth0"}, []string{"fe80::1"}, true, "fe80::"},
		{"ip", []string{"unknown"}, []string{"Unknown"}, false, "unknown"},
		{"ip", []string{"01.2.3.4"}, []string{"1.2.3.4"}, false, "01.2.3.4"},
		{"wide", []string{"2001:db8:7:1::"}, []string{"2001:db8:7:ffff::"}, true, "2001:db8:7::"},
		{"text", []string{"1.2.3.4"}, []string{"::ffff:1.2.3.4"}, false, "1.2.3.4"},
		{"ip", []string{"64:ff9b::102:304"}, []string{"64:ff9b::102:305"}, false, "1.2.3.4"},
		{"ip", []string{"64:ff9b::102:304"}, []string{"2002:102:304:5::6"}, true, "1.2.3.4"},
		{"net", []string{"198.51.100.7"}, []string{"198.51.100.255"}, true, "198.51.100.0"},
		{"net", []string{"198.51.100.7"}, []string{"198.51.101.7"}, false, "198.51.100.0"},
		{"net", []string{"64:ff9b::c633:6407"}, []string{"198.51.100.9"}, true, "198.51.100.0"},
		{"net", []string{"2001:db8:0:1::1"}, []string{"2001:db8:0:1::2"}, true, "2001:db8:0:1::"},
		{"ip", []string{"1.2.3.4"}, []string{"\x01\x02\x03\x04"}, false, "1.2.3.4"},
	}
	subject := func(rule string, key []string) Hash {
		var m Match
		expect.NoError(t, s.MatchKey(s.Rule(rule), key, &m))
		return m.Hits[0].Subject
	}
	for _, tt := range tests {
		expect.Equal(t, subject(tt.rule, tt.a) == subject(tt.rule, tt.b), tt.same,
			"%s: %q and %q: same", tt.rule, tt.a, tt.b)
		normal := s.Rule(tt.rule).NormalKey(tt.a)
		expect.Equal(t, strings.Join(normal, " "), tt.text, "%s: %q is counted as", tt.rule, tt.a)
		if subject(tt.rule, normal) != subject(tt.rule, tt.a) {
			t.Errorf("%s: %q and its normal form are different subjects", tt.rule, tt.a)
		}
		var given []Attribute
		for i, name := range s.Rule(tt.rule).Key {
			given = append(given, Attribute{name, ""}, Attribute{name, tt.a[i]}, Attribute{name, "later"})
		}
		expect.EqualSlices(t, s.Rule(tt.rule).SubjectOf(given), normal, "%s: SubjectOf", tt.rule)
	}
	if subject("ip", []string{"1.2.3.4"}) == subject("text", []string{"1.2.3.4"}) {
		t.Error("two rules share a subject")
	}
}

func TestSubjects_tiersAndOverrides(t *testing.T) {
	src := `
rules:
  - {name: a, key: [user, tenant], tiered: true}
  - {name: b, key: [ip], tiered: true}
  - {name: c, key: [tenant, user], limits: [{limit: 9, per: 1m}]}
tiers:
  t0: {limits: [{limit: 10, per: 1m}]}
  t1: {limits: [{limit: 11, per: 1m}]}
subjects:
  tenant:
    x: {tier: t0, limits: {c: [{limit: 50, per: 1m}]}}
    y: {limits: {a: [{limit: 60, per: 1m}]}}
  user:
    u: {tier: t1, limits: {c: [{limit: 70, per: 1m}]}}
  ip: {"2001:db8::5": {tier: t1}, 1.2.3.4: {tier: t0}}
`
	tests := []struct {
		attrs []Attribute
		want  string
	}{
		{attrs("user=u", "tenant=x"), "a 11, c 50"},
		{attrs("user=v", "tenant=x"), "a 10, c 50"},
		{attrs("user=u", "tenant=y"), "a 60, c 70"},
		{attrs("user=v", "tenant=z"), "c 9"},
		{attrs("ip=2001:db8::77"), "b 11"},
		{attrs("ip=::ffff:1.2.3.4"), "b 10"},
		{attrs("ip=64:ff9b::102:304"), "b 10"},
		{attrs("ip=9.9.9.9"), ""},
	}
	s, withDefault := mustCompile(t, src), mustCompile(t, src+"default_tier: t0\n")
	var m Match
	for _, tt := range tests {
		if s.Match(tt.attrs, nil, &m); hits(&m) != tt.want {
			t.Errorf("%v: have %s, want %s", tt.attrs, hits(&m), tt.want)
		}
	}
	withDefault.Match(attrs("ip=9.9.9.9"), nil, &m)
	if hits(&m) != "b 10" {
		t.Errorf("default tier: have %s", hits(&m))
	}
}

func TestCompile_limits(t *testing.T) {
	s := mustCompile(t, `
defaults: {algorithm: token-bucket, tz: Asia/Tokyo, consistency: exact, lease: {threshold: 0.7, ttl: 1s}}
headers: {ietf: false, reset: delta}
default: deny
rules:
  - {name: a, key: [], limits: [{limit: 10, per: 60s}]}
  - {name: b, key: [], tz: Europe/Berlin, consistency: local, lease: {ttl: auto, idle: 0.1}, limits: [
      {limit: 20, per: day}, {limit: 20, per: day, tz: UTC}, {limit: 5, per: 1m, burst: 8, unit: tokens}, {name: n, limit: 5, per: 1h, algorithm: sliding-window-log}]}
`)
	var have []string
	for _, r := range s.Rules {
		for _, l := range r.ownLimits {
			cal := ""
			if l.Calendar != nil {
				cal = l.Calendar.String()
			}
			have = append(have,
				fmt.Sprintf("%s %s %d/%d %s %d %s", l.Name, l.Kind, l.Amount, l.Burst, l.Unit,
					l.UnitID, l.Limit.Window)+cal)
		}
	}
	want := []string{
		"a token-bucket 10/10 requests 0 1m0s",
		"b/requests/day fixed-window 20/0 requests 0 24h0m0sday@Europe/Berlin",
		"b/requests/day/UTC fixed-window 20/0 requests 0 24h0m0sday@UTC",
		"b/tokens/1m token-bucket 5/8 tokens 1 1m0s",
		"n sliding-window-log 5/0 requests 0 1h0m0s",
	}
	if !slices.Equal(have, want) {
		t.Errorf("have %q\nwant %q", have, want)
	}
	a, b := s.Rules[0], s.Rules[1]
	if a.Consistency != Exact || a.Lease.Threshold != 0.7 || a.Lease.TTL.String() != "1s" || a.Lease.Idle != 0.02 {
		t.Errorf("a: have %v %+v", a.Consistency, a.Lease)
	}
	if b.Consistency != Local || b.Lease.Threshold != 0.7 || b.Lease.TTL != 0 || b.Lease.Idle != 0.1 {
		t.Errorf("b: have %v %+v", b.Consistency, b.Lease)
	}
	if h := s.Headers; h.IETF || !h.XRateLimit || !h.ResetDelta || !s.DefaultDeny {
		t.Errorf("have headers %+v, default deny %v", h, s.DefaultDeny)
	}
	if id, ok := s.UnitID("tokens"); id != 1 || !ok || s.Units[1] != "tokens" {
		t.Errorf("unit tokens: have %d %v", id, ok)
	}
	if _, ok := s.UnitID("bytes"); ok || s.Rule("z") != nil {
		t.Error("a missing name was found")
	}
}

func TestLimit_ID(t *testing.T) {
	id := func(limit string) uint64 {
		return mustCompile(t, "rules: [{name: a, key: [], limits: [{limit: "+limit+"}]}]").Rules[0].ownLimits[0].ID
	}
	base := id("1, per: 1m")
	for _, same := range []string{"2, per: 60s", "1, per: 1m, name: x",
		"1, per: 1m, algorithm: sliding-window", "1, per: 1m, tz: Asia/Tokyo",
		"1, per: 1m, unit: requests"} {
		if id(same) != base {
			t.Errorf("%s is another counter", same)
		}
	}
	seen := map[uint64]string{base: "base"}
	for _, other := range []string{"1, per: 2m", "1, per: 1m, unit: tokens", "1, per: minute",
		"1, per: 1m, algorithm: fixed-window", "1, per: day", "1, per: day, tz: Asia/Tokyo"} {
		if twin, taken := seen[id(other)]; taken {
			t.Errorf("%s is the counter of %s", other, twin)
		}
		seen[id(other)] = other
	}
	if day := id("1, per: day"); day != id("1, per: day, tz: UTC") {
		t.Error("UTC is not the default zone")
	}
}

func TestMatch_reusedAcrossSets(t *testing.T) {
	small := mustCompile(t, "rules: [{name: a, key: [x], limits: [{limit: 1, per: 1m}]}]")
	large := mustCompile(t, string(readContract(t)))
	var m Match
	for range 3 {
		large.Match(attrs("ip=1.1.1.1", "tenant=t", "user=u"), nil, &m)
		if len(m.Hits) != 4 {
			t.Fatalf("have %s", hits(&m))
		}
		small.Match(attrs("x=1", "ip=1.1.1.1"), nil, &m)
		if hits(&m) != "a 1" {
			t.Fatalf("have %s", hits(&m))
		}
	}
}

// Concurrent checks share a Set while the rules change.
func TestSet_concurrentUse(t *testing.T) {
	doc := mustParse(t, string(readContract(t)))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var m Match
			for range 20 {
				s, err := Compile(doc, 1)
				if err != nil {
					t.Error(err)
					return
				}
				for range 3 {
					wg.Go(func() {
						var m Match
						s.Match(attrs("ip=2001:db8::1", "tenant=globex", "endpoint=/chat/completions"), nil, &m)
						expect.Equal(t, hits(&m), "ip-flood 100, tenant 1000, chat 600, everything 50000", "hits(&m)")
					})
				}
				s.Match(attrs("tenant=acme"), nil, &m)
			}
		})
	}
	wg.Wait()
}
