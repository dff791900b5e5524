package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// slowAddress reads an address in plain code: what it counts as, and as it is written.
func slowAddress(s string) (counts, written netip.Addr, ok bool) {
	s = strings.Trim(s, " \t\r\n\v\f")
	if m := quotedText.FindStringSubmatch(s); m != nil {
		s = m[1]
	}
	if m := bracketedAddress.FindStringSubmatch(s); m != nil {
		s = m[1]
	} else if m := addressWithPort.FindStringSubmatch(s); m != nil {
		s = m[1]
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, netip.Addr{}, false
	}
	a = a.WithZone("").Unmap()
	b := a.As16()
	switch {
	case netip.MustParsePrefix("64:ff9b::/96").Contains(a):
		return netip.AddrFrom4([4]byte(b[12:])), a, true
	case netip.MustParsePrefix("2002::/16").Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), a, true
	}
	return a, a, true
}

var (
	quotedText       = regexp.MustCompile(`(?s)\A"(.*)"\z`)
	bracketedAddress = regexp.MustCompile(`(?s)\A\[([^]]*:[^]]*)\](?::[0-9]{1,5})?\z`)
	addressWithPort  = regexp.MustCompile(`(?s)\A([^:]+):[0-9]{1,5}\z`)
)

// naive applies a document's rules by walking all of them.
type naive struct{ doc *document.Document }

func (n naive) holds(match []document.Condition, given map[string]string) bool {
	return !slices.ContainsFunc(match, func(c document.Condition) bool { return !n.meets(c, given) })
}

func (n naive) meets(c document.Condition, given map[string]string) bool {
	v, ok := given[c.Attribute]
	return ok &&
		slices.ContainsFunc(c.Values,
			func(want string) bool { return n.equal(c.Attribute, n.folded(c.Attribute, want), v) })
}

// folded is folding in plain code.
func (n naive) folded(attribute, v string) string {
	for _, a := range n.doc.Attributes {
		if a.Name != attribute {
			continue
		}
		glob := strings.Contains(v, "*")
		if a.Path && !glob {
			for {
				decoded, err := url.PathUnescape(v)
				if err != nil || decoded == v {
					break
				}
				v = decoded
			}
		}
		if slices.Contains(a.Fold, "lower") {
			v = strings.ToLower(v)
		}
		if slices.Contains(a.Fold, "nfc") {
			v = norm.NFC.String(v)
		}
		if a.Path && !glob {
			rooted := strings.HasPrefix(v, "/")
			v = regexp.MustCompile(`;[^/]*`).ReplaceAllString(v, "")
			v = strings.TrimPrefix(path.Clean("/"+v), "/")
			if rooted {
				v = "/" + v
			}
		}
		if slices.Contains(a.Fold, "trim") && !glob {
			v = strings.TrimSpace(v)
		}
	}
	return v
}

// subject returns the identity of r's subject, and the attributes that form it.
// ok is false if one is absent.
func (n naive) subject(r *document.RuleSpec, given map[string]string) (identity string, used map[string]string, ok bool) {
	used = map[string]string{}
	for _, part := range r.Key {
		i := slices.IndexFunc(part, func(name string) bool { _, ok := given[name]; return ok })
		if i < 0 {
			return "", nil, false
		}
		v := given[part[i]]
		if a, _, ok := slowAddress(v); ok && part[i] == "ip" {
			p, _ := a.Prefix(min(64, a.BitLen()))
			v = p.String()
		}
		identity += fmt.Sprintf("%q=%q ", part[i], v)
		used[part[i]] = given[part[i]]
	}
	return identity, used, true
}

// tier returns the tier of a subject, or "".
func (n naive) tier(r *document.RuleSpec, used map[string]string) string {
	for _, part := range r.Key {
		for _, name := range part {
			v, ok := used[name]
			if s := n.doc.Subject(name, v); ok && s != nil && s.Tier != "" {
				return s.Tier
			}
		}
	}
	return n.doc.DefaultTier
}

// applies reports whether r applies, and to which subject.
func (n naive) applies(r *document.RuleSpec, given map[string]string) (identity string, ok bool) {
	identity, used, ok := n.subject(r, given)
	for _, name := range r.Absent {
		_, present := given[name]
		ok = ok && !present
	}
	for _, c := range r.Not {
		ok = ok && !n.meets(c, given)
	}
	if len(r.OnTiers) > 0 {
		ok = ok && slices.Contains(r.OnTiers, n.tier(r, used))
	}
	return identity, ok && n.holds(r.Match, given)
}

