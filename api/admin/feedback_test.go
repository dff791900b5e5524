package admin_test

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

func TestFeedback(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.AdminToken = "secret" })
	told := func(body, token string) (int, string) {
		resp, text := n.Do(apitest.Call{Method: "POST", URL: n.AdminURL + "/v1/feedback",
			Body: body, Header: map[string]string{"Authorization": token}})
		return resp.StatusCode, text
	}
	for _, c := range []struct {
		body, token string
		status      int
		want        string
	}{
		{`{"rule":"login","key":"198.51.100.7","verdict":"false-positive"}`, "Bearer secret", 200,
			`"key":"198.51.100.7","verdict":"false-positive","false_positives":1}`},
		{`{"rule":"login","key":"::ffff:198.51.100.7","verdict":"false-positive"}`, "Bearer secret",
			200, `"key":"198.51.100.7","verdict":"false-positive","false_positives":2}`},
		{`{"rule":"pair","key":["acme","/x"],"verdict":"false-positive"}`, "Bearer secret", 200,
			`"false_positives":1}`},
		{`{"rule":"all","verdict":"false-positive"}`, "Bearer secret", 200, `"key":[]`},
		{`{"rule":"login","key":"198.51.100.7","verdict":"false-positive"}`, "", 401, `unauthorized`},
		{`{"rule":"nothing","key":"x","verdict":"false-positive"}`, "Bearer secret", 404, `unknown-rule`},
		{`{"rule":"login","verdict":"false-positive"}`, "Bearer secret", 400, `missing-key`},
		{`{"key":"x","verdict":"false-positive"}`, "Bearer secret", 400, `rule is missing`},
		{`{"rule":"login","key":"x"}`, "Bearer secret", 400, `verdict is missing`},
		{`{"rule":"login","key":"x","verdict":"right"}`, "Bearer secret", 400, `verdict must be false-positive`},
		{`{"rule":"login","key":["x","y"],"verdict":"false-positive"}`, "Bearer secret", 400, `bad-value`},
		{`{"rule":"login","key":"x","verdict":"false-positive","why":1}`, "Bearer secret", 400, `unknown-field`},
		{`{"rule":"login","key":"x","verdict":"false-positive"} x`, "Bearer secret", 400, `bad-json`},
		{`{"rule":"login","key":"` + strings.Repeat("x", 70<<10) + `","verdict":"false-positive"}`,
			"Bearer secret", 413, `too-large`},
	} {
		if status, text := told(c.body, c.token); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%.60s: have %d %.300s, want %d %s", c.body, status, text, c.status, c.want)
		}
	}
	_, metrics := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/metrics"})
	for _, want := range []string{`rlnode_false_positives_total{rule="login"} 2`,
		`rlnode_false_positives_total{rule="pair"} 1`} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
