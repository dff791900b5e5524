package admin_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/entries"
)

const entriesDocument = `version: 1
lists:
  deny: [{ip: 192.0.2.0/24}]
  allow: [{tenant: internal}]
default_tier: free
tiers:
  free: {limits: [{limit: 2, per: 1h, algorithm: fixed-window}]}
  pro: {limits: [{limit: 5, per: 1h, algorithm: fixed-window}]}
subjects:
  tenant:
    listed: {tier: pro}
rules:
  - {name: tenant, key: [tenant], tiered: true}
  - {name: login, key: [ip], limits: [{limit: 1, per: 1h}], block: 10m}
  - {name: world, key: [world], scope: global, limits: [{limit: 9, per: 1h, algorithm: fixed-window}]}
`

// entriesNode starts a node with these rules. It has tokens if there are any.
func entriesNode(t *testing.T, tokens ...string) *apitest.Node {
	t.Helper()
	var settings func(*apitest.Config)
	if len(tokens) > 0 {
		file := apitest.TokensFile(t, tokens...)
		settings = func(c *apitest.Config) { c.TokensFile = file }
	}
	n := startNode(t, settings)
	n.UseRules(entriesDocument)
	return n
}

// call is one call of the admin plane and what its answer has.
type call struct {
	method, path, body string
	status             int
	want               string
}

func (c *call) check(t *testing.T, n *apitest.Node, token string) {
	t.Helper()
	header := map[string]string{}
	if token != "" {
		header["Authorization"] = "Bearer " + token
	}
	resp, body := n.Do(apitest.Call{Method: c.method, URL: n.AdminURL + c.path, Body: c.body, Header: header})
	if resp.StatusCode != c.status || !strings.Contains(body, c.want) {
		t.Errorf("%s %s %.80s with %q: %d %s; want %d %s", c.method, c.path, c.body, token,
			resp.StatusCode, body, c.status, c.want)
	}
}

