package httpd

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

func (n *node) post(path, body string) (int, string) {
	n.T.Helper()
	resp, text := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + path, Body: body})
	return resp.StatusCode, text
}

func TestReserveAndSettle(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	reserve := func(body string) string {
		t.Helper()
		status, text := n.post("/v1/reserve", body)
		id, _ := apitest.Fields(t, text)["reservation"].(string)
		if status != 200 || id == "" || !strings.Contains(text, `"allowed":true,"rule":"b","limit":`) {
			t.Fatalf("have %d %s", status, text)
		}
		return id
	}
	expect := func(body string, status int, want string) {
		t.Helper()
		if have, text := n.post("/v1/settle", body); have != status || !strings.Contains(text, want) {
			t.Errorf("%s: have %d %s\nwant %d %s", body, have, text, status, want)
		}
	}
	id := reserve(`{"rule":"b","key":"u","costs":{"tokens":50},"ttl_ms":5000}`)
	expect(`{"reservation":"`+id+`","costs":{"tokens":30}}`, 200,
		`{"reservation":"`+id+`","settled":true,"costs":{"tokens":30},"remaining":70,"repeated":false}`)
	expect(`{"reservation":"`+id+`","costs":{}}`, 200, `"costs":{"tokens":30},"remaining":70,"repeated":true}`)
	id = reserve(`{"rule":"b","key":"u","costs":{"tokens":50}}`)
	expect(`{"costs":{},"reservation":"`+id+`"}`, 200, `"costs":{"requests":0,"tokens":0}`)
	if _, text := n.Do(apitest.Call{Method: "GET",
		URL: n.AdminURL + "/v1/usage?rule=b&key=u"}); !strings.Contains(text, `"used":1,`) ||
		!strings.Contains(text, `"used":30,`) {
		t.Errorf("have %s", text)
	}
	if status, text := n.post("/v1/reserve",
		`{"rule":"b","key":"u","costs":{"tokens":71}}`); status != 429 || strings.Contains(text,
		"reservation") {
		t.Errorf("too much: have %d %s", status, text)
	}
	if status, text := n.post("/v1/reserve", `{"attributes":{"ip":"192.0.2.9"}}`); status != 403 ||
		strings.Contains(text, "reservation") || !strings.Contains(text, `"code":"denied"`) {
		t.Errorf("denied: have %d %s", status, text)
	}
	// A reservation decided by a list, or by no rule, can be settled too.
	_, text := n.post("/v1/reserve", `{"attributes":{"tenant":"internal"}}`)
	expect(`{"reservation":"`+apitest.Fields(t, text)["reservation"].(string)+
		`","costs":{"tokens":7}}`, 200, `"settled":true,"costs":{},"repeated":false}`)
	_, text = n.post("/v1/reserve", `{"attributes":{}}`)
	expect(`{"reservation":"`+apitest.Fields(t, text)["reservation"].(string)+`","costs":{}}`, 200, `"settled":true`)
}

// What on_expiry may be, and what it may not.
func TestOnExpiry(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for value, want := range map[string]string{
		`"charge"`:                             "",
		`"refund"`:                             "",
		`{"costs":{}}`:                         "",
		`{"costs":{"tokens":50,"requests":1}}`: "",
		`{"costs":{"tokens":0,"apples":0}}`:    "",
		`"keep"`:                               `bad-value on_expiry must be "charge", "refund" or`,
		`true`:                                 `bad-value on_expiry must be`,
		`["refund"]`:                           `bad-value on_expiry must be`,
		`{}`:                                   `missing-key on_expiry.costs is missing`,
		`{"costs":7}`:                          `bad-value on_expiry.costs must be an object`,
		`{"costs":{"tokens":-1}}`:              `bad-value on_expiry.costs.tokens must be`,
		`{"costs":{"tokens":1.5}}`:             `bad-value on_expiry.costs.tokens must be`,
		`{"costs":{"tokens":51}}`:              `bad-value on_expiry is not allowed: costs.tokens is 51, more than the 50`,
		`{"costs":{"apples":1}}`:               `bad-value on_expiry is not allowed: costs.apples is 1, more than the 0`,
		`{"cost":7}`:                           `unknown-field `,
		`{"costs":{},"costs":{}}`:              `bad-json on_expiry.costs is given twice`,
		`{"costs":{"a":1,"a":1}}`:              `bad-json on_expiry.costs.a is given twice`,
	} {
		key := strings.ReplaceAll(value, `"`, "")
		status, text := n.post("/v1/reserve",
			`{"rule":"b","key":"`+key+`","costs":{"tokens":50},"on_expiry":`+value+`}`)
		fields := apitest.Fields(t, text)
		code, _ := fields["code"].(string)
		detail, _ := fields["detail"].(string)
		switch {
		case want == "" && (status != 200 || fields["reservation"] == nil):
			t.Errorf("%s: have %d %s", value, status, text)
		case want != "" && (status != 400 || !strings.HasPrefix(code+" "+detail, want)):
			t.Errorf("%s: have %d %s, want %s", value, status, text, want)
		}
	}
	for _, path := range []string{"/v1/check", "/v1/settle", "/v1/adjust"} {
		if status, text := n.post(path,
			`{"rule":"b","key":"u","on_expiry":"refund"}`); status != 400 || !strings.Contains(text,
			"unknown-field") {
			t.Errorf("%s: have %d %s", path, status, text)
		}
	}
}

