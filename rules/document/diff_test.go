package document

import (
	"fmt"
	"strings"
	"testing"
)

const diffBase = `version: 1
rules:
  - {name: login, key: [ip], limits: [{limit: 5, per: 15m}]}
  - {name: search, key: [user], limits: [{limit: 100, per: 1h}, {limit: 10, per: 1s}]}
  - {name: tenant, key: [tenant], tiered: true}
tiers:
  free: {limits: [{limit: 9, per: 1h}]}
lists: {deny: [{ip: 192.0.2.7}]}
subjects: {tenant: {acme: {tier: free}}}
profiles: {web: {ip: "header:X-Real-Ip"}}
`

// lines writes changes as text, one a line.
func lines(changes []PieceChange) string {
	var b strings.Builder
	for i := range changes {
		c := &changes[i]
		fmt.Fprintf(&b, "%s %s", c.Change, c)
		if len(c.Details) > 0 {
			fmt.Fprintf(&b, ": %s", strings.Join(c.Details, "; "))
		}
		if c.Anew != "" {
			fmt.Fprintf(&b, "; counts begin anew: %s", c.Anew)
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// TestDiff: what two documents differ in, what that changes, and where counts begin anew.
func TestDiff(t *testing.T) {
	before := mustParse(t, diffBase)
	for _, test := range []struct{ name, replace, by, want string }{
		{"nothing", "", "", ""},
		{"a comment", "version: 1\n", "version: 1 # ours\n", "changed text: only comments and layout differ"},
		{"an amount", "limit: 5, per", "limit: 7, per", "changed rule login: limit: 5 → 7 per 15m"},
		{"a window", "per: 15m", "per: 1h",
			"changed rule login: limit: {limit: 5, per: 15m} → {limit: 5, per: 1h}; counts begin anew: the window changed from 15m to 1h"},
		{"an equal window", "per: 15m", "per: 900s",
			"changed rule login: limit: {limit: 5, per: 15m} → {limit: 5, per: 900s}"},
		{"an algorithm", "limit: 5, per: 15m", "limit: 5, per: 15m, algorithm: sliding-window-log",
			"changed rule login: limit: {limit: 5, per: 15m} → {limit: 5, per: 15m, algorithm: sliding-window-log}; counts begin anew: the algorithm changed from sliding-window to sliding-window-log"},
		{"a default", "version: 1\n", "version: 1\ndefaults: {algorithm: fixed-window}\n",
			"added defaults: algorithm: fixed-window\n" +
				"changed rule login: what it takes from elsewhere in the document changed; counts begin anew: the algorithm changed from sliding-window to fixed-window\n" +
				"changed rule search: what it takes from elsewhere in the document changed; counts begin anew: the algorithm changed from sliding-window to fixed-window\n" +
				"changed rule tenant: what it takes from elsewhere in the document changed; counts begin anew: the algorithm changed from sliding-window to fixed-window in tier free"},
		{"a key", "{name: search, key: [user]", "{name: search, key: [user, ip]",
			"changed rule search: key: [user] → [user, ip]; counts begin anew: the key changed from [user] to [user, ip]"},
		{"a limit less", ", {limit: 10, per: 1s}", "", "changed rule search: limit: {limit: 10, per: 1s} → (none)"},
		{"a limit more", "{limit: 10, per: 1s}", "{limit: 10, per: 1s}, {limit: 900, per: day}",
			"changed rule search: limit: (none) → {limit: 900, per: day}"},
		{"an IPv6 prefix", "key: [ip], limits", "key: [ip], ipv6_prefix: 48, limits",
			"changed rule login: ipv6_prefix: (none) → 48; counts begin anew: addresses, of IPv4 and IPv6, are grouped by /32 and /48 instead of /32 and /64"},
		{"a spelling", "version: 1\n", "version: 1\nattributes: {ip: {}, user: {fold: [lower]}, tenant: {}}\n",
			"added attributes: ip: {}; user: {fold: [lower]}; tenant: {}\n" +
				"changed rule search: what it takes from elsewhere in the document changed; counts begin anew: other spellings of user are the same"},
		{"a tier's window", "limit: 9, per: 1h", "limit: 9, per: 2h",
			"changed tier free: limit: {limit: 9, per: 1h} → {limit: 9, per: 2h}\n" +
				"changed rule tenant: what it takes from elsewhere in the document changed; counts begin anew: the window changed from 1h to 2h in tier free"},
		{"a rule less", "  - {name: login, key: [ip], limits: [{limit: 5, per: 15m}]}\n", "", "removed rule login"},
		{"a rule of another name", "name: login", "name: sign-in", "removed rule login\n" +
			"added rule sign-in: key: [ip]; limits: [{limit: 5, per: 15m}]; counts begin anew: it was named login"},
		{"the order",
			"  - {name: login, key: [ip], limits: [{limit: 5, per: 15m}]}\n  - {name: search, key: [user], limits: [{limit: 100, per: 1h}, {limit: 10, per: 1s}]}\n",
			"  - {name: search, key: [user], limits: [{limit: 100, per: 1h}, {limit: 10, per: 1s}]}\n  - {name: login, key: [ip], limits: [{limit: 5, per: 15m}]}\n",
			"changed order: the rules are in another order"},
		{"an entry", "192.0.2.7", "192.0.2.8", "removed deny {ip: 192.0.2.7}\nadded deny {ip: 192.0.2.8}"},
		{"a subject", "{acme: {tier: free}}", "{acme: {tier: free}, globex: {tier: free}}",
			"added subject tenant globex: tier: free"},
		{"a profile", "X-Real-Ip", "X-Client-Ip",
			"changed profile web: ip: \"header:X-Real-Ip\" → \"header:X-Client-Ip\""},
	} {
		t.Run(test.name, func(t *testing.T) {
			after := mustParse(t, strings.Replace(diffBase, test.replace, test.by, 1))
			if got := lines(Diff(before, after)); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
	if got := Diff(nil, before); len(got) != 7 {
		t.Errorf("against no document: got %d changes, want 7: %s", len(got), lines(got))
	}
}

// TestDiffOfFrom: a change of `from` says where windows begin, although the
// name of the algorithm stays.
func TestDiffOfFrom(t *testing.T) {
	clock := strings.Replace(diffBase, "per: 15m", "per: 15m, algorithm: fixed-window", 1)
	first := strings.Replace(diffBase, "per: 15m", "per: 15m, algorithm: fixed-window, from: first", 1)
	for _, test := range []struct{ before, after, want string }{
		{clock, first, "windows now begin with the first hit instead of by the clock"},
		{first, clock, "windows now begin by the clock instead of with the first hit"},
		{diffBase, first, "the algorithm changed from sliding-window to fixed-window"},
	} {
		got := Diff(mustParse(t, test.before), mustParse(t, test.after))
		if len(got) != 1 || got[0].Anew != test.want {
			t.Errorf("got %+v, want %q", got, test.want)
		}
	}
}

// TestNotIn: what was changed by pieces counts as lost unless a document has it.
func TestNotIn(t *testing.T) {
	base := mustParse(t, diffBase)
	now := mustParse(t, strings.NewReplacer("limit: 5,", "limit: 4,", "192.0.2.7", "192.0.2.8").Replace(diffBase))
	changes := Diff(base, now)
	for _, test := range []struct {
		name string
		doc  *Document
		want string
	}{
		{"all of it", now, ""},
		{"none of it", base,
			"removed deny {ip: 192.0.2.7}\nchanged rule login: limit: 5 → 4 per 15m\nadded deny {ip: 192.0.2.8}"},
		{"the rule", mustParse(t, strings.Replace(diffBase, "limit: 5,", "limit: 4,", 1)),
			"removed deny {ip: 192.0.2.7}\nadded deny {ip: 192.0.2.8}"},
		{"an empty document", mustParse(t, "version: 1\n"),
			"changed rule login: limit: 5 → 4 per 15m\nadded deny {ip: 192.0.2.8}"},
	} {
		if got := lines(NotIn(changes, test.doc)); got != test.want {
			t.Errorf("%s: got\n%s\nwant\n%s", test.name, got, test.want)
		}
	}
}