// TestEntriesBesideTheDocument: entries are added, replaced, listed and
// removed, one at a time, and the rules' version stays.
func TestEntriesBesideTheDocument(t *testing.T) {
	t.Parallel()
	n := entriesNode(t)
	const deny, tenant = "/v1/lists/deny/entries", "/v1/subjects/tenant/"
	for _, c := range []call{
		{"POST", deny, `{"ip":"198.51.100.0/24","note":"attack"}`, 200,
			`{"entry":{"ip":"198.51.100.0/24","note":"attack","by":"127.0.0.1","when":"`},
		{"POST", deny, "ip: [198.51.100.0/24]\nfor: 1h", 200, `"entries_version":2}`}, // the same in another notation
		{"POST", deny, `{"ip":["::ffff:203.0.113.8","203.0.113.7"],"tenant":["evil"]}`, 200, `"entries_version":3}`},
		{"GET", "/v1/lists/deny", "", 200,
			`[{"ip":"192.0.2.0/24","origin":"document"},{"ip":"198.51.100.0/24","until":"`},
		{"GET", "/v1/lists/deny", "", 200, `{"ip":["203.0.113.7","203.0.113.8"],"tenant":"evil","by":`},
		{"DELETE", deny, `{"ip":"198.51.100.1"}`, 404, "198.51.100.1"},
		{"DELETE", deny, `{"tenant":"evil"}`, 404, "not-found"},
		{"DELETE", deny, `{"ip":"192.0.2.0/24"}`, 409, `"code":"in-document"`},
		{"DELETE", deny, `{"ip":"192.0.2.0/24"}`, 409, `"line":3`},
		{"DELETE", deny, `{"ip":["203.0.113.8","203.0.113.7"],"tenant":"evil"}`, 200, `"entries_version":4}`},
		{"DELETE", "/v1/lists/allow/entries", "tenant: internal", 409, "in-document"},
		{"POST", "/v1/lists/allow/entries", `{"tenant":"ops"}`, 200, `"entries_version":5}`},
		{"POST", "/v1/lists/other/entries", `{"ip":"1.1.1.1"}`, 404, "the lists are allow and deny"},
		{"POST", deny, "", 422, "invalid-rules"},
		{"POST", deny, "{}", 422, `"path":"lists.deny","message":"expected at least one attribute"`},
		{"POST", deny, `[{"ip":"1.1.1.1"}]`, 422, `"path":"lists.deny"`},
		{"POST", deny, `{"ip":"192.0.2.9/24"}`, 422,
			`"path":"lists.deny.ip","message":"192.0.2.9/24 has bits set behind its prefix`},
		{"POST", deny, `{"ip":[]}`, 422, "an empty list matches nothing"},
		{"POST", deny, `{"ip":""}`, 422, `"path":"lists.deny.ip","message":"the value is empty`},
		{"POST", deny + "?dry_run=true", `{"user":["a",""]}`, 422,
			`"path":"lists.deny.user","message":"the value is empty`},
		{"POST", deny, `{"client_ip":"user=u1"}`, 422,
			`"path":"lists.deny.client_ip","message":"\"user=u1\" is neither an address nor a CIDR`},
		{"POST", "/v1/lists/allow/entries", `{"tenant":""}`, 422,
			`"path":"lists.allow.tenant","message":"the value is empty`},
		{"DELETE", deny, `{"ip":""}`, 404, "not-found"}, // one of an older release can be ended
		{"PUT", "/v1/subjects/ip/someone", `{"tier":"pro"}`, 422,
			`"path":"subjects.ip","message":"\"someone\" is not an address`},
		{"POST", deny, `{"ip":true}`, 400, "lists.deny.ip: true is neither text nor an integer"},
		{"POST", deny, `{"user":["a",1.5]}`, 400, "lists.deny.user[1]: 1.5 is neither text"},
		{"DELETE", deny, `{"user":1e3}`, 400, `"code":"bad-value"`},
		{"DELETE", deny, `{"ip":{"a":"b"}}`, 422, `"path":"lists.deny.ip"`},
		{"POST", deny, `{"ip":"1.1.1.1","for":"never"}`, 400, "for must be a duration"},
		{"POST", deny, `{"ip":"1.1.1.1","until":"2020-01-01T00:00:00Z"}`, 400, "until is in the past"},
		{"POST", deny, `{"ip":"1.1.1.1","for":"1h","until":"2099-01-01T00:00:00Z"}`, 400, "for or until, not both"},
		{"POST", deny, `{"ip":"1.1.1.1","note":"` + strings.Repeat("ü", 257) + `"}`, 400, "at most 256 characters"},
		{"POST", deny, `{"user":"` + strings.Repeat("x", 1025) + `"}`, 422, "can't be longer than 1024 bytes"},
		{"POST", deny, `{"ip":"` + strings.Repeat("1", codec.MaxBody) + `"}`, 413, "too-large"},
		{"GET", deny, "", 405, "POST, DELETE"},

		{"PUT", tenant + "acme", `{"tier":"pro","note":"deal"}`, 200,
			`{"entry":{"attribute":"tenant","value":"acme","tier":"pro","note":"deal","by":`},
		{"GET", tenant + "acme", "", 200, `{"tier":"pro","note":"deal","by":"127.0.0.1","when":"`},
		{"GET", tenant + "acme", "", 200, `"origin":"entry"}`},
		{"GET", tenant + "listed", "", 200, `{"tier":"pro","origin":"document"}`},
		{"PUT", tenant + "listed", `{"limits":{"tenant":[{"limit":7,"per":"1h"}]}}`, 200, `"entries_version":7}`},
		{"GET", tenant + "listed", "", 200, `{"tier":"pro","limits":{"tenant":[{"limit":7,"per":"1h"}]},"by":`},
		{"GET", tenant + "listed", "", 200, `"origin":"both"}`},
		{"GET", "/v1/subjects/tenant", "", 200, `{"subjects":[{"value":"acme","tier":"pro",`},
		{"DELETE", tenant + "listed", "", 200, `"entries_version":8}`},
		{"DELETE", tenant + "listed", "", 409, `"line":11`},
		{"DELETE", tenant + "nobody", "", 404, "not-found"},
		{"PUT", tenant + "acme", `{"tier":"none"}`, 422, "is not defined"},
		{"PUT", "/v1/subjects/tenannt/acme?dry_run=true", `{"tier":"pro"}`, 200,
			`"notes":["the tier changes nothing: no rule with tiers has \"tenannt\" in its key"]`},
		{"PUT", tenant + "acme?dry_run=true", `{"tier":"pro"}`, 200,
			`"before":{"kind":"subject","entry":{"attribute":"tenant","value":"acme","tier":"pro","note":"deal","by":"127.0.0.1","when":"`},
		{"PUT", tenant + "acme", `{"limits":{"login":[{"limit":7,"per":"1h"}]}}`, 422,
			"the rule's key does not include"},
		{"PUT", "/v1/subjects/world/x",
			`{"limits":{"world":[{"limit":7,"per":"1h","algorithm":"fixed-window"}]}}`, 422,
			"write it in the document"},

		{"GET", "/v1/entries?kind=subject", "", 200,
			`{"entries":[{"kind":"subject","entry":{"attribute":"tenant","value":"acme","tier":"pro"`},
		{"GET", "/v1/entries?n=1", "", 200, `"next":"allow[`},
		{"GET", "/v1/entries?kind=x", "", 400, "kind must be"},
		{"GET", "/v1/entries/log?n=1", "", 200, `{"changes":[{"version":8,"when":"`},
		{"GET", "/v1/entries/log?n=2&before=3", "", 200,
			`"before":{"kind":"deny","entry":{"ip":"198.51.100.0/24","note":"attack"`},
		{"GET", "/v1/entries/log?before=x", "", 400, "before must be"},
	} {
		c.check(t, n, "")
	}
	if status, f := n.Check(`{"attributes":{"ip":"198.51.100.1"}}`); status != 403 ||
		f["code"] != "denied" || fmt.Sprint(f["rules_version"]) != "2" {
		t.Errorf("a check that an entry denies: %d %v", status, f)
	}
	if resp, _ := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/rules"}); resp.Header.Get("ETag") != `"2"` {
		t.Errorf("after entries, the rules have version %s; want 2", resp.Header.Get("ETag"))
	}
}