// Where there is no more room for reservations of one subject, the answer says
// so and what helps. Nothing else is refused: no check of that subject, no
// settlement, and no reservation of others.
func TestTooManyReservations(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	n.Table.Notes().BoundReservations(100 << 10)
	const body = `{"rule":"b","key":"u","costs":{"tokens":0,"requests":0},"ttl_ms":600000}`
	var ids []string
	status, text := n.post("/v1/reserve", body)
	for ; status == 200 && len(ids) < 1000; status, text = n.post("/v1/reserve", body) {
		ids = append(ids, apitest.Fields(t, text)["reservation"].(string))
	}
	if len(ids) < 100 {
		t.Fatalf("only %d reservations were made, then %d %s", len(ids), status, text)
	}

	fields := apitest.Fields(t, text)
	if status != 503 || fields["code"] != "too-many-reservations" ||
		fields["title"] != "Too many reservations are open" {
		t.Errorf("have %d %s", status, text)
	}
	detail, _ := fields["detail"].(string)
	if !strings.Contains(detail, "settle some, or let them expire") {
		t.Errorf("the detail does not say what helps: %q", detail)
	}
	resp, _ := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/reserve", Body: body})
	if got := resp.Header.Get("Content-Type"); got != "application/problem+json" ||
		resp.Header.Get("Retry-After") != "" {
		t.Errorf("have the headers %v", resp.Header)
	}

	for what, call := range map[string][2]string{
		"a check of the subject":      {"check", `{"rule":"b","key":"u"}`},
		"a check of another subject":  {"check", `{"rule":"b","key":"v"}`},
		"another subject":             {"reserve", `{"rule":"b","key":"v"}`},
		"another rule":                {"reserve", `{"rule":"a","key":"u"}`},
		"settling one of the subject": {"settle", `{"reservation":"` + ids[0] + `","costs":{}}`},
	} {
		status, text := n.post("/v1/"+call[0], call[1])
		expect.Equal(t, status, 200, "%s: %s", what, text)
	}
}

func TestReserveAndSettleRefuse(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, tt := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"reserve", `{"rule":"a","key":"u","ttl_ms":0}`, 400, "ttl_ms must be a whole number from 1 to 3600000"},
		{"reserve", `{"rule":"a","key":"u","ttl_ms":3600001}`, 400, "ttl_ms"},
		{"reserve", `{"rule":"a","key":"u","ttl_ms":1.5}`, 400, "ttl_ms"},
		{"reserve", `{"rule":"a","key":"u","ttl_ms":"5"}`, 400, "ttl_ms"},
		{"reserve", `{"rule":"a","key":"u","ttl_ms":5,"ttl_ms":5}`, 400, `"bad-json"`},
		{"reserve", `{"rule":"a","key":"u","peek":true}`, 400, "peek"},
		{"reserve", `{"rule":"a","key":"u","reservation":"x"}`, 400, `"unknown-field"`},
		{"reserve", `{}`, 400, `"missing-key"`},
		{"reserve", `{"rule":"nope","key":"u"}`, 404, `"unknown-rule"`},
		{"check", `{"rule":"a","key":"u","ttl_ms":5}`, 400, `"unknown-field"`},
		{"settle", `{"costs":{}}`, 400, "reservation is missing"},
		{"settle", `{"reservation":"x"}`, 400, "costs is missing"},
		{"settle", `{"reservation":7,"costs":{}}`, 400, "reservation must be a string"},
		{"settle", `{"reservation":"x","costs":{"tokens":-1}}`, 400, "costs.tokens"},
		{"settle", `{"reservation":"x","costs":7}`, 400, "costs must be an object"},
		{"settle", `{"reservation":"x","costs":{},"costs":{}}`, 400, `"bad-json"`},
		{"settle", `{"reservation":"x","costs":{},"cost":1}`, 400, `"unknown-field"`},
		{"settle", `{"reservation":"x","costs":{}}`, 404, `"unknown-reservation"`},
		{"settle", `{"reservation":"","costs":{}}`, 404, `"unknown-reservation"`},
		{"settle", `{"reservation":"` + strings.Repeat("A", 60_000) + `","costs":{}}`, 404, `"unknown-reservation"`},
		{"settle", `[]`, 400, `"bad-json"`},
		{"settle", ``, 400, `"bad-json"`},
	} {
		if have, text := n.post("/v1/"+tt.path, tt.body); have != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s %.80s: have %d %s\nwant %d %s", tt.path, tt.body, have, text, tt.status, tt.want)
		}
	}
}