func (n naive) equal(attribute, want, have string) bool {
	if want == have {
		return true
	}
	addr, written, isAddr := slowAddress(have)
	if p, err := netip.ParsePrefix(want); err == nil {
		return isAddr && (p.Contains(addr) || p.Contains(written))
	}
	if attribute == "ip" && isAddr {
		have = addr.String()
		if a, _, ok := slowAddress(want); ok {
			return a == addr
		}
	}
	ok, err := path.Match(strings.ReplaceAll(want, "/", "|"), strings.ReplaceAll(have, "/", "|"))
	return ok && err == nil
}

// match returns what applies, and the identities of the subjects.
func (n naive) match(raw map[string]string) (names, identities []string, list Listing) {
	given := map[string]string{}
	for name, v := range raw {
		given[name] = n.folded(name, v)
	}
	for _, r := range n.doc.Rules {
		if identity, ok := n.applies(r, given); ok {
			names, identities = append(names, r.Name), append(identities, r.Name+" "+identity)
		}
	}
	any := func(entries []*document.ListEntry) bool {
		return slices.ContainsFunc(entries, func(e *document.ListEntry) bool { return n.holds(e.Match, given) })
	}
	switch {
	case any(n.doc.Deny):
		return names, identities, Denied
	case any(n.doc.Allow):
		return names, identities, Allowed
	}
	return names, identities, Unlisted
}

func drawValue(t *rapid.T, attribute string, label string) string {
	texts := []string{"/a", "/ab", "/a/b", "x", "", "10.0.0.1", "10.0.1.1", "10.1.0.1",
		"::ffff:10.0.0.1", "2001:db8::1", "2001:DB8::1", "10.0.0.0/24",
		"10.0.0.1:80", " X ", "/A/./b/", "/%61", " 10.0.1.1", "[2001:db8::1]:443", "2001:db8::1%eth0", "10.0.0.1:http", "64:ff9b::a00:1", "[2002:a00:1::5]:80", "2002:b00:1::"}
	return rapid.SampledFrom(texts).Draw(t, label)
}

func drawMatch(t *rapid.T) string {
	values := []string{"/a", "/ab", "/a/b", "x", "''", "'/a*'", "'*b'", "'*'", "'*a*'", "'/*/b'",
		"'1*'", "10.0.0.0/24", "10.0.0.0/8", "0.0.0.0/0", "10.0.0.0/16", "'2001:db8::/32'", "10.0.0.1",
		"'::ffff:10.0.0.1'", "'2001:db8::1'",
		"'64:ff9b::/96'", "'2002::/16'", "'2000::/3'", "'::/0'", "'64:ff9b::a00:1'"}
	var out []string
	for _, a := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"ip", "e", "t"}), 1, 3,
		rapid.ID[string]).Draw(t, "attributes") {
		v := rapid.SliceOfN(rapid.SampledFrom(values), 1, 10).Draw(t, "values")
		out = append(out, a+": ["+strings.Join(v, ", ")+"]")
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// drawMore draws what a rule may say besides key, match and limits.
func drawMore(t *rapid.T, plain bool) string {
	var b strings.Builder
	if !plain && rapid.IntRange(0, 3).Draw(t, "excludes") == 0 {
		fmt.Fprintf(&b, "    not: %s\n", drawMatch(t))
	}
	if rapid.IntRange(0, 3).Draw(t, "absent") == 0 {
		fmt.Fprintf(&b, "    absent: [%s]\n", rapid.SampledFrom([]string{"u2", "v"}).Draw(t, "absent one"))
	}
	if rapid.IntRange(0, 3).Draw(t, "for tiers") == 0 {
		fmt.Fprintf(&b, "    tiers: [%s]\n", rapid.SampledFrom([]string{"free", "paid", "free, paid"}).Draw(t, "tiers"))
	}
	return b.String()
}

// drawKey draws a key, which may have alternatives.
func drawKey(t *rapid.T) string {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"ip", "e", "t", "u"}), 0, 3,
		rapid.ID[string]).Draw(t, "key")
	parts := slices.Clone(names)
	if len(names) > 1 && rapid.IntRange(0, 2).Draw(t, "alternatives") == 0 {
		parts = []string{"[" + strings.Join(names[:2], ", ") + "]"}
		parts = append(parts, names[2:]...)
	}
	return strings.Join(parts, ", ")
}

