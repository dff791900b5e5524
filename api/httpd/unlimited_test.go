package httpd

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

// What says that there is no limit, or that nothing is allowed, and windows
// that begin with the first hit, over HTTP.
func TestUnlimitedAndZero(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	n.UseRules(`
version: 1
rules:
  - {name: free, key: [k], match: {rule: free}, limits: unlimited}
  - {name: tokens, key: [k], match: {rule: tokens}, limits: [{unlimited: true, unit: tokens}, {limit: 2, per: 1h}]}
  - {name: none, key: [k], match: {rule: none}, limits: [{limit: 0, per: 1m}]}
  - {name: first, key: [k], match: {rule: first}, limits: [{limit: 1, per: 1h, algorithm: fixed-window, from: first}]}
`)
	ask := func(path, body string) (int, string, string) {
		t.Helper()
		resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + path, Body: body})
		rate := resp.Header.Get("RateLimit") + resp.Header.Get("RateLimit-Policy") +
			resp.Header.Get("X-RateLimit-Limit")
		return resp.StatusCode, text, rate
	}
	for _, tt := range []struct {
		path, body string
		status     int
		want       string
		noHeaders  bool
	}{
		{"/v1/check", `{"rule":"free","key":"x"}`, 200,
			`{"allowed":true,"rule":"free","unlimited":true,"retry_after_ms":0,"delay_ms":0,"decided_by":"owner"`,
			true},
		{"/v1/check", `{"attributes":{"rule":"free","k":"x"},"detail":true}`, 200,
			`"limits":[{"rule":"free","name":"free","unlimited":true,"allowed":true,"shadow":false}]`,
			true},
		{"/v1/check", `{"rule":"tokens","key":"x","costs":{"tokens":9000},"detail":true}`, 200,
			`{"rule":"tokens","name":"tokens","unit":"tokens","unlimited":true,`, false},
		{"/v1/check/batch", `{"checks":[{"rule":"free","key":"x"}]}`, 200,
			`[{"allowed":true,"rule":"free","unlimited":true,`, true},
		{"/v1/usage", `{"rule":"free","key":"x"}`, 200, `"limits":[{"name":"free","unlimited":true}]`, true},
		{"/v1/check", `{"rule":"none","key":"x"}`, 429,
			`"code":"cost-above-limit","allowed":false,"rule":"none","limit":0,`, false},
		{"/v1/check", `{"rule":"none","key":"x"}`, 429, `not allowed by this rule`, false},
		{"/v1/check", `{"rule":"none","key":"x","cost":0}`, 200, `"rule":"none","limit":0,`, false},
		{"/v1/check", `{"key":"x","limits":[{"limit":0,"per":"1m"}]}`, 429, `"code":"cost-above-limit"`, false},
		{"/v1/check", `{"key":"x","limits":[{"limit":-1,"per":"1m"}]}`, 400,
			`limits[0].limit must be a whole number in plain digits from 0`, true},
		{"/v1/check", `{"rule":"first","key":"x"}`, 200, `"reset_after_ms":3600000,`, false},
		{"/v1/check", `{"rule":"first","key":"x"}`, 429, `"code":"rate-limited"`, false},
		{"/v1/reserve", `{"rule":"free","key":"x","costs":{"tokens":5}}`, 200, `"reservation":"`, true},
	} {
		status, text, rate := ask(tt.path, tt.body)
		if status != tt.status || !strings.Contains(text, tt.want) || tt.noHeaders != (rate == "") {
			t.Errorf("%s %s: got %d %s with the headers %q, want %d %s", tt.path, tt.body, status,
				text, rate, tt.status, tt.want)
		}
	}
}