// TestEntriesRehearsed: a dry run of a change answers as the change would, and changes nothing.
func TestEntriesRehearsed(t *testing.T) {
	t.Parallel()
	n := entriesNode(t)
	const deny, dry = "/v1/lists/deny/entries", "?dry_run=true"
	for _, c := range []call{
		{"POST", deny + dry, `{"ip":"203.0.113.7","for":"1h","note":"n"}`, 200,
			`{"entry":{"ip":"203.0.113.7","until":"`},
		{"POST", deny + dry, `{"ip":"::ffff:203.0.113.7"}`, 200, `{"entry":{"ip":"203.0.113.7","by":"127.0.0.1",`},
		{"POST", deny + dry, `{"ip":"203.0.113.7"}`, 200, `,"entries_version":0,"dry_run":true}`},
		{"POST", deny + dry, `{"ip":"203.0.113.7/24"}`, 422, "lists.deny.ip"},
		{"POST", deny + "?dry_run=yes", `{"ip":"203.0.113.7"}`, 400, "dry_run must be"},
		{"DELETE", deny + dry, `{"ip":"203.0.113.7"}`, 404, "not-found"},
		{"DELETE", deny + dry, `{"ip":"192.0.2.0/24"}`, 409, "in-document"},
		{"POST", deny, `{"ip":"203.0.113.7","note":"first"}`, 200, `"entries_version":1}`},
		{"POST", deny + dry, `{"ip":"203.0.113.7","note":"second"}`, 200,
			`"before":{"kind":"deny","entry":{"ip":"203.0.113.7","note":"first"`},
		{"DELETE", deny + dry, `{"ip":"203.0.113.7"}`, 200, `{"entry":{"ip":"203.0.113.7","note":"first"`},
		{"PUT", "/v1/subjects/tenant/acme" + dry, `{"tier":"pro"}`, 200,
			`{"entry":{"attribute":"tenant","value":"acme","tier":"pro"`},
		{"PUT", "/v1/subjects/tenant/acme" + dry, `{"tier":"gold"}`, 422, "gold"},
		{"DELETE", "/v1/subjects/tenant/acme" + dry, "", 404, "not-found"},
		{"POST", "/v1/blocks" + dry, `{"rule":"login","key":"203.0.113.7","for":"1h"}`, 200,
			`{"entry":{"rule":"login","key":"203.0.113.7","until":"`},
		{"DELETE", "/v1/blocks" + dry, `{"rule":"login","key":"203.0.113.7"}`, 404, "does not block this"},
		{"GET", "/v1/entries", "", 200, `"entries_version":1}`},
		{"GET", "/v1/entries", "", 200, `"note":"first"`},
	} {
		c.check(t, n, "")
	}

	// A rehearsal lifts no block, neither one by hand nor the one of a refusal.
	for _, want := range []int{200, 429} {
		if status, f := n.Check(`{"rule":"login","key":"203.0.113.9"}`); status != want {
			t.Fatalf("have %d %v, want %d", status, f, want)
		}
	}
	for _, c := range []call{
		{"DELETE", "/v1/blocks" + dry, `{"rule":"login","key":"203.0.113.9"}`, 200,
			`{"entry":null,"entries_version":1,"dry_run":true}`},
		{"GET", "/v1/usage?rule=login&key=203.0.113.9", "", 200, `"blocked_until_ms":1`},
		{"POST", "/v1/blocks", `{"rule":"login","key":"203.0.113.9","for":"1h"}`, 200, ""},
		{"DELETE", "/v1/blocks" + dry, `{"rule":"login","key":"203.0.113.9"}`, 200, `{"entry":{"rule":"login"`},
		{"GET", "/v1/blocks", "", 200, `"key":"203.0.113.9"`},
	} {
		c.check(t, n, "")
	}
	scoped := entriesNode(t, apitest.TokenEntry("ops", "to", "entries"), apitest.TokenEntry("root", "ta", "admin"))
	(&call{"POST", deny + dry, `{"ip":"203.0.113.0/24","for":"1h"}`, 403, "one value"}).check(t, scoped, "to")
	(&call{"POST", deny, `{"ip":"203.0.113.7"}`, 200, ""}).check(t, scoped, "ta")
	(&call{"DELETE", deny + dry, `{"ip":"203.0.113.7"}`, 403, ""}).check(t, scoped, "to")
}