// drawHead draws the parts of a document on which rules depend.
func drawHead(t *rapid.T) string {
	head := "tiers: {free: {limits: [{limit: 7, per: 1m}]}, paid: {limits: [{limit: 8, per: 1m}]}}\n"
	if rapid.Bool().Draw(t, "a default tier") {
		head += "default_tier: free\n"
	}
	if rapid.Bool().Draw(t, "subjects") {
		head += "subjects: {t: {x: {tier: paid}, /a: {tier: free}}, ip: {10.0.0.1: {tier: paid}}}\n"
	}
	switch rapid.IntRange(0, 3).Draw(t, "declaration") {
	case 0:
		head += "attributes: [ip, e, t, u, u2, v]\n"
	case 1:
		head += "attributes: {ip: {}, e: {path: true}, t: {fold: [trim, lower, nfc]}, u: {fold: [lower], path: true}, u2: {}, v: {}}\n"
	}
	return head
}

func drawDocument(t *rapid.T) string {
	var b strings.Builder
	b.WriteString(drawHead(t))
	plain := rapid.Bool().Draw(t, "plain") // the names of attributes say which rules may apply
	for _, list := range []string{"deny", "allow"} {
		if list == "deny" {
			b.WriteString("lists:\n")
		}
		var entries []string
		for range rapid.IntRange(0, 3).Draw(t, "entries") {
			if plain {
				break
			}
			entries = append(entries, drawMatch(t))
		}
		fmt.Fprintf(&b, "  %s: [%s]\n", list, strings.Join(entries, ", "))
	}
	b.WriteString("rules:\n")
	for i := range rapid.IntRange(1, 12).Draw(t, "rules") {
		fmt.Fprintf(&b, "  - name: r%d\n    key: [%s]\n    limits: [{limit: 1, per: 1m}]\n", i, drawKey(t))
		b.WriteString(drawMore(t, plain))
		if plain && rapid.Bool().Draw(t, "matches") {
			b.WriteString("    match: {e: '*a*'}\n")
		} else if !plain && rapid.Bool().Draw(t, "matches") {
			fmt.Fprintf(&b, "    match: %s\n", drawMatch(t))
		}
	}
	return b.String()
}

func TestMatch_agreesWithNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc, err := document.Parse([]byte(drawDocument(t)))
		expect.NoError(t, err)
		set, err := Compile(doc, 1)
		expect.NoError(t, err)
		var m Match
		var names []string
		subjects, hashes := map[Hash]string{}, map[string]Hash{}
		for range 10 {
			given := map[string]string{}
			var list []Attribute
			again := rapid.Bool().Draw(t, "the same attributes again")
			for _, a := range []string{"ip", "e", "t", "u", "u2", "other"} {
				if there := rapid.IntRange(0, 3).Draw(t, "there") > 0; there && !again || again &&
					slices.Contains(names, a) {
					given[a] = drawValue(t, a, "value")
					list = append(list, Attribute{a, given[a]})
				}
			}
			names = names[:0]
			for _, a := range list {
				names = append(names, a.Name)
			}
			for name, value := range given {
				if value == "" {
					delete(given, name) // absent
				}
			}
			want, identities, wantList := naive{doc}.match(given)
			var fresh Match
			set.Match(list, nil, &fresh)
			before := slices.Clone(m.Hits)
			m.ReuseHits = rapid.Bool().Draw(t, "intact")
			set.Match(list, nil, &m)
			var have []string
			for i, h := range m.Hits {
				have = append(have, h.Rule.Name)
				if !reflect.DeepEqual(h, fresh.Hits[i]) {
					t.Fatalf("%v: a reused Match has %+v, a fresh one %+v", list, h, fresh.Hits[i])
				}
			}
			checkAgain(t, before, &m)
			if !slices.Equal(have, want) || m.List != wantList {
				t.Fatalf("%v: have %v list %d, want %v list %d", list, have, m.List, want, wantList)
			}
			for i, h := range m.Hits {
				former, seen := subjects[h.Subject]
				hash, known := hashes[identities[i]]
				if seen != known || seen && former != identities[i] || known && hash != h.Subject {
					t.Fatalf("%v: subject %s has hash %v, as has %q; before it had %v", list,
						identities[i], h.Subject, former, hash)
				}
				subjects[h.Subject], hashes[identities[i]] = identities[i], h.Subject
			}
		}
	})
}

