package admin_test

import (
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

// A rule's definition alone is compared within the document in force, or within
// an earlier one. Nothing is written.
func TestDiffOfOneRule(t *testing.T) {
	t.Parallel()
	n := entriesNode(t)
	const diff = "/v1/rules/diff?rule="
	for _, c := range []call{
		{"POST", diff + "login", `{"key":["ip"],"limits":[{"limit":1,"per":"1h"}],"block":"10m"}`,
			200, `"changed":false,"summary":["no change"]`},
		{"POST", diff + "login", `{"key":["ip"],"limits":[{"limit":2,"per":"1h"}],"block":"10m"}`,
			200, `"changes":[{"kind":"rule","name":"login","change":"changed"`},
		{"POST", diff + "login", "key: [ip]\nlimits: [{limit: 2, per: 1h}]\nblock: 10m\n", 200, `1 → 2`},
		{"POST", diff + "new", `{"key":["ip"],"limits":[{"limit":2,"per":"1h"}]}`, 200,
			`"name":"new","change":"added"`},
		{"POST", diff + "login", `{"key":["ip"],"limits":[{"limit":-2,"per":"1h"}]}`, 422, "invalid-rules"},
		{"POST", diff + "login", ``, 400, "send the rule's definition"},
		{"GET", "/v1/rules/login", "", 200, `"limit":1`},
	} {
		c.check(t, n, "")
	}
	if resp, _ := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/rules"}); resp.Header.Get("ETag") != `"2"` {
		t.Errorf("the rules have version %s, want 2", resp.Header.Get("ETag"))
	}
}
