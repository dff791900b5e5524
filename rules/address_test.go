package rules

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/rules/document"
)

// writings maps texts to the addresses they are read as, or "".
var writings = []struct{ address, text string }{
	{"198.51.100.7", "198.51.100.7"},
	{"198.51.100.7", "198.51.100.7:1234"},
	{"198.51.100.7", "198.51.100.7:0"},
	{"198.51.100.7", "198.51.100.7:99999"}, // an invalid port doesn't make it another address
	{"198.51.100.7", " 198.51.100.7"},
	{"198.51.100.7", "\t198.51.100.7:80\r\n"},
	{"198.51.100.7", `"198.51.100.7:80"`},
	{"198.51.100.7", "::ffff:198.51.100.7"},
	{"198.51.100.7", "::FFFF:c633:6407"},
	{"198.51.100.7", "[::ffff:198.51.100.7]:80"},
	{"198.51.100.7", "0:0:0:0:0:ffff:198.51.100.7%eth0"},
	{"198.51.100.7", "64:ff9b::c633:6407"}, // NAT64
	{"198.51.100.7", "[64:ff9b::198.51.100.7]:80"},
	{"198.51.100.7", `"64:FF9B::c633:6407%eth0"`},
	{"198.51.100.7", "2002:c633:6407::"}, // 6to4
	{"198.51.100.7", "[2002:c633:6407:1:2:3:4:5]:80"},
	{"::1", "::1"},
	{"::1", "[::1]"},
	{"::1", "[::1]:80"},
	{"::1", `"[::1]:80"`},
	{"::1", "::1%eth0"},
	{"::1", "[::1%eth0]:80"},
	{"::1", "0:0:0:0:0:0:0:1"},
	{"::1", "0000:0000:0000:0000:0000:0000:0000:0001%" + strings.Repeat("x", 900)},
	{"2001:db8::1:80", "2001:DB8::1:80"}, // without brackets, 80 is no port

	{"", ""}, {"", " "}, {"", ":"}, {"", ":80"}, {"", "unknown"}, {"", "localhost:80"},
	{"", "198.51.100.7:"}, {"", "198.51.100.7:http"}, {"", "198.51.100.7:123456"},
	{"", "198.51.100.7:-1"}, {"", "198.51.100.7:8 0"},
	{"", "198.51.100.7 :80"}, {"", "198.51.100.7%eth0"}, {"", "198.51.100.7/32"},
	{"", "198.51.100.07"}, {"", "198.51.100.256"}, {"", "198.51.100"},
	{"", "198.51.100.7,203.0.113.1"}, {"", "[198.51.100.7]"}, {"", "[198.51.100.7]:80"},
	{"", "[::1"}, {"", "::1]"}, {"", "[::1]80"},
	{"", "[::1]:"}, {"", "[[::1]]"}, {"", "::1%"}, {"", "%eth0"}, {"", "1::2::3"},
	{"", "'198.51.100.7'"}, {"", "\u00a0198.51.100.7"},
}

func TestParseAddress(t *testing.T) {
	for _, tt := range writings {
		a, ok := ipaddr.Parse(tt.text)
		have := ""
		if ok {
			have = a.String()
		}
		if have != tt.address || document.IsAddress(tt.text) != ok {
			t.Errorf("%.60q: have %q, want %q", tt.text, have, tt.address)
		}
		// Entries of a header's list are read in the same way, except for the comma
		// that ends an entry.
		if !strings.Contains(tt.text, ",") {
			if e, ok := ipaddr.Bare(tt.text); ok != (tt.address != "") || ok &&
				(&document.Document{}).Canonical("ip", e) != tt.address {
				t.Errorf("%.60q: as an entry have %q %v, want %q", tt.text, e, ok, tt.address)
			}
		}
	}
}