// checkAgain fails t if m claims to have found before again, but has not.
func checkAgain(t *rapid.T, before []Hit, m *Match) {
	if !m.HitsReused {
		return
	}
	have := slices.Clone(m.Hits)
	for i := range min(len(have), len(before)) {
		have[i].Subject = before[i].Subject
	}
	if !slices.EqualFunc(have, before, func(x, y Hit) bool { return reflect.DeepEqual(x, y) }) {
		t.Fatalf("have %+v again, but before it was %+v", have, before)
	}
}

// Whatever a Match was used for before, it gives what a fresh one gives.
func TestMatchReused(t *testing.T) {
	doc, err := document.Parse([]byte(`
tiers: {free: {limits: [{limit: 7, per: 1m}]}, paid: {limits: [{limit: 8, per: 1m}]}}
subjects: {tenant: {/a: {tier: paid}, /b: {tier: free}}}
rules:
  - {name: user, key: [user], limits: [{limit: 1, per: 1m}]}
  - {name: ip, key: [ip], limits: [{limit: 2, per: 1m}, {limit: 3, per: 1h}]}
  - {name: both, key: [user, ip], limits: [{limit: 4, per: 1m}], block: 1h}
  - {name: path, key: [user], match: {path: '*a*'}, limits: [{limit: 5, per: 1m}]}
  - {name: cost, key: [other], cost: {by: path, values: {/a: 5}, default: 2}, limits: [{limit: 6, per: 1m}]}
  - {name: tenant, key: [tenant], tiered: true}
`))
	expect.NoError(t, err)
	again := 0
	rapid.Check(t, func(t *rapid.T) {
		var sets []*Set
		for range 2 {
			set, err := Compile(doc, 1)
			expect.NoError(t, err)
			sets = append(sets, set)
			slices.Reverse(doc.Rules)
		}
		var m Match
		attributes := rapid.SliceOfN(rapid.SampledFrom([]string{"user", "ip", "path", "tenant", "other"}), 0, 4)
		names, only := []string(nil), (*Rule)(nil)
		set, byKey := sets[0], false
		for range 12 {
			if rapid.IntRange(0, 3).Draw(t, "the same set") == 0 {
				set, only, byKey = rapid.SampledFrom(sets).Draw(t, "set"), nil, false
			}
			if rapid.Bool().Draw(t, "another rule or none") {
				only, byKey = nil, false
				if rapid.Bool().Draw(t, "one rule") {
					only = rapid.SampledFrom(set.Rules).Draw(t, "rule")
				}
			}
			byKey = only != nil && rapid.Bool().Draw(t, "by key")
			if byKey {
				names = only.Key
			} else if rapid.IntRange(0, 3).Draw(t, "the same names") == 0 {
				names = attributes.Draw(t, "names")
			}
			var list []Attribute
			var key []string
			for _, name := range names {
				key = append(key, rapid.SampledFrom([]string{"/a", "/b", "10.0.0.1", ""}).Draw(t, "value"))
				list = append(list, Attribute{name, key[len(key)-1]})
			}
			if byKey && slices.Contains(key, "") {
				if err := set.MatchKey(only, key, &m); !errors.Is(err, ErrMissing) {
					t.Fatalf("%q: have %v", key, err)
				}
				continue
			}
			var fresh Match
			before := slices.Clone(m.Hits)
			m.ReuseHits = rapid.Bool().Draw(t, "intact")
			if !m.ReuseHits {
				clear(m.Hits)
				m.Hits = m.Hits[:rapid.IntRange(0, len(m.Hits)).Draw(t, "hits left")]
			}
			for _, m := range []*Match{&fresh, &m} {
				if byKey {
					expect.NoError(t, set.MatchKey(only, key, m))
				} else {
					set.Match(list, only, m)
				}
			}
			if len(m.Hits) != len(fresh.Hits) || len(m.Hits) > 0 && !reflect.DeepEqual(m.Hits, fresh.Hits) {
				t.Fatalf("%v: a reused Match has %+v, a fresh one %+v", list, m.Hits, fresh.Hits)
			}
			if checkAgain(t, before, &m); m.HitsReused {
				again++
			}
		}
	})
	if again < 50 && !testing.Short() {
		t.Errorf("only %d matches gave the same hits again", again)
	}
}
