package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/rules"
)

// entry returns a line of a tokens file.
func entry(name, text, scopes string) string {
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("- {name: %s, scopes: [%s], sha256: %s}\n", name, scopes, hex.EncodeToString(sum[:]))
}

func tokensFile(t testing.TB, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tokens.yaml")
	writeFile(t, name, "tokens:\n"+strings.Join(lines, ""))
	return name
}

func writeFile(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Error(err)
	}
}

// need returns the scope that a route needs; 0: there is no such route.
func (n *node) need(route string) Scope {
	for _, r := range dataRoutes {
		method, _, _ := strings.Cut(cmp.Or(r.allow, "*"), ",")
		if route == method+" "+r.path {
			return r.need
		}
	}
	for _, e := range n.admin.endpoints() {
		if route == e.route {
			return e.need
		}
	}
	return map[string]Scope{"GET /": anyone, "GET /ui": anyone}[route]
}

// Every route of both planes requires its scope once there is a token, except probes, metrics and the dashboard's
// files.
func TestScopes(t *testing.T) {
	t.Parallel()
	file := tokensFile(t, entry("c", "tc", "check"), entry("a", "ta", "adjust"), entry("r", "tr", "read"), entry("all", "tall", "admin"), entry("cr", "tcr", "check, read"))
	scopes := map[string]Scope{"tc": ScopeCheck, "ta": ScopeAdjust, "tr": ScopeRead, "tall": ScopeAdmin, "tcr": ScopeCheck | ScopeRead,
		"api": ScopeCheck | ScopeAdjust, "adm": ScopeAdmin}
	n := startNode(t, func(c *Config) { c.TokensFile, c.APIToken, c.AdminToken = file, "api", "adm" })
	n.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	type ask struct{ base, route string }
	asks := []ask{{n.adm, "GET /"}, {n.adm, "GET /ui"}}
	for _, r := range dataRoutes {
		method, _, _ := strings.Cut(r.allow, ",")
		if method == "" {
			method = "*"
		}
		asks = append(asks, ask{n.data, method + " " + r.path})
	}
	for _, e := range n.admin.endpoints() {
		asks = append(asks, ask{n.adm, e.route})
	}
	for _, a := range asks {
		need := n.need(a.route)
		if need == 0 {
			t.Errorf("it is not said what %s needs", a.route)
		}
		method, path, _ := strings.Cut(a.route, " ")
		if method == "*" {
			method = "GET"
		}
		for text := range map[string]bool{"": true, "wrong": true, "tc": true, "ta": true, "tr": true, "tall": true, "tcr": true, "api": true, "adm": true} {
			c := call{method: method, url: a.base + path, body: `{`}
			if text != "" {
				c.header = map[string]string{"Authorization": "Bearer " + text}
			}
			if method == "DELETE" && scopes[text].allows(need) && need == ScopeAdmin {
				continue // it would remove something
			}
			resp, body := n.do(c)
			code := noteCode([]byte(body))
			want := Code("")
			switch {
			case need == anyone:
			case scopes[text] == 0:
				want = Unauthorized
			case !scopes[text].allows(need):
				want = Forbidden
			}
			if have := code == Unauthorized || code == Forbidden; have != (want != "") || want != "" && code != want {
				t.Errorf("%s with %q: have %d %s, want %q", a.route, text, resp.StatusCode, body, want)
			}
			if want == Forbidden && !strings.Contains(body, need.names()[0]) {
				t.Errorf("%s with %q: %s does not say that it needs %v", a.route, text, body, need.names())
			}
			if (want == Unauthorized) != (resp.Header.Get("WWW-Authenticate") != "") || resp.StatusCode != kinds[want].status && want != "" {
				t.Errorf("%s with %q: have %d %v", a.route, text, resp.StatusCode, resp.Header)
			}
		}
	}
	for _, one := range scopes {
		if have := one.allows(n.need("POST /v1/new")); have != (one == ScopeAdmin) {
			t.Errorf("%v may use a route for which nothing is said: %v", one.names(), have)
		}
	}
	// A try that takes its cost is a check.
	for text, want := range map[string]int{"tr": 403, "tc": 200, "tcr": 200} {
		resp, body := n.do(call{method: "POST", url: n.adm + "/v1/try", body: `{"rule":"all","peek":false}`, header: map[string]string{"Authorization": "Bearer " + text}})
		if resp.StatusCode != want || want == 403 && !strings.Contains(body, "scope check; r has read") {
			t.Errorf("a try that takes, with %s: have %d %s", text, resp.StatusCode, body)
		}
	}
}

