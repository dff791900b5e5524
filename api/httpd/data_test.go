package httpd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
)

func TestCheckErrors(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	many := make([]string, 33)
	for i := range many {
		many[i] = fmt.Sprintf(`"a%d":"v"`, i)
	}
	big := strings.Repeat("x", 1025)
	tests := []struct {
		body   string
		status int
		code   api.Code
		detail string // what the detail must contain
	}{
		{`{"rule":"login","key":"k"`, 400, api.BadJSON, "comma or the end"},
		{``, 400, api.BadJSON, "empty"},
		{`[]`, 400, api.BadJSON, "not an object"},
		{`{"rule":"login","key":"k"} {}`, 400, api.BadJSON, "more follows"},
		{`{"rule":"login","rule":"login","key":"k"}`, 400, api.BadJSON, "rule is given twice"},
		{`{"attributes":{"ip":"1","ip":"2"}}`, 400, api.BadJSON, "attributes.ip is given twice"},
		{`{"rule":"login","key":"\ud800"}`, 400, api.BadJSON, "surrogate"},
		{"{\"rule\":\"login\",\"key\":\"\xff\"}", 400, api.BadJSON, "UTF-8"},
		{`{"x":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, 400, api.BadJSON, "too deep"},
		{`{"rule":"login","key":"k","reqests":1}`, 400, api.UnknownField, "reqests"},
		{`{"rule":"login","key":"k","cost":1.0}`, 400, api.BadValue,
			"cost must be a whole number in plain digits from 0 to 9007199254740991"},
		{`{"rule":"login","key":"k","cost":1e3}`, 400, api.BadValue, "cost"},
		{`{"rule":"login","key":"k","cost":-1}`, 400, api.BadValue, "cost"},
		{`{"rule":"login","key":"k","cost":9007199254740992}`, 400, api.BadValue, "cost"},
		{`{"rule":"login","key":"k","cost":null}`, 400, api.BadValue, "cost"},
		{`{"rule":"login","key":"k","costs":{"tokens":"5"}}`, 400, api.BadValue, "costs.tokens"},
		{`{"rule":"login","key":"k","cost":1,"costs":{"requests":2}}`, 400, api.BadValue, "costs.requests"},
		{`{"rule":"login","key":"` + big + `"}`, 400, api.BadValue, "1024"},
		{`{"attributes":{"ip":"` + big + `"}}`, 400, api.BadValue, "attributes.ip"},
		{`{"attributes":{` + strings.Join(many, ",") + `}}`, 400, api.BadValue, "32"},
		{`{"rule":"login","key":"k","attributes":{}}`, 400, api.BadValue, "exclude"},
		{`{"rule":"login","key":["a","b"]}`, 400, api.BadValue, "ip"},
		{`{"rule":"pair","key":"a"}`, 400, api.BadValue, "endpoint"},
		{`{"rule":"all","key":"a"}`, 400, api.BadValue, "key"},
		{`{}`, 400, api.MissingKey, "empty"},
		{`{"rule":"login"}`, 400, api.MissingKey, "login"},
		{`{"key":"k"}`, 400, api.MissingKey, "rule is missing"},
		{`{"cost":1}`, 400, api.MissingKey, "attributes"},
		{`{"rule":"nope","key":"k"}`, 404, api.UnknownRule, "nope"},
		{`{"rule":"nope","attributes":{}}`, 404, api.UnknownRule, "nope"},
		{`{"rule":"login","key":"` + strings.Repeat(" ", 70_000) + `"}`, 413, api.TooLarge, "65536"},
	}
	for _, tt := range tests {
		name := tt.body[:min(len(tt.body), 60)]
		t.Run(name, func(t *testing.T) {
			resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check", Body: tt.body})
			f := apitest.Fields(t, body)
			if resp.StatusCode != tt.status || f["code"] != string(tt.code) {
				t.Errorf("have %d %v, want %d %s", resp.StatusCode, f["code"], tt.status, tt.code)
			}
			if detail, _ := f["detail"].(string); !strings.Contains(detail, tt.detail) {
				t.Errorf("detail: have %q, want %q in it", detail, tt.detail)
			}
			expect.Equal(t, resp.Header.Get("Content-Type"), codec.TypeProblem, "content type")
			if f["type"] != "about:blank" || f["title"] == "" || fmt.Sprint(f["status"]) != fmt.Sprint(tt.status) {
				t.Errorf("have %s", body)
			}
		})
	}
}

func TestCheckDecides(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	tests := []struct {
		body   string
		status int
		want   string // the fields that must be present
	}{
		{`{"rule":"login","key":"198.51.100.7","cost":4}`, 200,
			"allowed=true rule=login limit=5 remaining=1 unit=requests window_ms=3600000 decided_by=owner node=n1 rules_version=1"},
		{`{"rule":"login","key":"198.51.100.7","peek":true}`, 200, "remaining=0"},
		{`{"rule":"login","key":"::ffff:198.51.100.7"}`, 200, "remaining=0"},
		{`{"rule":"login","key":["198.51.100.7"]}`, 429,
			"allowed=false rule=login remaining=0 status=429 violated-policies=[login]"},
		{`{"rule":"login","key":"198.51.100.7","cost":0}`, 200, "remaining=0 retry_after_ms=0"},
		{`{"rule":"login","key":"198.51.100.8","cost":6}`, 429, "remaining=5 retry_after_ms=-1"},
		{`{"rule":"pair","key":["acme","/chat"]}`, 200, "remaining=2"},
		{`{"rule":"pair","attributes":{"tenant":"acme","endpoint":"/chat"}}`, 200, "remaining=1"},
		{`{"rule":"all"}`, 200, "remaining=999999"},
		{`{"rule":"all","key":[]}`, 200, "remaining=999998"},
		{`{"attributes":{}}`, 200, "rule= decided_by=none retry_after_ms=0 limit=<nil> remaining=<nil>"},
		{`{"attributes":{"ip":"192.0.2.9"}}`, 403, "rule= decided_by=list retry_after_ms=-1 code=denied status=403"},
		{`{"rule":"login","key":"192.0.2.9"}`, 403, "rule= decided_by=list retry_after_ms=-1 code=denied"},
		{`{"attributes":{"tenant":"internal","ip":"1.1.1.1"}}`, 200, "rule= decided_by=list retry_after_ms=0"},
		{`{"attributes":{"idea":"x"},"cost":5}`, 200, "rule= decided_by=owner limit=<nil>"},
		{`{"attributes":{"user":"u","both":"yes"},"costs":{"tokens":101}}`, 429,
			"rule=b unit=tokens retry_after_ms=-1 violated-policies=[b/tokens/1h]"},
		{`{"attributes":{"user":"u","both":"yes"},"costs":{"apples":7,"tokens":100}}`, 200,
			"rule=b unit=tokens remaining=0"},
	}
	for _, tt := range tests {
		status, f := n.Check(tt.body)
		if status != tt.status {
			t.Errorf("%s: have %d, want %d: %v", tt.body, status, tt.status, f)
		}
		for _, want := range strings.Fields(tt.want) {
			name, value, _ := strings.Cut(want, "=")
			expect.Equal(t, fmt.Sprint(f[name]), value, "%s: %s", tt.body, name)
		}
	}
	expect.Equal(t, n.server.handlers.Panics.Load(), int64(0), "panics")
}

// If the second of two rules refuses a check, the first is left unchanged.
func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	const both = `{"attributes":{"user":"u","both":"yes"},"detail":true}`
	for range 3 {
		if status, f := n.Check(both); status != 200 {
			t.Fatalf("have %d: %v", status, f)
		}
	}
	status, f := n.Check(both)
	if status != 429 || f["rule"] != "b" {
		t.Fatalf("have %d: %v", status, f)
	}
	limits := f["limits"].([]any)
	if have := fmt.Sprint(limits[0].(map[string]any)["remaining"]); len(limits) != 3 || have != "2" {
		t.Errorf("detail: have %v", limits)
	}
	_, usage := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/usage?rule=a&key=u"})
	if !strings.Contains(usage, `"used":3,"remaining":2,`) {
		t.Errorf("usage: have %s", usage)
	}
}

func TestBatch(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch", Body: `{"checks":[
		{"rule":"login","key":"1.1.1.1","cost":5}, {"rule":"login","key":"1.1.1.1"}, {}, 5, {"rule":"nope","key":"k"},
		{"rule":"login","key":"1.1.1.1","x":[1,{"a":2}]}, {"rule":"login","rule":"login"}, {"rule":"login","key":"1.1.1.2","detail":true},
		{"rule":"login","key":"1.1.1.3","wait":true}, {"rule":"login","key":"192.0.2.9"}]}`})
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != codec.TypeJSON {
		t.Fatalf("have %d %v: %s", resp.StatusCode, resp.Header, body)
	}
	var have []string
	expect.Equal(t, resp.Header.Get("Rlnode-Headers"), "ietf x-ratelimit", "the style of headers")
	for _, r := range apitest.Fields(t, body)["results"].([]any) {
		f := r.(map[string]any)
		if e, ok := f["error"].(map[string]any); ok {
			have = append(have, fmt.Sprint(e["status"], " ", e["code"]))
			continue
		}
		if code, ok := f["code"]; ok {
			have = append(have, fmt.Sprint(f["allowed"], " ", f["decided_by"], " ", code))
			continue
		}
		have = append(have, fmt.Sprint(f["allowed"], " ", f["remaining"]))
	}
	want := "[true 0 false owner rate-limited 400 missing-key 400 bad-value 404 unknown-rule 400 unknown-field 400 bad-json true 4 400 bad-value false list denied]"
	if fmt.Sprint(have) != want {
		t.Errorf("have %v\nwant %s", have, want)
	}
	if strings.Contains(body, "violated-policies") || !strings.Contains(body, `"limits":[{"rule":"login"`) {
		t.Errorf("have %s", body)
	}
	many := func(count int) string {
		return `{"checks":[` + strings.TrimSuffix(strings.Repeat(`{"rule":"all"},`, count), ",") + `]}`
	}
	for _, tt := range []struct {
		body   string
		status int
		code   api.Code
	}{
		{many(10_000), 200, ""}, {many(10_001), 400, api.BadValue}, {`{}`, 400, api.MissingKey},
		{`{"checks":{}}`, 400, api.BadValue},
		{`{"checks":[],"x":1}`, 400, api.UnknownField},
		{`{"checks":[{"rule":"all"},]}`, 400, api.BadJSON}, {`{"checks":[]}`, 200, ""},
		{`{"checks":[],"checks":[]}`, 400, api.BadJSON},
		{strings.Repeat(" ", 8<<20) + "{", 413, api.TooLarge},
		{`{"checks":[` + strings.Repeat(" ", 8<<20-13) + `]}`, 200, ""},
	} {
		resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch", Body: tt.body})
		if code := apitest.NoteCode([]byte(body)); resp.StatusCode != tt.status || code != tt.code {
			t.Errorf("%.40s: have %d %s, want %d %s", tt.body, resp.StatusCode, code, tt.status, tt.code)
		}
	}
	if _, usage := n.Do(apitest.Call{Method: "GET",
		URL: n.AdminURL + "/v1/usage?rule=all"}); !strings.Contains(usage, `"used":10000,`) {
		t.Errorf("a malformed batch was decided: %s", usage)
	}
}

func TestAdjust(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, tt := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"rule":"a","key":"u","cost":3}`, 200,
			`{"rule":"a","key":"u","cost":3,"limits":[{"name":"a","algorithm":"token-bucket","unit":"requests","limit":5,"window_ms":3600000,"used":3,"remaining":2,`},
		{`{"rule":"a","key":["u"],"cost":7}`, 200, `"used":10,"remaining":0,`},
		{`{"rule":"a","key":"u","cost":-6}`, 200, `"used":4,"remaining":1,`},
		{`{"rule":"pair","key":["x","y"],"cost":1}`, 200, `{"rule":"pair","key":["x","y"],"cost":1,`},
		{`{"rule":"all","cost":1}`, 200, `{"rule":"all","key":[],"cost":1,`},
		{`{"rule":"a","key":"u","cost":0}`, 400, `"bad-value"`},
		{`{"rule":"a","key":"u"}`, 400, `"bad-value"`},
		{`{"rule":"a","key":"u","cost":1.5}`, 400, `"bad-value"`},
		{`{"rule":"a","key":"u","cost":-9007199254740992}`, 400, `"bad-value"`},
		{`{"rule":"a","key":"u","cost":1,"cost":1}`, 400, `"bad-json"`},
		{`{"rule":"a","key":"u","cost":1,"peek":true}`, 400, `"unknown-field"`},
		{`{"rule":"a","cost":1}`, 400, `"missing-key"`},
		{`{"key":"u","cost":1}`, 400, `"missing-key"`},
		{`{}`, 400, `"missing-key"`},
		{`{"rule":"nope","key":"u","cost":1}`, 404, `"unknown-rule"`},
		{`{"rule":"a","key":["u","v"],"cost":1}`, 400, `"bad-value"`},
		{`{"rule":"a","key":"u","cost":1,"request_id":""}`, 400, `"bad-value"`},
		{`{"rule":"a","key":"u","cost":1,"request_id":7}`, 400, `"bad-value"`},
		{`{"rule":"a","key":"u","cost":1,"request_id":"` + strings.Repeat("x", 65) + `"}`, 400, `1 to 64 bytes`},
		{`{"rule":"a","key":"u","cost":1,"request_id":"1","request_id":"1"}`, 400, `"bad-json"`},
	} {
		resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/adjust", Body: tt.body})
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s: have %d %s\nwant %d %s", tt.body, resp.StatusCode, body, tt.status, tt.want)
		}
	}
}

func TestDataRoutes(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, tt := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/v1/check", 405, "POST"}, {"PUT", "/v1/adjust", 405, "POST"},
		{"DELETE", "/v1/check/batch", 405, "POST"},
		{"POST", "/healthz", 405, "GET, HEAD"}, {"GET", "/healthz", 200, ""},
		{"HEAD", "/healthz", 200, ""}, {"GET", "/readyz?x=1", 200, ""},
		{"GET", "/v1/reserve", 405, "POST"}, {"GET", "/v1/settle", 405, "POST"},
		{"GET", "/v1/auth/web", 404, ""}, {"GET", "/", 200, ""}, {"POST", "/", 405, "GET, HEAD"},
		{"GET", "/nothing", 404, ""},
		{"POST", "/v1/check/", 404, ""}, {"POST", "/v1/check/%00%ff", 404, ""}, {"POST", "/v1/%63heck", 404, ""},
	} {
		resp, body := n.Do(apitest.Call{Method: tt.method, URL: n.DataURL + tt.path})
		if resp.StatusCode != tt.status || resp.Header.Get("Allow") != tt.allow {
			t.Errorf("%s %s: have %d, Allow %q, want %d %q: %s", tt.method, tt.path,
				resp.StatusCode, resp.Header.Get("Allow"), tt.status, tt.allow, body)
		}
		if tt.path == "/" && resp.StatusCode == 200 &&
			(apitest.Fields(t, body)["node"] == nil || !strings.Contains(body, "/openapi.yaml")) {
			t.Errorf("/: have %s", body)
		}
		if resp.StatusCode == 404 && apitest.Fields(t, body)["code"] != string(api.NotFound) {
			t.Errorf("%s: have %s", tt.path, body)
		}
	}
}

