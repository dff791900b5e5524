package rules

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/ipaddr"
)

func TestSourceValue(t *testing.T) {
	one, two := &Source{Header: "X-Forwarded-For", Hops: 1}, &Source{Header: "X-Forwarded-For", Hops: 2}
	plain, target := &Source{Header: "X-Api-Key"}, &Source{Header: "X-Forwarded-Uri", Path: true}
	tests := []struct {
		source *Source
		lines  string // separated by |
		want   string // empty if there is no value
	}{
		{one, "198.51.100.7", "198.51.100.7"},
		{one, "203.0.113.9, 198.51.100.7", "198.51.100.7"},
		{two, "203.0.113.9, 198.51.100.7", "203.0.113.9"},
		{two, "192.0.2.1,203.0.113.9,198.51.100.7", "203.0.113.9"},
		{two, "198.51.100.7", "198.51.100.7"},
		{&Source{Hops: 32}, "192.0.2.1, 203.0.113.9, 198.51.100.7", "192.0.2.1"},

		// Several lines are joined.
		{one, "203.0.113.9|198.51.100.7", "198.51.100.7"},
		{two, "203.0.113.9|198.51.100.7", "203.0.113.9"},
		{two, "192.0.2.1, 203.0.113.9|198.51.100.7", "203.0.113.9"},
		{two, "192.0.2.1|203.0.113.9, 198.51.100.7", "203.0.113.9"},

		// Spaces and empty entries don't count.
		{one, " \t198.51.100.7 \t", "198.51.100.7"},
		{two, "203.0.113.9,,198.51.100.7, ,", "203.0.113.9"},
		{one, "198.51.100.7||", "198.51.100.7"},
		{one, "", ""},
		{one, " , ,", ""},

		// Ports, brackets, quotes.
		{one, "198.51.100.7:4711", "198.51.100.7"},
		{one, "[2001:db8::1]:443", "2001:db8::1"},
		{one, "[2001:db8::1]", "2001:db8::1"},
		{one, "2001:db8::1", "2001:db8::1"},
		{one, `"[2001:db8::1]:443"`, "2001:db8::1"},
		{one, "::ffff:198.51.100.7", "::ffff:198.51.100.7"},
		{one, "fe80::1%eth0", "fe80::1%eth0"},
		{one, "[198.51.100.7]", ""},
		{one, "[2001:db8::1", ""},
		{one, "[2001:db8::1]443", ""},
		{one, "198.51.100.7:", ""},
		{one, "198.51.100.7:http", ""},
		{one, "198.51.100.7:123456", ""},

		// Anything that is not an address counts as an entry but is not trusted.
		{one, "203.0.113.9, unknown", ""},
		{one, "203.0.113.9, _hidden", ""},
		{one, "203.0.113.9, 198.51.100.7 198.51.100.8", ""},
		{one, "203.0.113.9, 198.51.100.07", ""},
		{one, "203.0.113.9, 0x7f.1", ""},
		{one, "203.0.113.9, 198.51.100.256", ""},
		{two, "unknown, 198.51.100.7", "198.51.100.7"},
		{two, "203.0.113.9, unknown, 198.51.100.7", "198.51.100.7"},
		{two, "203.0.113.9, unknown", "203.0.113.9"},
		{two, "x'--, 198.51.100.7:80", "198.51.100.7"},
		{two, "x", ""},
		{one, "198.51.100.7;203.0.113.9", ""},

		{plain, "k1", "k1"},
		{plain, "  k1 ", "k1"},
		{plain, "k1, k2", "k1, k2"},
		{plain, "k1|k2", "k1"},
		{plain, "", ""},
		{plain, "|k2", ""},

		{target, "/login", "/login"},
		{target, "/login?next=/a?b", "/login"},
		{target, "/login#x?y", "/login"},
		{target, "http://app.example/login?x", "/login"},
		{target, "http://app.example", "/"},
		{target, "/r?u=http://app.example/login", "/r"},
		{target, "//login", "//login"},
		{target, "?x=1", ""},
		{target, "*", "*"},
	}
	for _, tt := range tests {
		var lines []string
		if tt.lines != "" {
			lines = strings.Split(tt.lines, "|")
		}
		have, ok := tt.source.Value(lines)
		if ok != (have != "") || have != tt.want {
			t.Errorf("%d hops, %q: have %q %v, want %q", tt.source.Hops, tt.lines, have, ok, tt.want)
		}
	}
}

