package httpd

import (
	"net/url"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

// A request with an id takes effect once, and every repetition gets the first answer.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	post := func(path, body string) (int, string) {
		resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + path, Body: body})
		return resp.StatusCode, text
	}
	reset := func(id string) (int, string) {
		resp, text := n.Do(apitest.Call{Method: "DELETE",
			URL: n.AdminURL + "/v1/usage?" + url.Values{"rule": {"a"}, "key": {"u"}, "request_id": {id}}.Encode()})
		return resp.StatusCode, text
	}
	used := func(want string) {
		t.Helper()
		if _, text := n.Do(apitest.Call{Method: "GET",
			URL: n.AdminURL + "/v1/usage?rule=a&key=u"}); !strings.Contains(text, `"used":`+want+
			`,`) {
			t.Errorf("want %s used: %s", want, text)
		}
	}
	status, first := post("/v1/adjust", `{"rule":"a","key":"u","cost":2,"request_id":"id-1"}`)
	if status != 200 {
		t.Fatalf("have %d %s", status, first)
	}
	post("/v1/adjust", `{"rule":"a","key":"u","cost":1}`)
	if status, again := post("/v1/adjust",
		`{ "request_id":"id-1", "cost":2, "key":["u"], "rule":"a" }`); status != 200 || again != first {
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
	if status, again := post("/v1/reserve",
		`{"rule":"a","key":"u","cost":2,"request_id":"id-2"}`); status != 200 || again != first {
		t.Errorf("a repeated reservation: have %d %s, want %s", status, again, first)
	}
	used("5")
	status, first = post("/v1/reserve", `{"rule":"a","key":"u","cost":1,"request_id":"id-3"}`)
	if status != 429 {
		t.Fatalf("have %d %s", status, first)
	}
	status, first = reset("id-4")
	if status != 200 || !strings.Contains(first, `"used":0,`) {
		t.Errorf("a reset: have %d %s", status, first)
	}
	post("/v1/adjust", `{"rule":"a","key":"u","cost":1}`)
	if status, again := reset("id-4"); status != 200 || again != first {
		t.Errorf("a repeated reset: have %d %s, want %s", status, again, first)
	}
	used("1")
	if status, again := post("/v1/reserve",
		`{"rule":"a","key":"u","cost":1,"request_id":"id-3"}`); status != 429 || !strings.Contains(again,
		`"remaining":0`) {
		t.Errorf("a repeated refusal: have %d %s", status, again)
	}
	if status, text := post("/v1/check",
		`{"rule":"a","key":"u","request_id":"id-5"}`); status != 400 || !strings.Contains(text,
		`request_id is for mode count`) {
		t.Errorf("a check: have %d %s", status, text)
	}
	if status, text := reset(strings.Repeat("x", 65)); status != 400 {
		t.Errorf("an id that is too long: have %d %s", status, text)
	}
}

// Checks in mode count may have an id, alone and in a batch, with a rule and with inline limits.
func TestRequestIDsOfCounts(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	subject := func(key string) string {
		return `{"namespace":"n","key":"` + key + `","limits":[{"limit":5,"per":"1h"}],"cost":4,"mode":"count"}`
	}
	inline := strings.TrimSuffix(subject("u"), "}") + `,"request_id":"x"}`
	two := `{"subjects":[` + subject("v") + `,` + subject("w") + `],"request_id":"x"}`
	for _, body := range []string{`{"rule":"a","key":"u","cost":4,"mode":"count","request_id":"x"}`, inline, two} {
		status, first := n.post("/v1/check", body)
		if status != 200 || !strings.Contains(first, `"used":4,`) {
			t.Fatalf("%s: have %d %s", body, status, first)
		}
		if status, again := n.post("/v1/check", body); status != 200 || again != first {
			t.Errorf("%s: have %d %s, want %s", body, status, again, first)
		}
		if status, again := n.post("/v1/check/batch",
			`{"checks":[`+body+`,`+body+`]}`); status != 200 || strings.Count(again, first) != 2 {
			t.Errorf("%s: have %d %s, want %s twice", body, status, again, first)
		}
		other := strings.Replace(body, `"cost":4`, `"cost":3`, 1)
		if status, text := n.post("/v1/check", other); status != 409 || !strings.Contains(text, `"request-id-reused"`) {
			t.Errorf("%s: have %d %s", other, status, text)
		}
		if _, text := n.post("/v1/check/batch", `{"checks":[`+other+`]}`); !strings.Contains(text, `"status":409`) {
			t.Errorf("%s: have %s", other, text)
		}
		over := strings.ReplaceAll(body, `"x"`, `"y"`)
		status, first = n.post("/v1/check", over)
		if status != 200 || !strings.Contains(first, `"allowed":false`) ||
			!strings.Contains(first, `"used":8,`) || strings.Contains(first, "reservation") {
			t.Errorf("%s: have %d %s", over, status, first)
		}
		if status, again := n.post("/v1/check", over); status != 200 || again != first {
			t.Errorf("%s: have %d %s, want %s", over, status, again, first)
		}
	}
	for body, want := range map[string]string{
		`{"rule":"a","key":"u","mode":"count","request_id":""}`: "request_id must have 1 to 64 bytes",
		`{"rule":"a","key":"u","mode":"peek","request_id":"z"}`: "request_id is for mode count",
		strings.ReplaceAll(two, `"count"`,
			`"check"`): "request_id is for mode count",
		`{"rule":"a","key":"u","mode":"count","request_id":"` + strings.Repeat("z", 65) +
			`"}`: "request_id must have 1 to 64 bytes",
	} {
		if status, text := n.post("/v1/check", body); status != 400 || !strings.Contains(text, want) {
			t.Errorf("%s: have %d %s, want %s", body, status, text, want)
		}
	}
}