// One token in the settings closes both planes. If both planes have the same token, it may do everything.
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
		n := startNode(t, func(c *Config) { c.APIToken, c.AdminToken = tt.api, tt.admin })
		have := [4]int{}
		for i, c := range []call{
			{method: "POST", url: n.data + "/v1/check", body: `{"rule":"all"}`}, {method: "POST", url: n.data + "/v1/adjust", body: `{"rule":"all","cost":1}`},
			{method: "GET", url: n.adm + "/v1/rules"}, {method: "PUT", url: n.adm + "/v1/rules", body: yamlRules},
		} {
			if tt.text != "" {
				c.header = map[string]string{"Authorization": "Bearer " + tt.text}
			}
			resp, _ := n.do(c)
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
	file := tokensFile(t, entry("c", "rlt_right", "admin"))
	n := startNode(t, func(c *Config) { c.TokensFile = file })
	for _, tt := range []struct {
		lines  []string
		status int
	}{
		{[]string{"Bearer rlt_right"}, 200}, {[]string{"bearer rlt_right"}, 200}, {[]string{"BEARER \t rlt_right \t"}, 200},
		{nil, 401}, {[]string{""}, 401}, {[]string{"Bearer"}, 401}, {[]string{"Bearer "}, 401}, {[]string{"rlt_right"}, 401}, {[]string{"Bearerrlt_right"}, 401},
		{[]string{"Basic rlt_right"}, 401}, {[]string{"Bearer rlt_righ"}, 401}, {[]string{"Bearer rlt_rightt"}, 401}, {[]string{"Bearer rlt_Right"}, 401},
		{[]string{"Bearer rlt_right rlt_right"}, 401}, {[]string{"Bearer rlt_ right"}, 401}, {[]string{"Bearer rlt_right,"}, 401}, {[]string{`Bearer "rlt_right"`}, 401},
		{[]string{"Bearer rlt_right", "Bearer rlt_right"}, 401}, {[]string{"Bearer wrong", "Bearer rlt_right"}, 401}, {[]string{"Bearer rlt_right", ""}, 401},
		{[]string{"Bearer rlt_right\xff"}, 401}, {[]string{"Bearer " + strings.Repeat("x", maxToken+1)}, 401}, {[]string{"Bearer " + strings.Repeat("x", 12<<10)}, 401},
		{[]string{"Bearer " + strings.Repeat("x", 40<<10)}, 431},
	} {
		for _, c := range []call{{method: "POST", url: n.data + "/v1/check", body: `{"rule":"all"}`}, {method: "GET", url: n.adm + "/v1/rules"}} {
			req, err := http.NewRequest(c.method, c.url, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range tt.lines {
				req.Header.Add("Authorization", line)
			}
			resp, err := n.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode != tt.status {
				t.Errorf("%s %.60q: have %d, want %d", c.url, tt.lines, resp.StatusCode, tt.status)
			}
		}
	}
}

func TestTokensFileMistakes(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	one := "{name: a, scopes: [check], sha256: " + sum + "}"
	for _, tt := range []struct{ have, want string }{
		{"", ":1:1: tokens is missing: the file is empty"},
		{"# nothing\n", ":1:1: tokens is missing"},
		{"tokens:\n", "tokens: a list is expected"},
		{"tokens: []\n", "tokens: there is none"},
		{"tokens: {}\n", ":1:9: tokens: a list is expected"},
		{"- " + one, "a mapping is expected"},
		{"token: [" + one + "]", `:1:1: unknown field "token"`},
		{"tokens: [" + one, ":1:"},
		{"tokens:\n- a\n", ":2:3: tokens[0].name: "},
		{"tokens:\n- {scopes: [check], sha256: " + sum + "}", ":2:3: tokens[0].name is missing"},
		{"tokens:\n- {name: a, sha256: " + sum + "}", "tokens[0].scopes is missing"},
		{"tokens:\n- {name: a, scopes: [check]}", "tokens[0].sha256 is missing"},
		{"tokens:\n- {name: a, scopes: [chek], sha256: " + sum + "}", `:2:21: tokens[0].scopes: there is no scope "chek"`},
		{"tokens:\n- {name: a, scopes: [], sha256: " + sum + "}", "at least one scope"},
		{"tokens:\n- {name: a, scopes: check, sha256: " + sum + "}", "a list is expected"},
		{"tokens:\n- {name: a, scopes: [check, check], sha256: " + sum + "}", "check stands twice"},
		{"tokens:\n- {name: a, scopes: [check], sha256: rlt_secret}", ":2:38: tokens[0].sha256: 64 hexadecimal digits"},
		{"tokens:\n- {name: a, scopes: [check], sha256: " + sum + "a}", "64 hexadecimal digits"},
		{"tokens:\n- {name: a, scopes: [check], sha256: " + sum[1:] + "}", "64 hexadecimal digits"},
		{"tokens:\n- {name: a, scopes: [check], sha256: " + sum[1:] + "g}", "64 hexadecimal digits"},
		{"tokens:\n- {name: rlt_secret, scopes: [check], sha256: " + sum + "}", "tokens[0].name: this is a token, and not its name"},
		{"tokens:\n- {name: 'a b', scopes: [check], sha256: " + sum + "}", "tokens[0].name: a name has letters"},
		{"tokens:\n- {name: " + strings.Repeat("n", 65) + ", scopes: [check], sha256: " + sum + "}", "1 to 64 bytes"},
		{"tokens:\n- {name: api-token, scopes: [check], sha256: " + sum + "}", "is the token of --api-token"},
		{"tokens:\n- {name: a, scopes: [check], sha256: " + sum + ", token: rlt_secret}", "tokens[0].token: there is no such field"},
		{"tokens:\n- " + one + "\n- {name: a, scopes: [read], sha256: " + strings.Repeat("cd", 32) + "}", ":3:3: tokens[1].name: a stands twice"},
		{"tokens:\n- " + one + "\n- {name: b, scopes: [read], sha256: " + strings.ToUpper(sum) + "}", ":3:3: tokens[1].sha256: it is the token of a too"},
		{"tokens:\n" + entry("b", "set", "check"), "tokens[0].sha256: it is the token of admin-token too"},
		{"tokens:\n" + strings.Repeat("- a\n", maxTokens+1), "at most 10000"},
		{strings.Repeat(" ", maxTokensFile+1), "larger than"},
	} {
		file := tokensFile(t)
		writeFile(t, file, tt.have)
		err := CheckTokens(&Config{TokensFile: file, AdminToken: "set"})
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%.80q: have %v, want %q", tt.have, err, tt.want)
		} else if strings.Contains(err.Error(), "rlt_") || strings.Contains(err.Error(), sum) {
			t.Errorf("%.80q: %v shows a secret", tt.have, err)
		}
	}
	if err := CheckTokens(&Config{TokensFile: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a folder: have %v", err)
	}
	for _, have := range []string{`{"tokens":[{"name":"a","scopes":["check","read"],"sha256":"` + sum + `"}]}`, "tokens:\n- name: 1e3\n  scopes:\n  - admin\n  sha256: " + strings.Repeat("12", 32) + "\n"} {
		file := tokensFile(t)
		writeFile(t, file, have)
		if err := CheckTokens(&Config{TokensFile: file}); err != nil {
			t.Errorf("%q: have %v", have, err)
		}
	}
}

// A token from NewToken is found by its line from NewToken.
func TestNewToken(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		text, line, err := NewToken("team/gateway-1", ScopeCheck|ScopeAdmin)
		if err != nil || seen[text] || len(text) != len(tokenPrefix)+43 || !strings.HasPrefix(text, "rlt_") || strings.Contains(line, text[4:]) {
			t.Fatalf("have %q %q %v", text, line, err)
		}
		seen[text] = true
		set := setTokens("", "")
		if _, err := set.parse([]byte("tokens:\n  " + line + "\n")); err != nil {
			t.Fatal(err)
		}
		if who := set.find("Bearer " + text); who == nil || who.name != "team/gateway-1" || who.scopes != ScopeCheck|ScopeAdmin {
			t.Fatalf("have %+v", who)
		}
	}
	if _, _, err := NewToken("a b", ScopeCheck); err == nil {
		t.Error("a bad name is taken")
	}
}

