package httpd

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/codec"
)

// A check's span is a child of its caller's span. It says how the check was
// decided, and never names the subject.
func TestChecksAreTraced(t *testing.T) {
	t.Parallel()
	collector := apitest.StartCollector(t, 0)
	n := startNode(t, func(c *apitest.Config) { c.Tracer, c.APIToken = collector.Tracer, "sesame" })
	const id = "0af7651916cd43dd8448eb211c80319c"
	ask := func(path, body, flag string) {
		n.Do(apitest.Call{Method: "POST", URL: n.DataURL + path, Body: body,
			Header: map[string]string{"Authorization": "Bearer sesame",
				"Traceparent": "00-" + id + "-b7ad6b7169203331-" + flag}})
	}
	for range 6 {
		ask("/v1/check", `{"rule":"login","key":"198.51.100.77"}`, "01")
	}
	ask("/v1/check", `{"rule":"login","key":"198.51.100.77"}`, "00") // not traced
	ask("/v1/check", `{"rule":"nothing","key":"k"}`, "01")
	ask("/v1/check/batch", `{"checks":[{"rule":"all"},{"rule":"all"}]}`, "01")
	ask("/v1/adjust", `{"rule":"all","cost":1}`, "01")
	n.UseRules("profiles: {web: {ip: header:X-Real-IP}}\nrules: [{name: web, key: [ip], limits: [{limit: 1, per: 8760h}]}]")
	ask("/v1/auth/web", "", "01")
	n.Do(apitest.Call{Method: "GET", URL: n.DataURL + "/healthz",
		Header: map[string]string{"Traceparent": "00-" + id + "-b7ad6b7169203331-01"}})
	have, raw := collector.Close(t)
	var lines []string
	named := ""
	for _, s := range have {
		line := s.Name
		for _, a := range s.Attributes {
			switch a.Key {
			case "rlnode.token":
				named += a.Value.GetStringValue() + " "
			case "rlnode.rule", "rlnode.decided_by":
				line += " " + a.Value.GetStringValue()
			case "http.response.status_code", "rlnode.checks":
				line += " " + string(codec.AppendInt(nil, "", a.Value.GetIntValue()))
			}
		}
		lines = append(lines, line)
	}
	want := strings.Repeat("POST /v1/check 200 owner login\n", 5) +
		"POST /v1/check 429 owner login\nPOST /v1/check 404\nPOST /v1/check/batch 200 2\nPOST /v1/adjust 200\nPOST /v1/auth/{profile} 200 owner web"
	if text := strings.Join(lines, "\n"); text != want {
		t.Errorf("have\n%s\nwant\n%s", text, want)
	}
	if want := strings.Repeat("api-token ", 10); named != want {
		t.Errorf("have the tokens %q, want %q", named, want)
	}
	if strings.Contains(raw, "198.51.100.77") || strings.Contains(raw, "sesame") {
		t.Error("a span reveals the subject or the token")
	}
}
