package httpd

import (
	"net/url"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

// A request with an id is carried out once, and every repetition gets the first answer.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	post := func(path, body string) (int, string) {
		resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + path, Body: body})
		return resp.StatusCode, text
	}
	reset := func(id string) (int, string) {
		resp, text := n.Do(apitest.Call{Method: "DELETE", URL: n.AdminURL + "/v1/usage?" + url.Values{"rule": {"a"}, "key": {"u"}, "request_id": {id}}.Encode()})
		return resp.StatusCode, text
	}
	used := func(want string) {
		t.Helper()
		if _, text := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/usage?rule=a&key=u"}); !strings.Contains(text, `"used":`+want+`,`) {
			t.Errorf("want %s used: %s", want, text)
		}
	}
	status, first := post("/v1/adjust", `{"rule":"a","key":"u","cost":2,"request_id":"id-1"}`)
	if status != 200 {
		t.Fatalf("have %d %s", status, first)
	}
	post("/v1/adjust", `{"rule":"a","key":"u","cost":1}`)
	if status, again := post("/v1/adjust", `{ "request_id":"id-1", "cost":2, "key":["u"], "rule":"a" }`); status != 200 || again != first {
		t.Errorf("a repeated adjustment: have %d %s, want %s", status, again, first)
	}
	used("3")
	for path, body := range map[string]string{
		"/v1/adjust":  `{"rule":"a","key":"u","cost":3,"request_id":"id-1"}`,
		"/v1/reserve": `{"rule":"a","key":"u","cost":2,"request_id":"id-1"}`,
	} {
		if status, text := post(path, body); status != 409 || !strings.Contains(text, `"request-id-reused"`) {
			t.Errorf("%s: have %d %s", body, status, text)
		}
	}
	if status, text := reset("id-1"); status != 409 {
		t.Errorf("a reset: have %d %s", status, text)
	}
	status, first = post("/v1/reserve", `{"rule":"a","key":"u","cost":2,"request_id":"id-2"}`)
	if status != 200 || !strings.Contains(first, `"reservation":"`) {
		t.Fatalf("have %d %s", status, first)
	}
	if status, again := post("/v1/reserve", `{"rule":"a","key":"u","cost":2,"request_id":"id-2"}`); status != 200 || again != first {
		t.Errorf("a repeated reservation: have %d %s, want %s", status, again, first)
	}
	used("5")
	status, first = post("/v1/reserve", `{"rule":"a","key":"u","cost":1,"request_id":"id-3"}`)
	if status != 429 {
		t.Fatalf("have %d %s", status, first)
	}
	if status, first = reset("id-4"); status != 200 || !strings.Contains(first, `"used":0,`) {
		t.Errorf("a reset: have %d %s", status, first)
	}
	post("/v1/adjust", `{"rule":"a","key":"u","cost":1}`)
	if status, again := reset("id-4"); status != 200 || again != first {
		t.Errorf("a repeated reset: have %d %s, want %s", status, again, first)
	}
	used("1")
	if status, again := post("/v1/reserve", `{"rule":"a","key":"u","cost":1,"request_id":"id-3"}`); status != 429 || !strings.Contains(again, `"remaining":0`) {
		t.Errorf("a repeated refusal: have %d %s", status, again)
	}
	if status, text := post("/v1/check", `{"rule":"a","key":"u","request_id":"id-5"}`); status != 400 || !strings.Contains(text, `"unknown-field"`) {
		t.Errorf("a check: have %d %s", status, text)
	}
	if status, text := reset(strings.Repeat("x", 65)); status != 400 {
		t.Errorf("an id that is too long: have %d %s", status, text)
	}
}
