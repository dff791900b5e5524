package httpd

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

// Checks, batches, reservations and tries all accept limits, subjects and modes.
func TestInlineFormsAreShared(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	const limits = `"limits":[{"limit":10,"per":"1h","algorithm":"fixed-window"},{"limit":100,"per":"1h","algorithm":"fixed-window","unit":"tokens"}]`
	one := func(key, more string) string { return `{"namespace":"n","key":"` + key + `",` + limits + more + `}` }
	try := func(body string) (int, string) {
		resp, text := n.Do(apitest.Call{Method: "POST", URL: n.AdminURL + "/v1/try", Body: body})
		return resp.StatusCode, text
	}
	used := func(key string, want string) {
		t.Helper()
		if _, text := n.post("/v1/usage", one(key, "")); !strings.Contains(text,
			`"limit":10,"window_ms":3600000,"used":`+want+`,`) {
			t.Errorf("%s: want %s used: %s", key, want, text)
		}
	}
	// The checks of a batch.
	status, text := n.post("/v1/check/batch", `{"checks":[`+strings.Join([]string{
		one("a", `,"cost":4`),
		one("a", `,"cost":4,"mode":"peek"`),
		one("a", `,"cost":7,"mode":"count"`),
		one("a", ``),
		`{"subjects":[` + one("a", `,"mode":"count"`) + `,` + one("b", `,"cost":2`) + `]}`,
		`{"rule":"a","key":"u","cost":9,"mode":"count"}`,
		`{"subjects":[` + one("a", ``) + `,{"key":"x"}]}`,
		one("a", `,"mode":"look"`),
		`{"rule":"a",` + limits[0:] + `}`,
	}, ",")+`]}`)
	var have []string
	for _, part := range strings.Split(text, `{"`)[2:] {
		if strings.HasPrefix(part, `limit":`) {
			continue // a rate
		}
		if strings.HasPrefix(part, `allowed":true`) || strings.HasPrefix(part, `allowed":false`) {
			have = append(have, part[len(`allowed":`):strings.Index(part, ",")])
		} else if i := strings.Index(part, `code":"`); i >= 0 {
			have = append(have, part[i+len(`code":"`):i+len(`code":"`)+9])
		}
	}
	if want := "true true false rate-limi false false missing-k bad-value bad-value"; status != 200 || strings.Join(have, " ") != want {
		t.Errorf("a batch: have %d %q, want %q\n%s", status, have, want, text)
	}
	used("a", "12")
	used("b", "2")
	// Reservations.
	status, text = n.post("/v1/reserve",
		`{"subjects":[`+one("c", `,"costs":{"tokens":50}`)+`,`+one("d", `,"cost":3`)+
			`],"ttl_ms":60000,"request_id":"r"}`)
	id, _ := apitest.Fields(t, text)["reservation"].(string)
	if status != 200 || id == "" {
		t.Fatalf("a reservation: have %d %s", status, text)
	}
	used("c", "1")
	used("d", "3")
	if status, text := n.post("/v1/settle",
		`{"reservation":"`+id+`","costs":{"requests":2}}`); status != 200 || !strings.Contains(text,
		`"settled":true`) {
		t.Errorf("settled: have %d %s", status, text)
	}
	used("c", "2")
	used("d", "2")
	if status, text := n.post("/v1/reserve", one("c", `,"mode":"count"`)); status != 400 ||
		!strings.Contains(text, "mode must be check") {
		t.Errorf("a reservation that counts: have %d %s", status, text)
	}
	// Tries take nothing by default.
	for _, tt := range []struct{ more, want, used string }{
		{`,"cost":5`, `{"status":200,`, "0"},
		{`,"cost":5,"mode":"peek"`, `{"status":200,`, "0"},
		{`,"cost":5,"mode":"check"`, `{"status":200,`, "5"},
		{`,"cost":7,"mode":"count"`, `{"status":200,`, "12"},
		{``, `{"status":429,`, "12"},
	} {
		if status, text := try(one("e", tt.more)); status != 200 || !strings.HasPrefix(text, tt.want) {
			t.Errorf("a try with %s: have %d %s", tt.more, status, text)
		}
		used("e", tt.used)
	}
	if status, text := try(`{"subjects":[` + one("f", `,"cost":5`) + `]}`); status != 200 ||
		!strings.HasPrefix(text, `{"status":200,`) {
		t.Errorf("a try of subjects: have %d %s", status, text)
	}
	used("f", "0")
	if status, text := try(one("f", `,"mode":"count","request_id":"x"`)); status != 400 ||
		!strings.Contains(text, `"unknown-field"`) {
		t.Errorf("a try with an id: have %d %s", status, text)
	}
}
