package httpd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

// What an adjustment has applied, which limit it and a reset concern, and what they may not name.
func TestAdjustAndResetOneLimit(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	post := func(path, body string, status int, want ...string) {
		t.Helper()
		have, text := n.post(path, body)
		for _, part := range want {
			if have != status || !strings.Contains(text, part) {
				t.Errorf("%s %s: have %d %s\nwant %d %s", path, body, have, text, status, part)
			}
		}
	}
	post("/v1/check", `{"rule":"b","key":"u","cost":2,"costs":{"tokens":20}}`, 200, `"allowed":true`)
	post("/v1/adjust", `{"rule":"b","key":"u","cost":-50}`, 200, `"cost":-50,"limits"`,
		`"applied":{"requests":-2}}`, `"applied":-2`, `"applied":0`)
	post("/v1/adjust", `{"rule":"b","key":"u","costs":{"tokens":5,"requests":1}}`, 200,
		`"applied":{"requests":1,"tokens":5}`)

	names := []string{}
	_, text := n.post("/v1/usage", `{"rule":"b","key":"u"}`)
	for _, l := range apitest.Fields(t, text)["limits"].([]any) {
		names = append(names, l.(map[string]any)["name"].(string))
	}
	first := fmt.Sprintf(`"limit_name":%q`, names[0])
	post("/v1/reset", `{"rule":"b","key":"u",`+first+`}`, 200, `"limits":[{"name":"`+names[0]+`"`, `"used":0,`)
	_, text = n.post("/v1/usage", `{"rule":"b","key":"u"}`)
	if strings.Count(text, `"used":0,`) != 1 {
		t.Errorf("after a reset of %s: %s", names[0], text)
	}
	post("/v1/adjust", `{"rule":"b","key":"u","cost":1,"limit_name":"nobody"}`, 404, `"code":"unknown-limit"`, names[0])
	post("/v1/reset", `{"rule":"b","key":"u","limit_name":"nobody"}`, 404, `"code":"unknown-limit"`,
		`"title":"Unknown limit"`)
	post("/v1/reset", `{"rule":"b","key":"u","limit_name":""}`, 400, `"code":"bad-value"`, "limit_name")
	post("/v1/reset", `{"rule":"b","key":"u","limit_name":7}`, 400, `"code":"bad-value"`, "limit_name")
	post("/v1/usage", `{"rule":"b","key":"u","limit_name":"x"}`, 400, `"code":"unknown-field"`)
	post("/v1/reset", `{"namespace":"n","key":"u","limit_name":"x"}`, 400, `"code":"missing-key"`, "limits is missing")
	post("/v1/adjust", `{"rule":"b","key":"u","cost":1,"bill":"yes"}`, 400, `"code":"bad-value"`, "bill")
	post("/v1/adjust", `{"rule":"b","key":"u","cost":1,"bill":true}`, 400, `"code":"bad-value"`, "bill must be false")
	post("/v1/reset", `{"rule":"b","key":"u","bill":true}`, 400, `"code":"unknown-field"`)

	const limits = `"key":"u","limits":[{"limit":10,"per":"1m","name":"m"},{"limit":10,"per":"1h","name":"h"}]`
	post("/v1/check", `{`+limits+`,"cost":3}`, 200, `"allowed":true`)
	post("/v1/reset", `{`+limits+`,"limit_name":"m"}`, 200, `"limits":[{"name":"m"`)
	post("/v1/usage", `{`+limits+`}`, 200, `"used":0,`, `"used":3,`)
	post("/v1/adjust", `{`+limits+`,"cost":-9,"limit_name":"h"}`, 200, `"applied":{"requests":-3}`)

	for query, want := range map[string]string{
		"limit_name=" + names[1]: `200 `, "limit_name=nobody": `404 unknown-limit`, "limit_name=": `400 bad-value`,
	} {
		resp, text := n.Do(apitest.Call{Method: "DELETE", URL: n.AdminURL + "/v1/usage?rule=b&key=u&" + query})
		code, _ := apitest.Fields(t, text)["code"].(string)
		if have := fmt.Sprintf("%d %s", resp.StatusCode, code); have != want {
			t.Errorf("DELETE %s: have %s, want %s: %s", query, have, want, text)
		}
	}
}

// A check that takes as much as there is of its cost answers with that amount; in a batch, too.
func TestCheckAtMost(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, tt := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/v1/check", `{"rule":"a","key":"u","cost":3,"mode":"at_most"}`, 200, `"granted":3}`},
		{"/v1/check", `{"rule":"a","key":"u","cost":9,"mode":"at_most"}`, 200, `"granted":2}`},
		{"/v1/check", `{"rule":"a","key":"u","cost":9,"mode":"at_most"}`, 429, `"granted":0`},
		{"/v1/check/batch",
			`{"checks":[{"rule":"a","key":"v","cost":4,"mode":"at_most"},{"rule":"a","key":"v","cost":4,"mode":"at_most"}]}`,
			200, `"granted":1}]}`},
		{"/v1/check", `{"key":"u","limits":[{"limit":5,"per":"1h"}],"cost":9,"mode":"at_most"}`, 200, `"granted":5}`},
		{"/v1/check",
			`{"subjects":[{"key":"s","limits":[{"limit":5,"per":"1h"}],"cost":9,"mode":"at_most"}]}`,
			200, `"granted":5}`},
		{"/v1/check", `{"rule":"b","key":"u","mode":"at_most"}`, 400,
			`mode at_most is for checks of one subject and one limit`},
		{"/v1/check", `{"rule":"a","key":"u","mode":"most"}`, 400, `mode must be check, peek, count or at_most`},
		{"/v1/reserve", `{"rule":"a","key":"u","mode":"at_most"}`, 400, `mode must be check`},
		{"/v1/check", `{"rule":"a","key":"u","mode":"at_most","peek":true}`, 400, `exclude each other`},
	} {
		if status, text := n.post(tt.path, tt.body); status != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s: have %d %s, want %d %s", tt.body, status, text, tt.status, tt.want)
		}
	}
}
