package httpd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// If any token is configured, every route except probes requires its scope.
func TestScopes(t *testing.T) {
	t.Parallel()
	n := startNode(t, apitest.ScopedTokens(t))
	apitest.CheckScopes(t, n.Node, n.DataURL, routes())
}

// routes lists the methods and paths of all routes, with the scopes that they need.
func routes() map[string]api.Scope {
	all := map[string]api.Scope{}
	for _, r := range dataRoutes {
		method, _, _ := strings.Cut(cmp.Or(r.allow, "GET"), ",")
		all[method+" "+r.path] = r.need
	}
	return all
}

func TestOpenAPIIsTrue(t *testing.T) { apitest.CheckOpenAPI(t, "data plane", routes()) }

// One token in the settings protects both planes. If the settings have the same
// token for both, it has the scope admin.
func TestTokensOfTheSettings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		api, admin, text         string
		check, adjust, read, put int
	}{
		{"a", "", "a", 200, 200, 403, 403},
		{"", "b", "b", 200, 200, 200, 200},
		{"", "b", "", 401, 401, 401, 401},
		{"a", "", "", 401, 401, 401, 401},
		{"a", "b", "b", 200, 200, 200, 200},
		{"same", "same", "same", 200, 200, 200, 200},
		{"", "", "whatever", 200, 200, 200, 200},
	} {
		n := startNode(t, func(c *apitest.Config) { c.APIToken, c.AdminToken = tt.api, tt.admin })
		have := [4]int{}
		for i, c := range []apitest.Call{
			{Method: "POST", URL: n.DataURL + "/v1/check", Body: `{"rule":"all"}`},
			{Method: "POST", URL: n.DataURL + "/v1/adjust", Body: `{"rule":"all","cost":1}`},
			{Method: "GET", URL: n.AdminURL + "/v1/rules"},
			{Method: "PUT", URL: n.AdminURL + "/v1/rules", Body: apitest.Rules},
		} {
			if tt.text != "" {
				c.Header = map[string]string{"Authorization": "Bearer " + tt.text}
			}
			resp, _ := n.Do(c)
			have[i] = resp.StatusCode
		}
		if want := [4]int{tt.check, tt.adjust, tt.read, tt.put}; have != want {
			t.Errorf("api %q, admin %q, with %q: have %v, want %v", tt.api, tt.admin, tt.text, have, want)
		}
	}
}

// Anything but exactly one valid token counts as no token.
func TestAuthorizationHeaders(t *testing.T) {
	t.Parallel()
	file := apitest.TokensFile(t, apitest.TokenEntry("c", "rlt_right", "admin"))
	n := startNode(t, func(c *apitest.Config) { c.TokensFile = file })
	for _, tt := range []struct {
		lines  []string
		status int
	}{
		{[]string{"Bearer rlt_right"}, 200}, {[]string{"bearer rlt_right"}, 200},
		{[]string{"BEARER \t rlt_right \t"}, 200},
		{nil, 401}, {[]string{""}, 401}, {[]string{"Bearer"}, 401}, {[]string{"Bearer "}, 401},
		{[]string{"rlt_right"}, 401}, {[]string{"Bearerrlt_right"}, 401},
		{[]string{"Basic rlt_right"}, 401}, {[]string{"Bearer rlt_righ"}, 401},
		{[]string{"Bearer rlt_rightt"}, 401}, {[]string{"Bearer rlt_Right"}, 401},
		{[]string{"Bearer rlt_right rlt_right"}, 401}, {[]string{"Bearer rlt_ right"}, 401},
		{[]string{"Bearer rlt_right,"}, 401}, {[]string{`Bearer "rlt_right"`}, 401},
		{[]string{"Bearer rlt_right", "Bearer rlt_right"}, 401},
		{[]string{"Bearer wrong", "Bearer rlt_right"}, 401},
		{[]string{"Bearer rlt_right", ""}, 401},
		{[]string{"Bearer rlt_right\xff"}, 401},
		{[]string{"Bearer " + strings.Repeat("x", 4096+1)}, 401},
		{[]string{"Bearer " + strings.Repeat("x", 12<<10)}, 401},
		{[]string{"Bearer " + strings.Repeat("x", 40<<10)}, 431},
	} {
		for _, c := range []apitest.Call{{Method: "POST", URL: n.DataURL + "/v1/check",
			Body: `{"rule":"all"}`}, {Method: "GET", URL: n.AdminURL + "/v1/rules"}} {
			req, err := http.NewRequest(c.Method, c.URL, strings.NewReader(c.Body))
			expect.NoError(t, err)
			for _, line := range tt.lines {
				req.Header.Add("Authorization", line)
			}
			resp, err := n.Client.Do(req)
			expect.NoError(t, err)
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			expect.Equal(t, resp.StatusCode, tt.status, "%s %.60q", c.URL, tt.lines)
		}
	}
}