// However a caller's address is written, it is one subject, with the same tier, lists and cost.
func TestMatch_oneAddressIsOneSubject(t *testing.T) {
	s := mustCompile(t, `
lists: {deny: [{ip: 192.0.2.0/24}, {from: 192.0.2.0/24}], allow: [{peer_ip: 203.0.113.9}]}
tiers: {big: {limits: [{limit: 1000, per: 1m}]}}
default_tier: big
subjects:
  ip: {"198.51.100.7:443": {limits: {by-ip: [{limit: 77, per: 1m}]}}, "[2001:db8:9::1]:80": {tier: big}}
rules:
  - {name: by-ip, key: [ip], limits: [{limit: 5, per: 1m}]}
  - {name: exact, match: {ip: ["198.51.100.7", "[::1]"]}, key: [ip], cost: {by: ip, values: {"198.51.100.7:8": 3, "::1%lo": 3}, default: 1}, limits: [{limit: 5, per: 1m}]}
  - {name: net, match: {ip: ["198.51.100.0/24", " ::/64 "]}, key: [ip], limits: [{limit: 5, per: 1m}]}
  - {name: glob, match: {ip: ["198.51.*", "*::1"]}, key: [ip], limits: [{limit: 5, per: 1m}]}
  - {name: pair, key: [user, peer_ip], limits: [{limit: 5, per: 1m}]}
`)
	plain := func(address string) (m Match) {
		s.Match(attrs("ip="+address), nil, &m)
		return m
	}
	for _, tt := range writings {
		if tt.address != "198.51.100.7" && tt.address != "::1" {
			continue
		}
		want := plain(tt.address)
		if len(want.Hits) != 4 {
			t.Fatalf("%s: have %s", tt.address, hits(&want))
		}
		var have Match
		s.Match([]Attribute{{"ip", tt.text}}, nil, &have)
		if hits(&have) != hits(&want) {
			t.Errorf("%.60q: have %s, want %s", tt.text, hits(&have), hits(&want))
			continue
		}
		for i := range have.Hits {
			h, w := &have.Hits[i], &want.Hits[i]
			if h.Subject != w.Subject || h.Cost != w.Cost || h.Limits[0] != w.Limits[0] {
				t.Errorf("%.60q: rule %s: another subject, cost or limit", tt.text, h.Rule.Name)
			}
		}
		if err := s.MatchKey(s.Rule("by-ip"), []string{tt.text}, &have); err != nil ||
			have.Hits[0].Subject != want.Hits[0].Subject {
			t.Errorf("%.60q: as a key it is a different subject (error %v)", tt.text, err)
		}
		shown := s.Rule("by-ip").NormalKey([]string{tt.address})[0]
		expect.Equal(t, s.Rule("by-ip").NormalKey([]string{tt.text})[0], shown, "%.60q: shown as", tt.text)
		if have := s.Rule("pair").SubjectOf([]Attribute{{"user", tt.text},
			{"peer_ip", tt.text}}); have[0] != tt.text || have[1] != shown {
			t.Errorf("%.60q: have %q, but the user is not an address", tt.text, have)
		}
	}
	for _, tt := range []struct {
		attribute, value string
		want             Listing
	}{
		{"ip", "192.0.2.1:5", Denied}, {"ip", "[::ffff:192.0.2.1]:5", Denied},
		{"ip", " 192.0.2.1", Denied}, {"from", "192.0.2.1:5", Denied},
		{"peer_ip", "203.0.113.9:80", Allowed}, {"peer_ip", "203.0.113.9:http", Unlisted},
		{"ip", "192.0.3.1:5", Unlisted},
	} {
		var m Match
		s.Match([]Attribute{{tt.attribute, tt.value}}, nil, &m)
		expect.Equal(t, m.List, tt.want, "%s %q", tt.attribute, tt.value)
	}
	expect.Equal(t, plain("198.51.100.7").Hits[0].Limits[0].Amount, 77, "an override for 198.51.100.7:443: a limit")
}

func TestMatch_oddAddressesDoNotAllocate(t *testing.T) {
	s := mustCompile(t, `
lists: {deny: [{ip: "192.0.2.*"}, {ip: 192.0.2.0/24}]}
rules: [{name: r, key: [ip], limits: [{limit: 5, per: 1m}]}]
`)
	var m Match
	for _, text := range []string{"198.51.100.7", "198.51.100.7:1234", " 198.51.100.7",
		"[2001:db8::1]:80", "fe80::1%eth0", "unknown:80", "198.51.100.7:http"} {
		a := []Attribute{{"ip", text}}
		if n := testing.AllocsPerRun(100, func() { s.Match(a, nil, &m) }); n != 0 {
			t.Errorf("%q: %v allocations", text, n)
		}
	}
}

func BenchmarkParseAddress(b *testing.B) {
	for _, s := range []string{"198.51.100.7", "2001:db8::1", "198.51.100.7:1234", "[2001:db8::1]:443", "unknown"} {
		b.Run(s, func(b *testing.B) {
			for b.Loop() {
				ipaddr.Parse(s)
			}
		})
	}
}