// TestBlocks: a block by hand refuses, and unblock lifts it together with the automatic one.
func TestBlocks(t *testing.T) {
	t.Parallel()
	n := entriesNode(t)
	const usage = "/v1/usage?rule=login&key=203.0.113.7"
	check := func(want int) {
		t.Helper()
		status, f := n.Check(`{"rule":"login","key":"203.0.113.7"}`)
		expect.Equal(t, status, want, "%v", f)
	}
	for _, c := range []call{
		{"DELETE", "/v1/blocks", `{"rule":"login","key":"203.0.113.7"}`, 404, "does not block this"},
		{"POST", "/v1/blocks", `{"rule":"login","key":"::ffff:203.0.113.7","for":"1h","note":"n"}`,
			200, `{"entry":{"rule":"login","key":"203.0.113.7","until":"`},
		{"GET", usage, "", 200, `"blocked_until_ms":1`},
		{"GET", "/v1/blocks", "", 200, `{"entries":[{"kind":"block","entry":{"rule":"login","key":"203.0.113.7"`},
		{"POST", "/v1/blocks", `{"rule":"nope","key":"x","for":"1h"}`, 404, "unknown-rule"},
		{"POST", "/v1/blocks", `{"key":"x","for":"1h"}`, 400, "rule is missing"},
		{"POST", "/v1/blocks", `{"rule":"login","for":"1h"}`, 400, "key is missing"},
		{"POST", "/v1/blocks", `{"rule":"login","key":["a","b"],"for":"1h"}`, 400, "key has 2 values"},
		{"POST", "/v1/blocks", `{"rule":"login","key":"","for":"1h"}`, 400, `"code":"missing-key"`},
		{"POST", "/v1/blocks", `{"rule":"login","key":[""],"for":"1h"}`, 400, `"code":"missing-key"`},
		{"POST", "/v1/blocks", `{"rule":"login","key":"x","extra":1}`, 422, "extra"},
		{"POST", "/v1/blocks", `{"rule":"login","key":false,"for":"1h"}`, 400, "key: false is neither text"},
	} {
		c.check(t, n, "")
	}
	status, f := n.Check(`{"rule":"login","key":"203.0.113.7"}`)
	if retry := fmt.Sprint(f["retry_after_ms"]); status != 429 || f["rule"] != "login" ||
		fmt.Sprint(f["remaining"]) != "0" || !strings.HasPrefix(retry, "3599") &&
		retry != "3600000" {
		t.Errorf("%d %v; want a refusal for an hour", status, f)
	}
	for _, c := range []call{
		{"DELETE", usage, "", 200, `"blocked_until_ms":1`}, // a reset lifts only the automatic block
		{"DELETE", "/v1/blocks?rule=login&key=203.0.113.7", "", 200,
			`{"entry":{"rule":"login","key":"203.0.113.7","until":"`},
		{"GET", usage, "", 200, `"blocked_until_ms":0`},
	} {
		c.check(t, n, "")
	}
	check(200)
	check(429) // begins the automatic block
	(&call{"POST", "/v1/blocks", `{"rule":"login","key":"203.0.113.7","for":"1m"}`, 200, ""}).check(t, n, "")
	(&call{"DELETE", "/v1/blocks", `{"rule":"login","key":"203.0.113.7"}`, 200, `"until":`}).check(t, n, "")
	(&call{"GET", usage, "", 200, `"blocked_until_ms":0`}).check(t, n, "")
	check(429) // what was used stays, and it blocks again
	(&call{"DELETE", "/v1/blocks", `{"rule":"login","key":"203.0.113.7"}`, 200, `{"entry":null,`}).check(t, n, "")
	(&call{"GET", usage, "", 200, `"blocked_until_ms":0`}).check(t, n, "")
}