// A token that is in every version of the file always works, however and how
// often the file is replaced.
func TestTokensAreReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	stays := apitest.TokenEntry("stays", "stays", "admin")
	file := apitest.TokensFile(t, stays)
	n := startNode(t, func(c *apitest.Config) { c.TokensFile = file })
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	for i := range 4 {
		done.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				c := apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check", Body: `{"rule":"all","cost":0}`}
				if i == 3 {
					c = apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/top"}
				}
				c.Header = map[string]string{"Authorization": "Bearer stays"}
				req, _ := http.NewRequest(c.Method, c.URL, strings.NewReader(c.Body))
				req.Header.Set("Authorization", "Bearer stays")
				resp, err := n.Client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Errorf("%s: have %d", c.URL, resp.StatusCode)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 40 {
		marker := fmt.Sprint("m", r.Uint64())
		text := "tokens:\n" + apitest.TokenEntry(marker, marker, "check")
		for range r.IntN(200) {
			text += apitest.TokenEntry(fmt.Sprint("n", r.Uint64()), fmt.Sprint(r.Uint64()), "check")
		}
		text += stays
		if i%2 == 0 {
			apitest.WriteFile(t, file, text) // it is empty for a moment
		} else {
			apitest.WriteFile(t, file+".new", text)
			if err := os.Rename(file+".new", file); err != nil {
				t.Error(err)
			}
		}
		if i%4 == 3 { // let it be read
			apitest.Until(t, "the file is read", func() bool {
				_, e := n.Authorize("Bearer "+marker, 1, api.ScopeCheck, nil)
				return e == nil
			})
			if i >= 11 {
				break
			}
		}
	}
	cancel()
	done.Wait()
}

// A connection that remembers a token forgets it when the tokens change.
func TestFastPathForgetsTokens(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ apiToken, adminToken, status string }{{"x", "", "200 OK"},
		{"y", "", "401 Un"}, {"", "x", "200 OK"}} {
		s := startHandlers(t, planeWithTokens(t, newFixed(), tt.apiToken, tt.adminToken))
		one := fastPost(plainCheck, "Authorization: Bearer x")
		if with, without, fast := serveBothWays(t, s, opening, one, one, one); with != without ||
			fast != 3 || strings.Count(with, tt.status) < 3 {
			t.Errorf("%d answers on the fast path; have\n%s\nwant\n%s", fast, with, without)
		}
	}
	file := apitest.TokensFile(t, apitest.TokenEntry("x", "x", "check"))
	doors, err := api.Open(api.Config{Node: "n", Decider: newFixed(), TokensFile: file,
		Logger: slog.New(slog.DiscardHandler)})
	expect.NoError(t, err)
	defer doors.Close()
	var head fastHead
	one := []byte(fastPost(plainCheck, "Authorization: Bearer x"))
	for i, text := range []string{"x", "y", "x"} {
		apitest.WriteFile(t, file, "tokens:\n"+apitest.TokenEntry(text, text, "check"))
		knows := func(header string) bool {
			_, e := doors.Authorize(header, 1, api.ScopeCheck, nil)
			return e == nil
		}
		apitest.Until(t, "the file is read", func() bool { return knows("Bearer " + text) })
		for range 2 {
			r, _ := head.read(one)
			if who, e := doors.Authorize(string(r.authorization), 1, api.ScopeCheck,
				r.tokenCache); (who != nil) != (text == "x") || (e == nil) != (text == "x") {
				t.Errorf("step %d: have %v, %v", i, who, e)
			}
		}
	}
	// The token of the remembered head is not used for a head that is too long to remember.
	long := []byte(fastPost(plainCheck, "Authorization: Bearer y", "X: "+strings.Repeat("z", maxFastHead)))
	if r, ok := head.read(long); !ok || r.tokenCache != nil {
		t.Errorf("have %v, %v", r.tokenCache, ok)
	}
}
