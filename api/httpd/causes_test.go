package httpd

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// causeRules has a rule for each cause of a refusal. The limits of busy are lowered to a half.
const causeRules = `
version: 1
rules:
  - {name: used, key: [a], limits: [{limit: 1, per: 1h, algorithm: token-bucket}]}
  - {name: block, key: [b], limits: [{limit: 1, per: 1h, algorithm: token-bucket}], block: 1h}
  - {name: busy, key: [c], limits: [{limit: 10, per: 1h, algorithm: token-bucket}], adaptive: {source: s, steps: [{above: 0.5, factor: 0.5}]}}
profiles:
  web: {a: header:X-A, b: header:X-B}
`

// startWithCauses starts a node with causeRules, at which the load of busy is known for 5 s.
func startWithCauses(t *testing.T) *node {
	t.Helper()
	return startNode(t, func(c *apitest.Config) {
		l := c.Decider.(*limiter.Limiter)
		l.FollowLoads(func(*rules.Set) []int { return []int{-1, -1, 0} },
			func(string) time.Duration { return 5 * time.Second })
		doc, err := document.Parse([]byte(causeRules))
		expect.NoError(t, err)
		set, err := rules.Compile(doc, 2)
		expect.NoError(t, err)
		l.SetRules(set)
	})
}

// number returns a field of an answer as a number; NaN if it is none.
func number(field any) float64 {
	n, err := strconv.ParseFloat(fmt.Sprint(field), 64)
	if err != nil {
		return math.NaN()
	}
	return n
}

// Every refusal has a code, whichever way the check comes.
func TestCodesOfRefusals(t *testing.T) {
	t.Parallel()
	n := startWithCauses(t)
	for _, rule := range []string{"used", "block", "block"} {
		n.post("/v1/check", fmt.Sprintf(`{"rule":%q,"key":"k"}`, rule))
	}
	for _, tt := range []struct {
		rule, code string
		cost       int
		retries    bool
	}{
		{"used", "rate-limited", 1, true},
		{"used", "cost-above-limit", 2, false},
		{"block", "blocked", 1, true},
		{"busy", "reduced", 6, true},
		{"busy", "cost-above-limit", 11, false},
	} {
		check := fmt.Sprintf(`{"rule":%q,"key":"k","cost":%d}`, tt.rule, tt.cost)
		resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check", Body: check})
		answer := apitest.Fields(t, text)
		if resp.StatusCode != 429 || answer["code"] != tt.code {
			t.Errorf("%s: got %d %s, want the code %s", check, resp.StatusCode, text, tt.code)
		}
		if never := number(answer["retry_after_ms"]) == -1; never == tt.retries {
			t.Errorf("%s: got %s", check, text)
		}
		for _, name := range []string{"Retry-After", "X-RateLimit-Reset"} {
			if got := resp.Header.Get(name); (got != "") != tt.retries {
				t.Errorf("%s: got %s: %q", check, name, got)
			}
		}
		if tt.code == "reduced" && (number(answer["retry_after_ms"]) != 5000 || resp.Header.Get("Retry-After") != "5") {
			t.Errorf("%s: got %s, want to retry when the load expires", check, text)
		}

		_, text = n.post("/v1/check/batch", `{"checks":[`+check+`]}`)
		if result := apitest.Fields(t, text)["results"].([]any)[0].(map[string]any); result["code"] != tt.code {
			t.Errorf("%s in a batch: got %s, want the code %s", check, text, tt.code)
		}
		_, text = n.post("/v1/reserve", check)
		if apitest.Fields(t, text)["code"] != tt.code {
			t.Errorf("%s reserved: got %s, want the code %s", check, text, tt.code)
		}
	}
}

// Forward authentication has the headers of a check, and the body of a refusal.
func TestForwardAuthSaysTheSame(t *testing.T) {
	t.Parallel()
	n := startWithCauses(t)
	auth := func(deny string) (*http.Response, string) {
		return n.Do(apitest.Call{Method: "GET", URL: n.DataURL + "/v1/auth/web" + deny,
			Header: map[string]string{"X-A": "k"}})
	}
	if resp, _ := auth(""); resp.StatusCode != 200 {
		t.Fatalf("got %d", resp.StatusCode)
	}
	want, _ := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check", Body: `{"attributes":{"a":"k"}}`})
	for deny, status := range map[string]int{"": 429, "?deny_status=403": 403} {
		resp, text := auth(deny)
		if resp.StatusCode != status || apitest.Fields(t, text)["code"] != "rate-limited" {
			t.Errorf("%s: got %d %s", deny, resp.StatusCode, text)
		}
		for _, name := range []string{"RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining"} {
			if got := resp.Header.Get(name); got == "" || got != want.Header.Get(name) {
				t.Errorf("%s: got %s: %q, want %q", deny, name, got, want.Header.Get(name))
			}
		}
	}
}

// During a block, nothing remains, by whatever way it is asked.
func TestUsageDuringABlock(t *testing.T) {
	t.Parallel()
	n := startWithCauses(t)
	for range 2 {
		n.post("/v1/check", `{"rule":"block","key":"k"}`)
	}
	if status, text := n.post("/v1/adjust", `{"rule":"block","key":"k","cost":-1}`); status != 200 {
		t.Fatalf("got %d %s", status, text)
	}
	const hour = float64(time.Hour / time.Millisecond)
	soon := func(v any) bool { return number(v) > hour-60_000 && number(v) <= hour }

	_, usage := n.post("/v1/usage", `{"rule":"block","key":"k"}`)
	_, peek := n.post("/v1/check", `{"rule":"block","key":"k","peek":true,"detail":true}`)
	_, admin := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/usage?rule=block&key=k"})
	for what, text := range map[string]string{"usage": usage, "peek": peek, "admin": admin} {
		answer := apitest.Fields(t, text)
		l := answer["limits"].([]any)[0].(map[string]any)
		if number(l["used"]) != 0 || number(l["remaining"]) != 0 || !soon(l["reset_after_ms"]) ||
			!soon(l["more_after_ms"]) {
			t.Errorf("%s: got %s, want nothing left for an hour", what, text)
		}
		if what == "peek" {
			continue
		}
		if left := number(answer["blocked_until_ms"]) - float64(time.Now().UnixMilli()); left < hour-60_000 || left > hour+1000 {
			t.Errorf("%s: got %s, want a block for an hour", what, text)
		}
	}
}
