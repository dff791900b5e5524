package rules

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/ipaddr"
)

func FuzzGlob(f *testing.F) {
	f.Add("/a*b", "/a/b")
	f.Add("*a*a*", "aa")
	f.Add("a*a", "a")
	f.Add("**", "")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if !strings.Contains(pattern, "*") || len(pattern) > 64 || len(s) > 256 ||
			!utf8.ValidString(pattern) || !utf8.ValidString(s) {
			t.Skip()
		}
		re := regexp.MustCompile(`(?s)\A` + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + `\z`)
		g := newGlob(pattern)
		expect.Equal(t, g.matches(s), re.MatchString(s), "%q matches %q", pattern, s)
	})
}

func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"1.2.3.4", "1.2.3.256", "01.2.3.4", "::1", "::ffff:1.2.3.4", "fe80::1%eth0", "1.2.3", "1.2.3.4.5", "1..2.3", ":", "%:", "1.2.3.4%x", "0.0.0.0%:", "::%",
		"1.2.3.4:80", "1.2.3.4:", "1.2.3.4:http", "[::1]:80", "[::1]", "[1.2.3.4]:80", " ::1\t", `"[::1%x]:80"`, "::1%" + strings.Repeat("x", 100)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		have, ok := ipaddr.Parse(s)
		want, _, wantOK := slowAddress(s)
		if have != want || ok != wantOK {
			t.Errorf("%q: have %v %v, want %v %v", s, have, ok, want, wantOK)
		}
	})
}