// TestEntriesInOtherSpellings: entries were written before the document folded
// their attribute, or counted more addresses together. A caller replaces and
// removes them by naming their subject in any spelling.
func TestEntriesInOtherSpellings(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	document := func(attributes, prefix string) string {
		return `version: 1
attributes: {user: ` + attributes + `, ip: {}}
default_tier: free
tiers:
  free: {limits: [{limit: 2, per: 1h}]}
  pro: {limits: [{limit: 5, per: 1h}]}
rules:
  - {name: plan, key: [user], tiered: true}
  - {name: login, key: [user], limits: [{limit: 9, per: 1h}]}
  - {name: net, key: [ip], ipv6_prefix: ` + prefix + `, limits: [{limit: 9, per: 1h}]}`
	}
	const deny, blocks, dry = "/v1/lists/deny/entries", "/v1/blocks", "?dry_run=true"

	n.UseRules(document("{}", "64"))
	for _, c := range []call{
		{"PUT", "/v1/subjects/user/Ann", `{"tier":"free"}`, 200, ""},
		{"PUT", "/v1/subjects/user/aNN", `{"tier":"free"}`, 200, ""},
		{"POST", deny, `{"user":"Bob"}`, 200, ""},
		{"POST", deny, `{"user":"Bob","ip":"192.0.2.1"}`, 200, ""},
		{"POST", blocks, `{"rule":"login","key":"Eve","for":"1h"}`, 200, ""},
		{"POST", blocks, `{"rule":"login","key":"EVE"}`, 200, ""},
		{"POST", blocks, `{"rule":"net","key":"2001:db8:0:1::1"}`, 200, ""},
		{"POST", blocks, `{"rule":"net","key":"2001:db8:0:2::1"}`, 200, ""},
	} {
		c.check(t, n, "")
	}

	n.UseRules(document("{fold: [lower]}", "48"))
	for _, c := range []call{
		{"GET", "/v1/subjects/user/ann", "", 200, `"tier":"free"`},
		{"PUT", "/v1/subjects/user/ANN" + dry, `{"tier":"pro"}`, 200, `"before":{"kind":"subject"`},
		{"PUT", "/v1/subjects/user/ANN", `{"tier":"pro"}`, 200, `"value":"ann","tier":"pro"`},
		{"GET", "/v1/entries?kind=subject", "", 200, `"value":"ann","tier":"pro"`},
		{"DELETE", "/v1/subjects/user/ANN", "", 200, ""},
		{"GET", "/v1/subjects/user/ann", "", 404, ""},
		{"DELETE", "/v1/subjects/user/ANN", "", 404, ""},

		{"DELETE", deny + dry, `{"user":"Bob"}`, 200, `"user":"Bob"`},
		{"DELETE", deny, `{"user":"Bob"}`, 200, `"user":"Bob"`},
		{"DELETE", deny, `{"user":"bob"}`, 404, ""},
		{"DELETE", deny, `{"user":"BOB","ip":"192.0.2.1"}`, 200, `"user":"Bob"`},

		{"GET", "/v1/usage?rule=login&key=eve", "", 200, `"remaining":0`},
		{"DELETE", blocks, `{"rule":"login","key":"Eve"}`, 200, `"key":"E`},
		{"GET", "/v1/usage?rule=login&key=eve", "", 200, `"blocked_until_ms":0`},
		{"DELETE", blocks, `{"rule":"login","key":"Eve"}`, 404, "does not block this"},

		{"POST", blocks, `{"rule":"net","key":"2001:db8:0:3::1"}`, 200, `"key":"2001:db8::"`},
		{"DELETE", blocks, `{"rule":"net","key":"2001:db8:0:4::1"}`, 200, `"key":"2001:db8::"`},
		{"GET", "/v1/entries", "", 200, `"entries":[]`},
	} {
		c.check(t, n, "")
	}
}

