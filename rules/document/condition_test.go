package document

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/entries"
)

// Subjects, lists and tables are found by every spelling.
func TestFoldedPieces(t *testing.T) {
	doc := mustParse(t, readConditions(t))
	if s := doc.Subject("user", " Ann "); s == nil || s.Value != "ann" {
		t.Errorf("subject: got %+v, want ann", s)
	}
	f, err := doc.ReadListed(entries.Deny, []byte(`{"user": "MALLORY"}`))
	expect.NoError(t, err)
	if _, found := doc.FindEntry(f.Entry); !found {
		t.Errorf("an entry: %s is not found", f.ID())
	}
	if _, err = Parse([]byte("attributes: {user: {fold: [lower]}}\ntiers: {a: {limits: [{limit: 1, per: 1m}]}}\n" +
		"subjects: {user: {Ann: {tier: a}, ANN: {tier: a}}}")); err == nil ||
		!strings.Contains(err.Error(), "duplicate value; the first is on line 3") {
		t.Errorf("two spellings: got %v", err)
	}
}

func TestParse_conditions(t *testing.T) {
	const rule = "rules:\n  - {name: a, limits: [{limit: 1, per: 1m}], "
	for _, tt := range []struct{ src, want string }{
		{rule + "key: [[]]}", "2:52: rules[0].key[0]: expected at least one attribute"},
		{rule + "key: [[user, user]]}", `rules[0].key[0][1]: duplicate attribute "user"`},
		{rule + "key: [[user, ip], user]}", `rules[0].key[1]: duplicate attribute "user"`},
		{rule + "key: [[a=b, c]]}", "can't contain ="},
		{rule + "key: [[a, b, c], [d, e, f], [g, h]]}", "more than 16 choices"},
		{rule + "key: [[user, [ip]]]}", "expected text, not a list"},
		{rule + "key: [user], absent: [user]}", `rules[0].absent[0]: the rule can never apply: it also needs "user"`},
		{rule + "key: [user], match: {ip: x}, absent: [ip]}", "can never apply"},
		{rule + "key: [[user, ip]], absent: [user]}", ""},
		{rule + "key: [user], absent: []}", "expected at least one attribute"},
		{rule + "key: [user], not: {}}", "rules[0].not: expected at least one attribute"},
		{rule + "key: [user], tiers: [gold]}", `rules[0].tiers[0]: the tier "gold" is not defined`},
		{rule + "key: [user], tiers: []}", "expected at least one tier"},
		{"attributes: [user]\n" + rule + "key: [uesr]}",
			`3:52: rules[0].key[0]: "uesr" is not declared in attributes; did you mean user?`},
		{rule + "key: [uesr]}\nattributes: [user]", `"uesr" is not declared`},
		{"attributes: [user]\n" + rule + "key: [user], match: {endpoint: x}}",
			`rules[0].match.endpoint: "endpoint" is not declared`},
		{"attributes: [user]\n" + rule + "key: [user], not: {endpoint: x}}", `"endpoint" is not declared`},
		{"attributes: [user]\n" + rule + "key: [user], absent: [ip]}", `"ip" is not declared`},
		{"attributes: [user]\n" + rule + "key: [user], cost: {by: model}}",
			`rules[0].cost.by: "model" is not declared`},
		{"attributes: [user]\nlists: {deny: [{ip: 192.0.2.1}]}", `lists.deny[0].ip: "ip" is not declared`},
		{"attributes: [user]\nprofiles: {web: {ip: header:X-Forwarded-For}}", `profiles.web.ip: "ip" is not declared`},
		{"attributes: [user]\ntiers: {a: {limits: [{limit: 1, per: 1m}]}}\nsubjects: {tenant: {x: {tier: a}}}", `subjects.tenant: "tenant" is not declared`},
		{"attributes: [user, user]", `attributes[1]: duplicate attribute "user"`},
		{"attributes: []", "expected at least one attribute"},
		{"attributes: user", "expected a list of names or a mapping, not text"},
		{"attributes: {user: {fold: [upper]}}", `attributes.user.fold[0]: "upper" is not one of trim, lower, nfc`},
		{"attributes: {user: {fold: [trim, trim]}}", `duplicate word "trim"`},
		{"attributes: {user: {folds: [trim]}}", "did you mean fold?"},
		{"attributes: {user: , ip: {}, endpoint: {path: true}}", ""},
		{rule + "key: [user], block: [5m, 1h, 1d]}", ""},
		{rule + "key: [user], block: [5m]}", ""},
		{rule + "key: [user], block: []}", "rules[0].block: expected 1 to 8 durations"},
		{rule + "key: [user], block: [1h, 5m]}", "rules[0].block[1]: each block must be longer than the one before it"},
		{rule + "key: [user], block: [1h, 366d]}", "366d is not in 10ms…365d"},
		{rule + "key: [user], block: [1s,2s,3s,4s,5s,6s,7s,8s,9s]}", "expected 1 to 8 durations"},
	} {
		_, err := Parse([]byte(tt.src + "\n"))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s:\ngot %v\nwant %q", tt.src, err, tt.want)
		}
	}
}