// following returns tokens whose file the test checks by hand, and their log.
func following(t *testing.T, file string) (*tokens, *strings.Builder) {
	t.Helper()
	var out strings.Builder
	config := &Config{TokensFile: file, AdminToken: "adm"}
	k := &tokens{config: config, log: slog.New(slog.NewTextHandler(&out, nil))}
	if err := k.open(); err != nil {
		t.Fatal(err)
	}
	return k, &out
}

// An invalid file leaves the old tokens in force, however the file got there.
func TestTokensFollowTheirFile(t *testing.T) {
	a, b := entry("a", "ta", "check"), entry("b", "tb", "read")
	file := tokensFile(t, a)
	k, out := following(t, file)
	knows := func(when string, texts ...string) {
		t.Helper()
		for _, text := range []string{"ta", "tb", "adm"} {
			if have := k.set.Load().find("Bearer "+text) != nil; have != slices.Contains(texts, text) {
				t.Errorf("%s: knows %s: %v", when, text, have)
			}
		}
	}
	looks := func() {
		for range 3 {
			k.files.Look()
		}
	}
	for _, bad := range []string{"", "tokens: []\n", "tokens:\n- {name: a", "tokens:\n" + a + a, "\x00\xff"} {
		out.Reset()
		writeFile(t, file, bad)
		looks()
		if knows(fmt.Sprintf("after %q", bad), "ta", "adm"); strings.Count(out.String(), "not reloaded") != 1 {
			t.Errorf("after %q: the log has %s", bad, out)
		}
	}
	out.Reset()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if looks(); strings.Count(out.String(), "not reloaded") != 1 {
		t.Errorf("without the file: the log has %s", out)
	}
	knows("without the file", "ta", "adm")
	writeFile(t, file, "tokens:\n"+b)
	looks()
	knows("another token", "tb", "adm")

	// Replace the file with another of the same size and time.
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	next := tokensFile(t, strings.Replace(entry("a", "ta", "read"), "name: a", "name: b", 1))
	if err := os.Chtimes(next, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
	looks()
	knows("renamed over it", "ta", "adm")

	// Half of the file is valid on its own, but not what its writer intends.
	writeFile(t, file, "tokens:\n"+b)
	k.files.Look()
	writeFile(t, file, "tokens:\n"+b+a)
	k.files.Look()
	knows("while somebody writes", "ta", "adm")
	k.files.Look()
	knows("after that", "ta", "tb", "adm")
	if have := out.String(); strings.Contains(have, "ta\n") || strings.Contains(have, "Bearer") {
		t.Errorf("the log has %s", have)
	}
}

// The file is followed automatically, and no longer after Close.
func TestTokensAreFollowed(t *testing.T) {
	file := tokensFile(t, entry("a", "ta", "check"))
	synctest.Test(t, func(t *testing.T) {
		k, err := openTokens(&Config{TokensFile: file}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, file, "tokens:\n"+entry("b", "tb", "check"))
		time.Sleep(2*tokensInterval + tokensInterval/2) // virtual time
		synctest.Wait()
		if k.set.Load().find("Bearer tb") == nil {
			t.Error("it is not read again")
		}
		k.close()
	})
}

// No request fails whose token is in every version of the file, however and how often the file is replaced.
func TestTokensAreReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	stays := entry("stays", "stays", "admin")
	file := tokensFile(t, stays)
	n := startNode(t, func(c *Config) { c.TokensFile = file })
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	for i := range 4 {
		done.Go(func() {
			for asked := 0; ctx.Err() == nil && asked < 200_000; asked++ {
				c := call{method: "POST", url: n.data + "/v1/check", body: `{"rule":"all","cost":0}`}
				if i == 3 {
					c = call{method: "GET", url: n.adm + "/v1/top"}
				}
				c.header = map[string]string{"Authorization": "Bearer stays"}
				req, _ := http.NewRequest(c.method, c.url, strings.NewReader(c.body))
				req.Header.Set("Authorization", "Bearer stays")
				resp, err := n.client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Errorf("%s: have %d", c.url, resp.StatusCode)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 40 {
		before := n.tokens.set.Load()
		text := "tokens:\n"
		for range r.IntN(200) {
			text += entry(fmt.Sprint("n", r.Uint64()), fmt.Sprint(r.Uint64()), "check")
		}
		text += stays
		if i%2 == 0 {
			writeFile(t, file, text) // it is empty for a moment
		} else {
			writeFile(t, file+".new", text)
			if err := os.Rename(file+".new", file); err != nil {
				t.Error(err)
			}
		}
		if i%4 == 3 { // let it be read
			until(t, "the file is read", func() bool { return n.tokens.set.Load() != before })
			if i >= 11 {
				break
			}
		}
	}
	cancel()
	done.Wait()
}

// Ten thousand tokens load quickly, and each is found.
func TestTenThousandTokens(t *testing.T) {
	var text strings.Builder
	text.WriteString("tokens:\n")
	for i := range maxTokens {
		text.WriteString(entry(fmt.Sprint("service-", i), fmt.Sprint("t", i), "check"))
	}
	if text.Len() > maxTokensFile {
		t.Fatalf("they take %d bytes", text.Len())
	}
	set := setTokens("a", "b")
	if at, err := set.parse([]byte(text.String())); err != nil || len(set.byHash) != maxTokens+2 {
		t.Fatalf("have %d, %v %v", len(set.byHash), at, err)
	}
	for i := range maxTokens {
		if who := set.find(fmt.Sprint("Bearer t", i)); who == nil || who.name != fmt.Sprint("service-", i) {
			t.Fatalf("token %d: have %+v", i, who)
		}
	}
}

// A connection that remembers a token forgets it when the tokens change.
func TestQuickWayForgetsTokens(t *testing.T) {
	s := startData(t, newFixed(), nil)
	for _, tt := range []struct {
		set    *tokenSet
		status string
	}{{setTokens("x", ""), "200 OK"}, {setTokens("y", ""), "401 Un"}, {setTokens("", "x"), "200 OK"}} {
		s.plane.tokens.set.Store(tt.set)
		one := quickPost(plainCheck, "Authorization: Bearer x")
		if with, without, quick := both(t, s, opening, one, one, one); with != without || quick != 3 || strings.Count(with, tt.status) < 3 {
			t.Errorf("%d answers the quick way; have\n%s\nwant\n%s", quick, with, without)
		}
	}
	c := &connection{owner: s.conns}
	one := []byte(quickPost(plainCheck, "Authorization: Bearer x"))
	k := &tokens{}
	for i, tt := range []struct {
		set  *tokenSet
		good bool
	}{{setTokens("x", ""), true}, {setTokens("x", ""), true}, {setTokens("y", ""), false}, {setTokens("x", ""), true}} {
		k.set.Store(tt.set)
		for range 2 {
			r, _ := c.head.read(one)
			if who, e := k.permit(string(r.authorization), 1, ScopeCheck, r.known); (who != nil) != tt.good || (e == nil) != tt.good {
				t.Errorf("step %d: have %v, %v", i, who, e)
			}
		}
	}
	// A head that is too long to remember knows nothing about the previous one.
	long := []byte(quickPost(plainCheck, "Authorization: Bearer y", "X: "+strings.Repeat("z", mostQuickHead)))
	if r, ok := c.head.read(long); !ok || r.known != nil {
		t.Errorf("have %v, %v", r.known, ok)
	}
}

// Versions, logs and traces name the token of a write, and none reveals it.
func TestWritesNameTheirToken(t *testing.T) {
	t.Parallel()
	var out syncBuffer
	var by []string
	n := startNode(t, func(c *Config) {
		c.TokensFile, c.Logger = tokensFile(t, entry("deploy", "rlt_secret", "admin")), slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Rules = notesWriters{c.Rules, &by}
	})
	header := map[string]string{"Authorization": "Bearer rlt_secret"}
	n.do(call{method: "PUT", url: n.adm + "/v1/rules", body: yamlRules, header: header})
	n.do(call{method: "DELETE", url: n.adm + "/v1/usage?rule=only&key=private", header: header})
	if len(by) != 1 || by[0] != "admin API, token deploy, 127.0.0.1" {
		t.Errorf("have %q", by)
	}
	log := out.String()
	if strings.Contains(log, "rlt_") || strings.Contains(log, "private") {
		t.Errorf("the log has %s", log)
	}
	for _, want := range []string{`msg="rules written" version=2 by="admin API, token deploy, 127.0.0.1"`, `msg="usage reset" rule=only by="admin API, token deploy`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has not %s: %s", want, log)
		}
	}
}

// syncBuffer collects what several goroutines log.
type syncBuffer struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// notesWriters records the writers.
type notesWriters struct {
	RuleStore
	by *[]string
}

func (s notesWriters) Write(ctx context.Context, c rules.Change, o cluster.WriteOptions) (int64, error) {
	*s.by = append(*s.by, o.By)
	return s.RuleStore.Write(ctx, c, o)
}