// TestScopeEntries: a token with this scope denies and blocks single values for
// a week at most, and removes only what was written under it.
func TestScopeEntries(t *testing.T) {
	t.Parallel()
	n := entriesNode(t, apitest.TokenEntry("ban", "te", "entries"),
		apitest.TokenEntry("more", "tm", "entries, check, adjust, read"),
		apitest.TokenEntry("all", "tall", "admin"))
	const deny, block = "/v1/lists/deny/entries", "/v1/blocks"
	week := time.Now().Add(7 * 24 * time.Hour)
	for _, c := range []call{
		{"POST", deny, `{"ip":"198.51.100.7","for":"7d"}`, 200, `"by":"ban (127.0.0.1)"`},
		{"POST", deny, `{"ip":"2001:db8::/64","for":"1h"}`, 200, ""},
		{"POST", deny, fmt.Sprintf(`{"user":"bob","until":%q}`, week.Add(-time.Minute).Format(time.RFC3339)), 200, ""},
		{"POST", deny,
			fmt.Sprintf(`{"user":"bob","until":%q}`, week.Add(time.Hour).Format(time.RFC3339)), 403,
			"at most 7 days"},
		{"POST", deny, `{"ip":"198.51.100.7","for":"169h"}`, 403, "at most 7 days"},
		{"POST", deny, `{"ip":"198.51.100.7"}`, 403, "must give an end"},
		{"POST", deny, `{"ip":"198.51.100.0/24","for":"1h"}`, 403, "one value"},
		{"POST", deny, `{"user":"b*","for":"1h"}`, 403, "one value"},
		{"POST", deny, `{"user":["a","b"],"for":"1h"}`, 403, "one value"},
		{"POST", "/v1/lists/allow/entries", `{"ip":"198.51.100.7","for":"1h"}`, 403, "one value"},
		{"POST", block, `{"rule":"login","key":"203.0.113.9","for":"1h"}`, 200, ""},
		{"POST", block, `{"rule":"login","key":"203.0.113.9"}`, 403, "must give an end"},
		{"PUT", "/v1/subjects/tenant/acme", `{"tier":"pro"}`, 403, "scope admin"},
		{"PUT", "/v1/rules", entriesDocument, 403, "scope admin"},
		{"POST", "/v1/entries", `{}`, 403, "scope admin"},
		{"DELETE", block, `{"rule":"login","key":"203.0.113.9"}`, 200, ""},
		{"DELETE", deny, `{"user":"bob"}`, 200, ""},
	} {
		c.check(t, n, "te")
	}
	(&call{"POST", deny, `{"ip":"203.0.113.1"}`, 200, ""}).check(t, n, "tall")
	(&call{"DELETE", deny, `{"ip":"203.0.113.1"}`, 403, "only change what was written under it"}).check(t, n, "tm")
	(&call{"POST", deny, `{"ip":"203.0.113.1","for":"1h"}`, 403,
		"only change what was written under it"}).check(t, n, "te")
	// another token of the same scope wrote it
	(&call{"DELETE", deny, `{"ip":"198.51.100.7"}`, 200, ""}).check(t, n, "tm")
	(&call{"DELETE", deny, `{"ip":"192.0.2.0/24"}`, 409, "in-document"}).check(t, n, "te")
	(&call{"DELETE", deny, `{"ip":"203.0.113.1"}`, 200, ""}).check(t, n, "tall")
	(&call{"GET", "/v1/entries", "", 200, `"token":"ban","scope":"entries"`}).check(t, n, "tall")
}