// A piece may name only what the document declares.
func TestApply_undeclared(t *testing.T) {
	doc := mustParse(t, readConditions(t))
	limits := "limits: [{limit: 1, per: 1m}]"
	for _, c := range []Change{
		{Part: RulePart, Name: "new", Body: []byte("{key: [device], " + limits + "}")},
		{Part: ListPart, Name: "deny", Body: []byte("[{device: x}]")},
	} {
		if _, err := doc.Apply(c); err == nil || !strings.Contains(err.Error(), `"device" is not declared`) {
			t.Errorf("%v: got %v", c, err)
		}
	}
}

// TestValuesOfOtherKinds: what no check can send as a value is an error where
// callers write single entries, and a warning in a document, where it counts as
// its text.
func TestValuesOfOtherKinds(t *testing.T) {
	for value, want := range map[string]string{
		"7": "", "-7": "", `"true"`: "", `"7.0"`: "", "x": "", "12345678901234567890123": "",
		"7.0":  `7.0 is neither text nor an integer in plain digits; for the text, write "7.0"`,
		"true": `write "true"`, "1e3": `write "1e3"`, "-0": `write "-0"`, "007": `write "007"`,
		"0x1f": `write "0x1f"`, ".inf": `write ".inf"`,
		"[x, true]": `write "true"`,
	} {
		src := fmt.Sprintf("rules:\n  - {name: a, key: [id], match: {user: %s}, limits: [{limit: 1, per: 1m}]}\nlists: {deny: [{user: %[1]s}]}\n", value)
		doc := mustParse(t, src)
		var got []string
		for _, w := range doc.Warnings() {
			got = append(got, w.Error())
		}
		if len(got) != 0 && want == "" || want != "" &&
			(len(got) != 2 || !strings.Contains(got[0], "2:") || !strings.Contains(got[0], want)) {
			t.Errorf("%s: got warnings %q, want two of %q", value, got, want)
		}

		_, err := doc.ReadListed(entries.Deny, fmt.Appendf(nil, "{user: %s}", value))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: a deny entry got %v, want %q", value, err, want)
		}
		_, err = ReadBlock(fmt.Appendf(nil, "{rule: a, key: %s, for: 1h}", value))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: a block got %v, want %q", value, err, want)
		}
	}
	if doc := mustParse(t,
		"subjects: {tenant: {true: {tier: x}, 7: {tier: x}}}\ntiers: {x: {limits: unlimited}}\n"); len(doc.Warnings()) != 1 {
		t.Errorf("subjects: got %v, want one warning", doc.Warnings())
	}
}

func TestWarnings_names(t *testing.T) {
	rule := func(key string) string {
		return fmt.Sprintf("rules:\n  - name: a\n    key: [%s]\n    limits: [{limit: 1, per: 1m}]\n", key)
	}
	for _, tt := range []struct {
		src  string
		want []string
	}{
		{rule("endpiont"), []string{`3:5: rules[0].key[0]: nothing else is called "endpiont"; did you mean endpoint?`}},
		{rule("ipp"), []string{"did you mean ip?"}},
		{rule("tenannt"), []string{"did you mean tenant?"}},
		{rule("Tenant"), []string{"did you mean tenant?"}},
		{rule("shop_kind, shop_kinds"), []string{"did you mean shop_kinds?", "did you mean shop_kind?"}},
		{rule("shop_kind") + "    match: {shop_kind: x}\n    not: {shop_kimd: y}\n",
			[]string{"rules[0].not.shop_kimd: "}},
		{rule("ip, id, user, users_shop, model, mode, warehouse"), nil},
		{rule("endpiont") + "    match: {endpiont: x}\n", nil},
		{"attributes: [endpiont]\n" + rule("endpiont"), nil},
		{rule("user") + "    match: {method: '!POST'}\n",
			[]string{`5:5: rules[0].match.method: "!POST" is compared as it stands, with its !; leave out the !, or write it under not`}},
		{rule("user") + "    not: {method: ['!POST']}\n", []string{"rules[0].not.method: "}},
		{"lists: {deny: [{user: '!x'}]}\n", []string{"lists.deny[0].user: "}},
	} {
		var got []string
		for _, w := range mustParse(t, tt.src).Warnings() {
			got = append(got, w.Error())
		}
		if !slices.EqualFunc(got, tt.want, strings.Contains) {
			t.Errorf("%s:\ngot %q\nwant %q", tt.src, got, tt.want)
		}
	}
}