func TestAPIToken(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.APIToken = "secret" })
	for _, tt := range []struct {
		path, header string
		status       int
	}{
		{"/v1/check", "", 401}, {"/v1/check", "Bearer wrong", 401},
		{"/v1/check", "Bearer secret2", 401}, {"/v1/check", "secret", 401},
		{"/v1/check", "Basic secret", 401}, {"/v1/check", "Bearer", 401},
		{"/v1/check", "Bearer secret", 400}, {"/v1/check", "bearer  secret ", 400},
		{"/v1/check/batch", "", 401}, {"/v1/adjust", "", 401}, {"/nowhere", "", 404},
	} {
		c := apitest.Call{Method: "POST", URL: n.DataURL + tt.path}
		if tt.header != "" {
			c.Header = map[string]string{"Authorization": tt.header}
		}
		resp, body := n.Do(c)
		if resp.StatusCode != tt.status || (tt.status == 401) != (resp.Header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s %q: have %d %s, want %d", tt.path, tt.header, resp.StatusCode, body, tt.status)
		}
	}
	if resp, _ := n.Do(apitest.Call{Method: "GET", URL: n.DataURL + "/readyz"}); resp.StatusCode != 200 {
		t.Errorf("readyz: have %d", resp.StatusCode)
	}
	// Without the token nothing large is accepted.
	if resp, _ := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch",
		Body: strings.Repeat(" ", 7<<20)}); resp.StatusCode != 401 || !resp.Close {
		t.Errorf("a large batch: have %d, closes %v", resp.StatusCode, resp.Close)
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	table := startNode(t, func(c *apitest.Config) { c.Starting = true })
	a := table.Doors
	a.Explain("loading counters")
	status := func(url string) (int, api.Code) {
		method := "GET"
		if strings.HasSuffix(url, "/v1/check") {
			method = "POST"
		}
		resp, body := table.Do(apitest.Call{Method: method, URL: url, Body: `{"rule":"all"}`})
		return resp.StatusCode, apitest.NoteCode([]byte(body))
	}
	expect := func(when, url string, wantStatus int, wantCode api.Code) {
		t.Helper()
		if have, code := status(url); have != wantStatus || code != wantCode {
			t.Errorf("%s: %s: have %d %q, want %d %q", when, url, have, code, wantStatus, wantCode)
		}
	}
	for _, path := range []string{"/readyz", "/v1/check"} {
		expect("starting", table.DataURL+path, 503, api.NotReady)
	}
	expect("starting", table.AdminURL+"/readyz", 503, api.NotReady)
	expect("starting", table.AdminURL+"/v1/usage?rule=all", 503, api.NotReady)
	expect("starting", table.DataURL+"/healthz", 200, "")
	a.Ready()
	a.Explain("too late")
	expect("ready", table.DataURL+"/readyz", 200, "")
	expect("ready", table.AdminURL+"/readyz", 200, "")
	a.Drain()
	a.Ready()
	expect("draining", table.DataURL+"/readyz", 503, api.Draining)
	expect("draining", table.AdminURL+"/readyz", 503, api.Draining)
	expect("draining", table.DataURL+"/v1/check", 200, "")
	expect("draining", table.DataURL+"/healthz", 200, "")
}

