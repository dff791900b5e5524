package rules

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestMatch_exclusions(t *testing.T) {
	s := mustCompile(t, readConditions(t))
	for _, tt := range []struct {
		attrs []Attribute
		want  string
		list  Listing
	}{
		{attrs("ip=192.0.2.7"), "caller 1 2, pages 3, guests 4", Unlisted},
		{attrs("ip=192.0.2.7", "user=zoe"), "caller 1 2, pages 3", Unlisted},
		{attrs("user= Ann", "ip=192.0.2.7"), "caller 50, pages 3", Unlisted},
		{attrs("user=Bot"), "caller 1 2", Unlisted},
		{attrs("user=MALLORY"), "caller 1 2, pages 3", Denied},
		{attrs("endpoint=/health"), "", Unlisted},
		{attrs("endpoint=//health/"), "", Unlisted},
		{attrs("endpoint=/static/a.css"), "", Unlisted},
		{attrs("endpoint=/ok"), "pages 3", Allowed},
		{attrs("endpoint=/healthy"), "pages 3", Unlisted},
		{attrs("user=BOB", "endpoint=/a;x=1"), "caller 1 2, pages 3, exact 6 cost 3", Unlisted},
		{attrs("tenant=acme"), "pages 3", Unlisted}, // paid, although there is an override
		{attrs("tenant=other"), "pages 3, freebies 5", Unlisted},
		{attrs("tenant=acme", "ip=192.0.2.7"), "caller 1 2, pages 3, guests 4, rich 8", Unlisted},
		{attrs("tenant=other", "ip=192.0.2.7"), "caller 1 2, pages 3, guests 4, freebies 5", Unlisted},
		{attrs("tenant=other", "user=ann"), "caller 50, pages 3, freebies 5, rich 8", Unlisted},
	} {
		var m Match
		if s.Match(tt.attrs, nil, &m); hits(&m) != tt.want || m.List != tt.list {
			t.Errorf("%v: got %s list %d, want %s list %d", tt.attrs, hits(&m), m.List, tt.want, tt.list)
		}
	}
}

// Which attribute was used is part of a subject's identity, and shows in its
// key and in the names of its limits.
func TestAlternatives(t *testing.T) {
	s := mustCompile(t, readConditions(t))
	var m Match
	subject := func(attributes ...string) (h Hit, key, limits string) {
		s.Match(attrs(attributes...), s.Rule("caller"), &m)
		var names []string
		for _, l := range m.Hits[0].Limits {
			names = append(names, l.Name)
		}
		return m.Hits[0], strings.Join(m.Hits[0].Rule.SubjectOf(attrs(attributes...)), ","), strings.Join(names, ",")
	}
	byUser, userKey, userLimits := subject("user= 192.0.2.7 ", "ip=198.51.100.1")
	byIP, ipKey, ipLimits := subject("ip=192.0.2.7:80")
	if byUser.Subject == byIP.Subject {
		t.Error("the user 192.0.2.7 and the address 192.0.2.7 are one subject")
	}
	if userKey != "user=192.0.2.7" || ipKey != "ip=192.0.2.7" {
		t.Errorf("keys: got %s and %s, want user=192.0.2.7 and ip=192.0.2.7", userKey, ipKey)
	}
	if userLimits != "caller/user/requests/1m,hourly/user" || ipLimits != "caller/ip/requests/1m,hourly/ip" {
		t.Errorf("limits: got %s and %s", userLimits, ipLimits)
	}

	for _, tt := range []struct {
		key  string
		want Hash
		show string
	}{
		{"user=192.0.2.7", byUser.Subject, "user=192.0.2.7"},
		{"user= 192.0.2.7", byUser.Subject, "user=192.0.2.7"},

		{"ip=192.0.2.7", byIP.Subject, "ip=192.0.2.7"},
		{"192.0.2.7", byIP.Subject, "ip=192.0.2.7"},
	} {
		for range 2 { // the second time from what the first left in m
			expect.NoError(t, s.MatchKey(s.Rule("caller"), []string{tt.key}, &m))
			expect.Equal(t, m.Hits[0].Subject, tt.want, "key %q: got subject", tt.key)
		}
		expect.Equal(t, s.Rule("caller").NormalKey([]string{tt.key})[0], tt.show, "key %q: shown as", tt.key)
	}
	expect.Equal(t, s.Rule("caller").NormalKey([]string{"Zoe"})[0], "user=zoe", "a value without a name")
	err := s.MatchKey(s.Rule("rich"), []string{"ann"}, &m)
	if err == nil || !strings.Contains(err.Error(), "[user|ip, tenant]") {
		t.Errorf("a key that is too short: got %v", err)
	}
}

func TestUndeclaredAttributesAreCounted(t *testing.T) {
	s := mustCompile(t, readConditions(t))
	var m Match
	for _, tt := range []struct {
		attrs []Attribute
		want  int
	}{
		{attrs("user=a", "usr=a", "x=1"), 2}, {attrs("user=a", "tenant=t"), 0},
		{attrs("user=b", "tenant=t"), 0}, {attrs("usr=a"), 1},
	} {
		if s.Match(tt.attrs, nil, &m); m.Undeclared != tt.want {
			t.Errorf("%v: got %d, want %d", tt.attrs, m.Undeclared, tt.want)
		}
	}
	free := mustCompile(t, one)
	free.Match(attrs("ip=1.2.3.4", "x=1"), nil, &m)
	if m.Undeclared != 0 {
		t.Errorf("without attributes: got %d, want 0", m.Undeclared)
	}
}