// TestEntriesAreRestored: a restored entry keeps its author and time, and the
// log names who restored it.
func TestEntriesAreRestored(t *testing.T) {
	t.Parallel()
	n := entriesNode(t)
	const item = `{"kind":"deny","entry":{"ip":"203.0.113.1","until":"2099-01-01T00:00:00.000Z","note":"n","by":"ann","when":"2026-01-01T00:00:00.000Z"},"token":"ban","scope":"entries"}`
	const sleeping = `{"kind":"subject","entry":{"attribute":"tenant","value":"acme","tier":"gone","by":"ann","when":"2026-01-01T00:00:00.000Z"}`
	for _, c := range []call{
		{"POST", "/v1/entries", `{"entries":[` + item + `,` + sleeping + `}]}`, 200, `"entries_version":2`},
		{"GET", "/v1/entries", "", 200, `{"entries":[` + item + `,` + sleeping + `,"asleep":true}],`},
		{"GET", "/v1/entries/log?n=1", "", 200, `"by":"127.0.0.1"`},
		{"POST", "/v1/entries",
			`{"remove":[` + sleeping +
				`}],"entries":[{"kind":"deny","entry":{"user":"old","until":"2020-01-01T00:00:00Z"}}]}`,
			200, `"entries_version":3`},
		// it is gone already
		{"POST", "/v1/entries", `{"remove":[` + sleeping + `}],"entries":[` + item + `]}`, 200, `"entries_version":4`},
		{"POST", "/v1/entries", `{"remove":[` + sleeping + `}]}`, 200, `"entries_version":4`},
		{"POST", "/v1/entries",
			`{"entries":[{"kind":"deny","entry":{"ip":7}}, {"kind":"deny","entry":{}}]}`, 400,
			"item 1: "},
		{"POST", "/v1/entries", `{"entries":[{"kind":"other"}]}`, 400, "kind"},
		{"POST", "/v1/entries", `[`, 400, "bad-json"},
		{"GET", "/v1/entries", "", 200, `{"entries":[` + item + `],`},
	} {
		c.check(t, n, "")
	}
}

// TestEntriesAtOnce: entries that are added concurrently are all there afterwards.
func TestEntriesAtOnce(t *testing.T) {
	t.Parallel()
	n := entriesNode(t)
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			(&call{"POST", "/v1/lists/deny/entries", fmt.Sprintf(`{"tenant":"t%d"}`, i), 200, ""}).check(t, n, "")
		})
	}
	all.Wait()
	_, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/lists/deny"})
	expect.Equal(t, strings.Count(body, `{"tenant":"t`), 12, "of 12: %s", body)
}

// TestFullEntries: a write that finds no place says so.
func TestFullEntries(t *testing.T) {
	t.Parallel()
	n := entriesNode(t)
	full := fmt.Errorf("write entries: %w", entries.ErrFull)
	n.Rules.Fail.Store(&full)
	(&call{"POST", "/v1/lists/deny/entries", `{"ip":"203.0.113.1"}`, 409, `"code":"too-many-entries"`}).check(t, n, "")
}