// broken panics, or fails with an unknown error.
type broken struct {
	api.Decider
	err error
}

func (b *broken) Check(*limiter.Query, *limiter.Answer) error {
	if b.err == nil {
		panic("broken on purpose")
	}
	return b.err
}

func (b *broken) Usage(*limiter.Query) (*limiter.Usage, error)  { return nil, b.err }
func (b *broken) Adjust(*limiter.Query) (*limiter.Usage, error) { return nil, b.err }
func (b *broken) Reset(*limiter.Query) (*limiter.Usage, error)  { return nil, b.err }

func TestPanicIsCaught(t *testing.T) {
	t.Parallel()
	b := &broken{}
	n := startNode(t, func(c *apitest.Config) { b.Decider, c.Decider = c.Decider, b })
	resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check", Body: `{"rule":"all"}`})
	if resp.StatusCode != 500 || strings.Contains(body, "purpose") || strings.Contains(body, "goroutine") {
		t.Errorf("have %d %s", resp.StatusCode, body)
	}
	expect.Equal(t, n.server.handlers.Panics.Load(), 1, "panics counted")
	b.err = errors.New("something secret")
	resp, body = n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check", Body: `{"rule":"all"}`})
	if resp.StatusCode != 500 || strings.Contains(body, "secret") {
		t.Errorf("have %d %s", resp.StatusCode, body)
	}
	for err, want := range map[error]int{limiter.ErrNoLimitInUnit: 400, limiter.ErrNoRoom: 503} {
		b.err = err
		if resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/adjust",
			Body: `{"rule":"all","cost":1}`}); resp.StatusCode != want {
			t.Errorf("%v: have %d %s, want %d", err, resp.StatusCode, body, want)
		}
	}
}

