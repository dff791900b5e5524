package httpd

import (
	"regexp"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

// POST /json is Envoy's rate limit service in JSON. It answers 200, or 429 if a
// limit is exceeded; errors are as on other routes.
func TestEnvoyAsJSON(t *testing.T) {
	file := apitest.TokensFile(t, apitest.TokenEntry("asker", "secret-asker", "check"),
		apitest.TokenEntry("root", "secret-root", "admin"))
	n := startNode(t, func(c *apitest.Config) { c.TokensFile = file })
	n.UseRules(`
version: 1
envoy:
  - {domain: d, descriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1}}]}
`)
	limit := `"currentLimit":{"requestsPerUnit":1,"unit":"YEAR"}`
	reset := regexp.MustCompile(`,"durationUntilReset":"[1-9][0-9]*s"`)
	for _, test := range []struct {
		token, body string
		status      int
		want        string
	}{
		{"asker", `{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}`,
			200, `{"overallCode":"OK","statuses":[{"code":"OK",` + limit + `}]}`},
		{"asker",
			`{"domain": "d", "hits_addend": 1, "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}`,
			429, `{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT",` + limit + `}]}`},
		{"asker", `{"domain": "other", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}`,
			200, `{"overallCode":"OK","statuses":[{"code":"OK"}]}`},
		{"asker", `{"descriptors": [{"entries": [{"key": "k"}]}]}`, 400, "rate limit domain must not be empty"},
		{"asker", `{"domain": "d"}`, 400, "rate limit descriptor list must not be empty"},
		{"asker", `{"domain": "d", "strange": 1}`, 400, "the body is not a RateLimitRequest"},
		{"asker", `{"domain": `, 400, "the body is not a RateLimitRequest"},
		{"asker",
			`{"domain": "d", "descriptors": [{"entries": [{"key": "k"}], "isNegativeHits": true}]}`,
			403, "adjust"},
		{"nobody", `{"domain": "d"}`, 401, "does not know the token"},
		{"asker", `{"domain": "` + strings.Repeat("x", 300_000) + `"}`, 413, "too-large"},
	} {
		resp, have := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/json", Body: test.body,
			Header: map[string]string{"Authorization": "Bearer secret-" + test.token}})
		have = reset.ReplaceAllString(have, "")
		if resp.StatusCode != test.status || (test.status == 200 || test.status == 429) &&
			have != test.want || !strings.Contains(have, test.want) {
			t.Errorf("%.80s\nhave %d %s\nwant %d %s", test.body, resp.StatusCode, have, test.status, test.want)
		}
	}
}