func TestCompile_profiles(t *testing.T) {
	s := mustCompile(t, `
profiles:
  web: {ip: header:x-forwarded-for, trusted_hops: 2, origin_ip: header:X-Origin, endpoint: header:X-Original-Url, api_key: header:x-api-key}
  bare: {client: header:X-Forwarded-For, path: header:X-Forwarded-Uri, query: header:X-Query}
  secret: {api_key: fingerprint:x-api-key, user: fingerprint:Authorization}
`)
	tests := []struct {
		profile string
		want    []Source
	}{
		{"web",
			[]Source{{"ip", "X-Forwarded-For", 2, false, false},
				{"origin_ip", "X-Origin", 2, false, false},
				{"endpoint", "X-Original-Url", 0, true, false},
				{"api_key", "X-Api-Key", 0, false, false}}},
		{"bare",
			[]Source{{"client", "X-Forwarded-For", 1, false, false},
				{"path", "X-Forwarded-Uri", 0, true, false}, {"query", "X-Query", 0, false, false}}},
		{"secret", []Source{{"api_key", "X-Api-Key", 0, false, true}, {"user", "Authorization", 0, false, true}}},
	}
	for _, tt := range tests {
		p := s.Profile(tt.profile)
		if p == nil || p.Name != tt.profile || len(p.Sources) != len(tt.want) {
			t.Fatalf("%s: have %+v", tt.profile, p)
		}
		for i, have := range p.Sources {
			expect.Equal(t, have, tt.want[i], "%s", tt.profile)
		}
	}
	if have := s.Profile("nope"); have != nil {
		t.Errorf("have %+v, want none", have)
	}
}

func TestAppendFingerprint(t *testing.T) {
	// printf %s k1 | sha256sum | cut -c1-32
	if have := string(AppendFingerprint([]byte("x"), "k1")); have != "x6ab9f1eb8f7d3388f4f9d586f66e99fd" {
		t.Errorf("have %s", have)
	}
	b, secret := make([]byte, 0, 64), strings.Repeat("k", 10_000)
	if n := testing.AllocsPerRun(100, func() { b = AppendFingerprint(b[:0], secret) }); n != 0 || len(b) != 32 {
		t.Errorf("%v allocations, %d digits", n, len(b))
	}
}

// referenceTrusted is trustedAddress in plain code.
func referenceTrusted(lines []string, n int) string {
	var entries []string
	for _, e := range strings.Split(strings.Join(lines, ","), ",") {
		e = strings.Trim(e, " \t")
		if e != "" {
			entries = append(entries, e)
		}
	}
	for _, e := range entries[max(0, len(entries)-n):] {
		if a, ok := ipaddr.Bare(e); ok {
			return a
		}
	}
	return ""
}

// Whatever a caller puts first, the entries that trusted proxies have added decide.
func FuzzTrustedAddress(f *testing.F) {
	f.Add("203.0.113.9, unknown\n198.51.100.7:80", 2)
	f.Add("[2001:db8::1]:443,,\"[::1]\"", 1)
	f.Add(",\n,\n", 3)
	f.Fuzz(func(t *testing.T, header string, n int) {
		const maxTrustedHops = 32 // as in a document
		if n < 1 || n > maxTrustedHops {
			t.Skip()
		}
		lines := strings.Split(header, "\n")
		have, ok := trustedAddress(lines, n)
		if want := referenceTrusted(lines, n); have != want || ok != (want != "") {
			t.Fatalf("have %q %v, want %q", have, ok, want)
		}
		if ok {
			if a, valid := ipaddr.Parse(have); !valid || !a.IsValid() {
				t.Fatalf("%q is not an address", have)
			}
			if _, err := netip.ParseAddr(have); err != nil {
				t.Fatalf("%q: %v", have, err)
			}
		}
		// Once trusted proxies have appended n entries, nothing before them matters.
		added := ""
		for range n {
			added += ", 198.51.100.7"
		}
		have, _ = trustedAddress(append(lines[:len(lines)-1:len(lines)-1], lines[len(lines)-1]+added), n)
		if have != "198.51.100.7" {
			t.Fatalf("forged: %q", have)
		}
	})
}
