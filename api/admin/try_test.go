package admin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/codec"
)

func TestTry(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.AdminToken, c.APIToken = "secret", "other" })
	try := func(body string, header map[string]string) (status int, told struct {
		Status  int
		Headers map[string]string
		Answer  map[string]any
		Code    api.Code
	}) {
		t.Helper()
		resp, text := n.Do(apitest.Call{Method: "POST", URL: n.AdminURL + "/v1/try", Body: body, Header: header})
		if err := json.Unmarshal([]byte(text), &told); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return resp.StatusCode, told
	}
	const login = `{"rule":"login","key":"k","detail":true}`
	admin, check := map[string]string{"Authorization": "Bearer secret"}, map[string]string{"Authorization": "Bearer other"}
	for range 3 { // a try takes nothing
		status, told := try(login, check)
		if status != 200 || told.Status != 200 || told.Answer["remaining"] != 4.0 ||
			told.Headers["X-Ratelimit-Limit"]+told.Headers["X-RateLimit-Limit"] != "5" ||
			len(told.Answer["limits"].([]any)) != 1 {
			t.Fatalf("have %d %+v", status, told)
		}
	}
	taking := strings.Replace(login, `"detail"`, `"peek":false,"detail"`, 1)
	if status, told := try(login, nil); status != 401 || told.Code != api.Unauthorized {
		t.Errorf("without a token: have %d %+v", status, told)
	}
	for i := range 7 {
		status, told := try(taking, []map[string]string{admin, check}[i%2])
		want := 200
		if i >= 5 {
			want = 429
		}
		if status != 200 || told.Status != want || told.Answer["allowed"] != (want == 200) ||
			(told.Headers["Retry-After"] != "") != (want == 429) {
			t.Errorf("take %d: have %d %+v", i, status, told)
		}
	}
	if _, told := try(login, admin); told.Status != 429 || told.Answer["status"] != 429.0 ||
		!strings.Contains(fmt.Sprint(told.Answer["detail"]), "used up") {
		t.Errorf("have %+v", told)
	}
	if status, told := try(`{"attributes":{"ip":"192.0.2.9"}}`, check); status != 200 ||
		told.Status != 403 || told.Answer["decided_by"] != "list" ||
		told.Answer["code"] != "denied" {
		t.Errorf("a listed address: have %d %+v", status, told)
	}
	for body, want := range map[string]api.Code{
		``: api.BadJSON, `[]`: api.BadJSON, `{}`: api.MissingKey,
		`{"rule":"login"}`: api.MissingKey, `{"rule":"nothing","key":"k"}`: api.UnknownRule,
		`{"rule":"login","key":"k","x":1}`:                                    api.UnknownField,
		`{"rule":"login","key":["a","b"]}`:                                    api.BadValue,
		`{"rule":"login","key":"k","wait":true}`:                              api.BadValue,
		`{"rule":"login","key":"k","cost":1.5}`:                               api.BadValue,
		`{"rule":"login","key":"` + strings.Repeat("x", codec.MaxBody) + `"}`: api.TooLarge,
		"{\"rule\":\"login\",\"key\":\"\xff\"}":                               api.BadJSON,
	} {
		if status, told := try(body, check); told.Code != want || status != (&api.Error{Code: want}).Status() {
			t.Errorf("%.60s: have %d %s, want %s", body, status, told.Code, want)
		}
	}
	// Which conditions fail is for those who may read the rules.
	for token, want := range map[string]bool{"secret": true, "other": false} {
		_, text := n.Do(apitest.Call{
			Method: "POST", URL: n.AdminURL + "/v1/try", Body: `{"attributes":{"nothing":"x"}}`,
			Header: map[string]string{"Authorization": "Bearer " + token},
		})
		if got := strings.Contains(text, `"rules":[{"rule":`) && strings.Contains(text, "is absent"); got != want {
			t.Errorf("reasons for token %s: got %v, want %v: %s", token, got, want, text)
		}
	}
	if status, told := try(login,
		map[string]string{"Origin": "http://elsewhere.example",
			"Sec-Fetch-Site": "cross-site"}); status != 403 || told.Code != api.CrossOrigin {
		t.Errorf("from another origin: have %d %+v", status, told)
	}
	if resp, _ := n.Do(apitest.Call{Method: "GET",
		URL: n.AdminURL + "/v1/try"}); resp.StatusCode != 405 || resp.Header.Get("Allow") != "POST" {
		t.Errorf("GET: have %d %v", resp.StatusCode, resp.Header)
	}
}