// A check with wait is answered when its delay is over.
func TestWait(t *testing.T) {
	t.Parallel()
	n := startWaiting(t, nil)
	c := n.dial(t)
	began := time.Now()
	if _, err := io.WriteString(c, strings.Repeat(post("/v1/check", waitOn("quick")), 2)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	readHeldAnswer(t, r)
	f, _ := readHeldAnswer(t, r)
	if took := time.Since(began); fieldInt(t, f, "delay_ms") == 0 || took < 495*time.Millisecond {
		t.Errorf("after %v: %v", took, f)
	}
}

func TestHealthTellsOfAFullDisk(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) {
		c.Checkpoints = func() api.CheckpointHealth {
			return api.CheckpointHealth{Completed: time.Now().Add(-time.Minute), Failures: 7,
				Err: fmt.Errorf("write: %w", os.ErrInvalid)}
		}
	})
	for _, url := range []string{n.DataURL + "/healthz", n.AdminURL + "/healthz", n.DataURL + "/readyz"} {
		resp, body := n.Do(apitest.Call{Method: http.MethodGet, URL: url})
		if resp.StatusCode != 200 || !strings.Contains(body, `"status":"degraded"`) ||
			!strings.Contains(body, `"failures":7`) {
			t.Errorf("have %d %s", resp.StatusCode, body)
		}
	}
}
