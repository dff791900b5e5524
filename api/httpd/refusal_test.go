package httpd

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

const refusalRules = `
version: 1
rules:
  - name: plain
    match: {kind: plain}
    key: [user]
    limits: [{limit: 1, per: day, algorithm: fixed-window}]
    refusal: {status: 402, headers: {X-Why: "{rule}", Cache-Control: private}, body: "Only {limit} per {window}."}
  - name: object
    match: {kind: object}
    key: [user]
    limits: [{limit: 1, per: day, algorithm: fixed-window}]
    refusal: {body: {error: "{rule} says no", code: 7}}
  - name: problem
    match: {kind: problem}
    key: [user]
    limits: [{limit: 1, per: day, algorithm: fixed-window}]
    refusal: {status: 503, title: Slow down, code: too-fast}
  - name: none
    match: {kind: none}
    key: [user]
    limits: [{limit: 1, per: day, algorithm: fixed-window}]
profiles:
  web: {user: header:X-User, kind: header:X-Kind}
lists: {deny: [{user: mallory}]}
`

// What a rule says to the end user is a member of the answer to a check, whose
// status never changes.
func TestRefusalIsAMember(t *testing.T) {
	n := startNode(t, nil)
	n.UseRules(refusalRules)
	for _, tt := range []struct{ kind, want string }{
		{"plain", `{"status":402,"headers":{"X-Why":"plain","Cache-Control":"private"},"body":"Only 1 per day."}`},
		{"object", `{"body":{"error":"object says no","code":7}}`},
		{"problem", `{"status":503,"title":"Slow down","code":"too-fast"}`},
		{"none", ""},
	} {
		body := `{"attributes":{"user":"ann","kind":"` + tt.kind + `"}}`
		for i, status := range []int{200, 429} {
			resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check", Body: body})
			var answer struct{ Refusal json.RawMessage }
			if err := json.Unmarshal([]byte(text), &answer); err != nil || resp.StatusCode != status {
				t.Fatalf("%s: got %d %s, %v, want %d", tt.kind, resp.StatusCode, text, err, status)
			}
			if want := tt.want; i == 0 && answer.Refusal != nil || i == 1 && string(answer.Refusal) != want {
				t.Errorf("%s, check %d: got refusal %s, want %s", tt.kind, i, answer.Refusal, want)
			}
		}
	}
	if resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check",
		Body: `{"attributes":{"user":"mallory","kind":"plain"}}`}); resp.StatusCode != 403 ||
		strings.Contains(text, "refusal") {
		t.Errorf("denied: got %d %s", resp.StatusCode, text)
	}
}

// The refusals of a batch stand in one table, each once.
func TestRefusalsOfABatch(t *testing.T) {
	n := startNode(t, nil)
	n.UseRules(refusalRules)
	var checks []string
	for _, kind := range []string{"plain", "plain", "plain", "object", "object", "none", "none"} {
		checks = append(checks, `{"attributes":{"user":"ann","kind":"`+kind+`"}}`)
	}
	resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch",
		Body: `{"checks":[` + strings.Join(checks, ",") + `]}`})
	var answer struct {
		Results []struct {
			Allowed bool
			Refusal *int
		}
		Refusals []json.RawMessage
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || resp.StatusCode != 200 ||
		len(answer.Results) != 7 || len(answer.Refusals) != 2 {
		t.Fatalf("got %d %s, %v", resp.StatusCode, text, err)
	}
	for i, want := range []int{-1, 0, 0, -1, 1, -1, -1} {
		if got := answer.Results[i].Refusal; (got == nil) != (want < 0) || got != nil && *got != want {
			t.Errorf("result %d: got refusal %v, want %d", i, got, want)
		}
	}
	if want := `{"body":{"error":"object says no","code":7}}`; string(answer.Refusals[1]) != want {
		t.Errorf("got %s, want %s", answer.Refusals[1], want)
	}
	if _, text = n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch",
		Body: `{"checks":[` + checks[6] + `]}`}); strings.Contains(text, "refusals") {
		t.Errorf("without refusals: got %s", text)
	}
}

// A proxy gets the response that its end user is to see. A status that proxies
// do not take for a refusal stays 429.
func TestAuthAnswersRefusals(t *testing.T) {
	n := startNode(t, nil)
	n.UseRules(refusalRules)
	for _, tt := range []struct {
		kind, query       string
		status            int
		contentType, body string
	}{
		{"plain", "", 402, "text/plain; charset=utf-8", "Only 1 per day."},
		{"plain", "?deny_status=403", 403, "text/plain; charset=utf-8", "Only 1 per day."},
		{"object", "", 429, "application/json", `{"error":"object says no","code":7}`},
		{"problem", "", 429, "application/problem+json", ""},
		{"none", "", 429, "application/problem+json", ""},
	} {
		call := apitest.Call{Method: "GET", URL: n.DataURL + "/v1/auth/web" + tt.query,
			Header: map[string]string{"X-User": "bob" + tt.query, "X-Kind": tt.kind}}
		if resp, body := n.Do(call); resp.StatusCode != 200 || body != "" {
			t.Fatalf("%s: got %d %s", tt.kind, resp.StatusCode, body)
		}
		resp, body := n.Do(call)
		if resp.StatusCode != tt.status || resp.Header.Get("Content-Type") != tt.contentType ||
			tt.body != "" && body != tt.body {
			t.Errorf("%s%s: got %d %s %s", tt.kind, tt.query, resp.StatusCode, resp.Header.Get("Content-Type"), body)
		}
		if resp.Header.Get("Retry-After") == "" || resp.Header.Get("RateLimit") == "" {
			t.Errorf("%s: got %v, want Retry-After and RateLimit", tt.kind, resp.Header)
		}
		checkOwnHeaders(t, tt.kind, resp.Header)
		if tt.kind != "problem" {
			continue
		}
		f := apitest.Fields(t, body)
		if f["title"] != "Slow down" || f["code"] != "too-fast" ||
			f["type"] != "https://iana.org/assignments/http-problem-types#quota-exceeded" ||
			!strings.HasPrefix(f["detail"].(string), `Limit "problem" of rule "problem"`) {
			t.Errorf("got %s", body)
		}
	}
}

// checkOwnHeaders checks the headers that a rule's refusal sets.
func checkOwnHeaders(t *testing.T, kind string, h http.Header) {
	t.Helper()
	want := ""
	if kind == "plain" {
		want = "plain"
	}
	expect.Equal(t, h.Get("X-Why"), want, "%s: got X-Why", kind)
	if kind == "plain" && h.Get("Cache-Control") != "private" || len(h.Values("Cache-Control")) > 1 {
		t.Errorf("%s: got Cache-Control %q", kind, h.Values("Cache-Control"))
	}
}
