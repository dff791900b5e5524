package httpd

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

// A token that is confined to namespaces may ask about subjects with inline
// limits in these namespaces, and about nothing else, on either plane.
func TestConfinedTokens(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) {
		c.TokensFile = apitest.TokensFile(t,
			apitest.ConfinedEntry("shop", "ts", "check, adjust", "checkout, 'mail/*'"),
			apitest.TokenEntry("all", "ta", "admin"))
	})
	ask := func(text, url, body string) (int, string) {
		method := "POST"
		if strings.Contains(url, "DELETE ") {
			method, url = "DELETE", strings.Replace(url, "DELETE ", "", 1)
		}
		resp, answer := n.Do(apitest.Call{Method: method, URL: url, Body: body,
			Header: map[string]string{"Authorization": "Bearer " + text}})
		return resp.StatusCode, answer
	}
	const mine, others = `{"namespace":"mail/x","key":"u","limits":[{"limit":500,"per":"1h"}]}`, `{"namespace":"mail","key":"u","limits":[{"limit":500,"per":"1h"}]}`
	const unnamed = `{"key":"u","limits":[{"limit":500,"per":"1h"}]}`
	with := func(body, field string) string { return strings.TrimSuffix(body, "}") + "," + field + "}" }
	for path, field := range map[string]string{"check": "", "reserve": "", "usage": "", "reset": "",
		"adjust": `"cost":1`} {
		for body, want := range map[string]int{mine: 200,
			strings.Replace(mine, "mail/x", "checkout", 1): 200, others: 403, unnamed: 403,
			`{"rule":"a","key":"u"}`: 403} {
			if field != "" {
				body = with(body, field)
			}
			status, answer := ask("ts", n.DataURL+"/v1/"+path, body)
			if status != want || want == 403 &&
				!(strings.Contains(answer, `"forbidden"`) && strings.Contains(answer, "checkout, mail/*")) {
				t.Errorf("%s %s: have %d %s, want %d", path, body, status, answer, want)
			}
			if status, answer := ask("ta", n.DataURL+"/v1/"+path, body); status != 200 && status != 429 {
				t.Errorf("%s %s without bounds: have %d %s", path, body, status, answer)
			}
		}
	}
	if _, answer := ask("ts", n.DataURL+"/v1/check", unnamed); !strings.Contains(answer, `not about \"inline\"`) {
		t.Errorf("have %s", answer)
	}
	if status, answer := ask("ts", n.DataURL+"/v1/check",
		`{"subjects":[`+mine+`,`+others+`]}`); status != 403 || !strings.Contains(answer,
		`not about \"mail\"`) {
		t.Errorf("subjects: have %d %s", status, answer)
	}
	if status, answer := ask("ts", n.DataURL+"/v1/check", `{"attributes":{"ip":"::1"}}`); status != 403 {
		t.Errorf("attributes: have %d %s", status, answer)
	}
	status, answer := ask("ts", n.DataURL+"/v1/check/batch",
		`{"checks":[`+mine+`,`+others+`,{"rule":"a","key":"u"},`+mine+`]}`)
	if status != 200 || strings.Count(answer, `"code":"forbidden"`) != 2 ||
		strings.Count(answer, `"allowed":true`) != 2 {
		t.Errorf("a batch: have %d %s", status, answer)
	}
	for url, body := range map[string]string{"/v1/try": others, "DELETE /v1/usage?rule=a&key=u": "",
		"/v1/load":     `{"source":"s","load":1}`,
		"/v1/feedback": `{"rule":"a","key":"u","verdict":"false-positive"}`} {
		at := n.AdminURL + url
		if path, ok := strings.CutPrefix(url, "DELETE "); ok {
			at = "DELETE " + n.AdminURL + path
		}
		if status, answer := ask("ts", at, body); status != 403 || !strings.Contains(answer, "checkout, mail/*") {
			t.Errorf("%s: have %d %s", url, status, answer)
		}
	}
	if status, answer := ask("ts", n.AdminURL+"/v1/try", mine); status != 200 {
		t.Errorf("a try: have %d %s", status, answer)
	}
}
