package httpd

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// rateFields parses an answer's fields of
// draft-ietf-httpapi-ratelimit-headers-11, and checks what must always hold: q,
// w, r and t are within bounds, both fields name the same limits, and no t is
// later than Retry-After.
func rateFields(t *testing.T, h http.Header) (policies, limits map[string]map[string]any) {
	t.Helper()
	read := func(name string, bounds map[string]int64, wanted string) map[string]map[string]any {
		items, err := apitest.ParseItems(h.Get(name))
		if err != nil || len(h.Values(name)) != 1 {
			t.Fatalf("%s: %q: %v", name, h.Values(name), err)
		}
		out := map[string]map[string]any{}
		for _, item := range items {
			out[item.Value] = item.Params
			if item.Params[wanted] == nil {
				t.Errorf("%s: %q has no %s", name, item.Value, wanted)
			}
			for key, value := range item.Params {
				low, known := bounds[key]
				if n, isInteger := value.(int64); isInteger != (key != "qu") || !known || isInteger && n < low {
					t.Errorf("%s: %q: %s=%v", name, item.Value, key, value)
				}
			}
		}
		return out
	}
	policies = read("RateLimit-Policy", map[string]int64{"q": 0, "w": 1, "qu": 0}, "q")
	limits = read("RateLimit", map[string]int64{"r": 0, "t": 1}, "r")
	if len(policies) != len(limits) {
		t.Errorf("have %v and %v", policies, limits)
	}
	retry, err := strconv.ParseInt(h.Get("Retry-After"), 10, 64)
	for name, params := range limits {
		if policies[name] == nil {
			t.Errorf("%q has no policy", name)
		}
		if more, ok := params["t"].(int64); ok && err == nil && more > retry {
			t.Errorf("%q: t=%d is later than Retry-After: %d", name, more, retry)
		}
	}
	return policies, limits
}

// Both fields can be parsed, units other than requests are named, and t is the
// time until more is available.
func TestHeadersByDraft11(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	n.UseRules(`
version: 1
rules:
  - name: "ü \"quoted\\ name"
    key: [k]
    match: {rule: kinds}
    limits:
      - {name: bucket, limit: 10, per: 1m, burst: 9007199254740991, algorithm: token-bucket}
      - {name: slow, limit: 1, per: 1h, burst: 3, algorithm: token-bucket}
      - {name: queue, limit: 30, per: 1m, algorithm: leaky-bucket}
      - {name: "é\"\\", limit: 20, per: 366d, algorithm: fixed-window}
      - {name: sliding, limit: 20, per: 366d}
      - {name: log, limit: 20, per: 366d, algorithm: sliding-window-log}
      - {name: tpm, limit: 9007199254740991, per: 1m, algorithm: token-bucket, unit: tokens}
      - {name: odd, limit: 100, per: 1m, algorithm: token-bucket, unit: "a\"é"}
  - {name: window, key: [k], match: {rule: window}, limits: [{limit: 2, per: 366d, algorithm: fixed-window}]}
  - {name: slides, key: [k], match: {rule: slides}, limits: [{limit: 2, per: 366d}]}
  - {name: pair, key: [k], match: {rule: pair}, limits: [{name: hour, limit: 2, per: 1h, algorithm: token-bucket}, {name: year, limit: 5, per: 366d, algorithm: fixed-window}]}
`)
	check := func(rule, k, more string) http.Header {
		t.Helper()
		resp, _ := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check",
			Body: fmt.Sprintf(`{"attributes":{"rule":%q,"k":%q}%s}`, rule, k, more)})
		return resp.Header
	}
	ask := func(rule, more string) http.Header { return check(rule, "v", more) }
	const year = 366 * 24 * 3600
	policies, limits := rateFields(t, ask("kinds", ""))
	for name, want := range map[string]string{
		"bucket": "999999999999999 <nil> 2305843010 6", "slow": "3 <nil> 10800 3600",
		"queue": "30 <nil> 60 2", "log": "20 <nil> 31622400 31622400",
		"tpm": "999999999999999 tokens 60 <nil>", "odd": `100 a"%C3%A9 60 <nil>`,
	} {
		expect.Equal(t,
			fmt.Sprintf("%v %v %v %v", policies[name]["q"], policies[name]["qu"],
				policies[name]["w"], limits[name]["t"]),
			want, "%s", name)
	}
	for _, name := range []string{`%C3%A9"\`, "sliding"} {
		if more, ok := limits[name]["t"].(int64); !ok || more < 1 || name != "sliding" && more > year || more > 2*year {
			t.Errorf("%s: have t=%v", name, limits[name]["t"])
		}
	}
	if limits["bucket"]["r"] != int64(999999999999999) || policies["é"] != nil {
		t.Errorf("have %v", limits)
	}
	// Refused: t is at most Retry-After, and limits with more only after that have
	// no t. If it is for good, none has.
	for _, rule := range []string{"window", "slides"} {
		for range 2 {
			ask(rule, "")
		}
		h := ask(rule, "")
		_, limits := rateFields(t, h)
		if have := fmt.Sprint(limits[rule]["t"]); have != h.Get("Retry-After") || limits[rule]["r"] != int64(0) {
			t.Errorf("%s: have %v, Retry-After %s", rule, limits[rule], h.Get("Retry-After"))
		}
		_, limits = rateFields(t, ask(rule, `,"cost":3`)) // never allowed, so without Retry-After
		if _, known := limits[rule]["t"]; known {
			t.Errorf("%s: have %v", rule, limits[rule])
		}
	}
	ask("pair", "")
	h := ask("pair", `,"cost":2`)
	_, limits = rateFields(t, h)
	if have := fmt.Sprint(limits["hour"]["t"]); have != h.Get("Retry-After") ||
		limits["year"]["t"] != nil || limits["hour"]["r"] != int64(1) {
		t.Errorf("have %v, Retry-After %s", limits, h.Get("Retry-After"))
	}
	_, limits = rateFields(t, ask("pair", `,"cost":0`))
	if limits["year"]["t"] == nil {
		t.Errorf("have %v", limits)
	}
	_, limits = rateFields(t, check("slides", "fresh", `,"cost":0`))
	if limits["slides"]["r"] != int64(2) || limits["slides"]["t"] != nil {
		t.Errorf("nothing is used: have %v", limits)
	}
}
