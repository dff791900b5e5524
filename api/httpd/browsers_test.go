package httpd

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// A simple request from a page, which browsers send without a preflight, spends
// no quota, not even through the fast path.
func TestPagesSpendNothing(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	c, err := net.Dial("tcp", n.Data.Addr().String())
	expect.NoError(t, err)
	defer c.Close()
	expect.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	r := bufio.NewReader(c)
	ask := func(path, body string, lines ...string) (int, string) {
		t.Helper()
		if _, err := io.WriteString(c, post(path, body, lines...)); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		expect.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		expect.NoError(t, err)
		apitest.NoteCode(text)
		return resp.StatusCode, string(text)
	}
	bodies := map[string]string{
		"/v1/check":       `{"rule":"a","key":"victim"}`,
		"/v1/check/batch": `{"checks":[{"rule":"a","key":"victim"}]}`,
		"/v1/reserve":     `{"rule":"a","key":"victim"}`,
		"/v1/adjust":      `{"rule":"a","key":"victim","cost":1}`,
		"/v1/settle":      `{"reservation":"x","costs":{}}`, "/nowhere": "", "/healthz": "",
	}
	ask("/v1/check", `{"rule":"b","key":"warm"}`) // the fast path starts with the second request
	for path, body := range bodies {
		for _, lines := range [][]string{
			{"Content-Type: text/plain", "Origin: https://evil.example"}, {"Origin: null"},
			{"origin: http://127.0.0.1:8080"}, {"Origin:"}, {"ORIGIN: x"},
			{"Sec-Fetch-Site: cross-site"}, {"sec-fetch-site: same-site"},
			{"Sec-Fetch-Site: new-word"}, {"Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site"},
			{"Origin: https://evil.example", "Sec-Fetch-Site: same-origin"}, {"Origin: a", "Origin: b"},
		} {
			if status, text := ask(path, body, lines...); status != 403 ||
				apitest.NoteCode([]byte(text)) != api.CrossOrigin {
				t.Errorf("%s with %q: have %d %s", path, lines, status, text)
			}
		}
	}
	if status, text := ask("/v1/check", `{"rule":"a","key":"victim","peek":true}`); status != 200 ||
		!strings.Contains(text, `"remaining":4`) {
		t.Errorf("something was spent: have %d %s", status, text)
	}
	for _, lines := range [][]string{nil, {"Sec-Fetch-Site: none"}, {"Sec-Fetch-Site: same-origin"},
		{"Sec-Fetch-Mode: cors"}, {"X-Origin: x"}, {"Origins: x"}} {
		if status, text := ask("/v1/check", `{"rule":"a","key":"k","cost":0}`, lines...); status != 200 {
			t.Errorf("%q: have %d %s", lines, status, text)
		}
	}
}

// Proxies forward the headers of their users' browsers, and are answered all the same.
func TestAuthTakesOrigins(t *testing.T) {
	n := startAuth(t, nil)
	for _, headers := range []string{"Origin: https://app.example|Sec-Fetch-Site: cross-site",
		"Sec-Fetch-Site: same-site", "Origin: null"} {
		if resp, body := n.sendRaw("POST", "/v1/auth/web",
			headers+"|X-Forwarded-For: 203.0.113.77"); resp.StatusCode != 200 && resp.StatusCode != 429 {
			t.Errorf("%s: have %d %s", headers, resp.StatusCode, body)
		}
	}
	if resp, _ := n.sendRaw("POST", "/v1/authority", "Origin: https://app.example"); resp.StatusCode != 403 {
		t.Errorf("another path: have %d", resp.StatusCode)
	}
}
