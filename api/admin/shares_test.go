package admin_test

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// For a limit that regions share, answers have the whole limit and what is left
// in this region; usage lists each region.
func TestUsageOfRegions(t *testing.T) {
	t.Parallel()
	doc, err := document.Parse([]byte(`version: 1
rules:
  - {name: world, key: [k], scope: global, regions: {eu: 0.5, us: 0.5}, limits: [{limit: 900, per: 1h, algorithm: fixed-window}]}`))
	expect.NoError(t, err)
	set, err := rules.Compile(doc, 1)
	expect.NoError(t, err)
	n := startNode(t, func(c *apitest.Config) {
		c.Decider.(*limiter.Limiter).SetRules(set.WithShares(&rules.DividingVersions{
			Region: "eu", Held: []rules.HeldVersion{{Set: set, Regions: []string{"eu", "us"}, RecordedAt: 1}},
		}))
	})
	resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check",
		Body: `{"rule":"world","key":"x","detail":true}`})
	if resp.Header.Get("X-RateLimit-Limit") != "900" || resp.Header.Get("X-RateLimit-Remaining") != "449" ||
		!strings.Contains(resp.Header.Get("RateLimit-Policy"), ";q=900;") || strings.Count(body, `"limit":900`) != 4 ||
		strings.Count(body, `"remaining":449`) != 2 {
		t.Errorf("have %v %s", resp.Header, body)
	}
	_, body = n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/usage?rule=world&key=x"})
	for _, want := range []string{
		`"limit":900,"window_ms":3600000,"used":1,"remaining":449,`,
		`"shares":{"eu":450,"us":450},"regions":{` +
			`"eu":{"reachable":true,"limits":[{"name":"world","share":450,"used":1,"own":1,"leased":0,"lent":0,"borrowed":0,"remaining":449}]},` +
			`"us":{"reachable":false,"limits":[]}}}`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("have %s, want %s", body, want)
		}
	}
}
