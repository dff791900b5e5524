package main

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/process"
)

// newToken runs rlnode token and returns its output.
func newToken(t *testing.T, args ...string) (text, line string) {
	t.Helper()
	code, stdout, stderr := tool(t, "", append([]string{"token"}, args...)...)
	text, line, ok := strings.Cut(strings.TrimSuffix(stdout, "\n"), "\n")
	if code != 0 || !ok || strings.Contains(stderr, text) {
		t.Fatalf("have %d, %q, %q", code, stdout, stderr)
	}
	return text, line + "\n"
}

// TestTokensFile: an operator creates tokens, a node accepts each for its
// scopes, and follows changes of the file.
func TestTokensFile(t *testing.T) {
	t.Parallel()
	gateway, gatewayLine := newToken(t, "gateway", "--scope", "check")
	viewer, viewerLine := newToken(t, "viewer", "--scope", "read")
	support, supportLine := newToken(t, "support", "--scope", "adjust,read")
	deploy, deployLine := newToken(t, "deploy", "--scope", "admin")
	tokens := file(t, "tokens.yaml", "tokens:\n"+gatewayLine+viewerLine+deployLine)
	s := start(t, t.TempDir(), "--tokens-file", tokens, "--rules",
		file(t, "rules.yaml", yearRules(1000)), "--admin-host", "node1.example")
	expect := func(method, url, token, body string, want int) {
		t.Helper()
		if have, text, err := s.call(method, url, token, body); have != want {
			t.Errorf("%s %s: have %d (%s, %v), want %d", method, url, have, text, err, want)
		}
	}
	expect("POST", s.data+"/v1/check", "", oneCheck, 401)
	expect("POST", s.data+"/v1/check", gateway, oneCheck, 200)
	expect("POST", s.data+"/v1/check", viewer, oneCheck, 403)
	expect("POST", s.data+"/v1/check", deploy, oneCheck, 200)
	expect("GET", s.admin+"/v1/rules", viewer, "", 200)
	expect("PUT", s.admin+"/v1/rules", viewer, yearRules(5), 403)
	expect("GET", s.admin+"/v1/usage?rule=year&key=a", support, "", 401) // not yet

	for _, test := range []struct {
		env  []string
		args string
		code int
		want string
	}{
		{nil, "members", 1, "401 unauthorized"},
		{[]string{"RLNODE_ADMIN_TOKEN=" + gateway}, "members", 1, "scope read; gateway has check"},
		{[]string{"RLNODE_ADMIN_TOKEN=" + viewer}, "members", 0, "alive"},
		{[]string{"RLNODE_ADMIN_TOKEN_FILE=" + file(t, "viewer", viewer+"\n")}, "rules", 0, "year"},
		{[]string{"RLNODE_ADMIN_TOKEN_FILE=" + file(t, "viewer", viewer)}, "owner --rule year --key a", 0, "owner"},
		{[]string{"RLNODE_ADMIN_TOKEN_FILE=" + file(t, "viewer", viewer)}, "top", 0, ""},
		{[]string{"RLNODE_ADMIN_TOKEN_FILE=" + file(t, "viewer", viewer)}, "usage", 0, ""},
		{[]string{"RLNODE_ADMIN_TOKEN_FILE=" + file(t, "viewer", viewer)}, "backup", 0, "rlnode-backup"},
		{nil, "rules --token-file " + file(t, "viewer", viewer), 0, "year"},
		{nil, "check --rule year --key a --token-file " + file(t, "gateway", gateway), 0, "allowed"},
		{[]string{"RLNODE_API_TOKEN_FILE=" + file(t, "gateway", gateway)},
			"bench -d 100ms --rule year", 0, " 0 errors"},
		{nil, "rules --token-file /nowhere", 2, "--token-file: "},
		{[]string{"RLNODE_ADMIN_TOKEN=x"}, "rules --token-file " + file(t, "viewer", viewer), 2, "exclude each other"},
		{[]string{"RLNODE_API_TOKEN_FILE=/nowhere"}, "health", 0, "is ready"},
	} {
		env := append([]string{"RLNODE_ADDR=" + s.data, "RLNODE_ADMIN=" + s.admin}, test.env...)
		code, stdout, stderr := toolEnv(t, env, "", strings.Fields(test.args)...)
		if code != test.code || !strings.Contains(stdout+stderr, test.want) || strings.Contains(stderr, "rlt_") {
			t.Errorf("%s: have %d %s%s, want %d %q", test.args, code, stdout, stderr, test.code, test.want)
		}
	}

	// A bad file is ignored; then gateway's token is accepted.
	if err := os.WriteFile(tokens, []byte("tokens:\n- {name: x}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	process.Eventually(t, "the node logs the mistake", func() bool {
		return strings.Contains(s.log.String(), "tokens.yaml:2:3: tokens[0].scopes is missing")
	})
	expect("POST", s.data+"/v1/check", gateway, oneCheck, 200)
	if err := os.WriteFile(tokens, []byte("tokens:\n"+supportLine+deployLine), 0o600); err != nil {
		t.Fatal(err)
	}
	process.Eventually(t, "the new tokens are in force", func() bool {
		status, _, _ := s.call("GET", s.admin+"/v1/usage?rule=year&key=a", support, "")
		return status == 200
	})
	expect("POST", s.data+"/v1/check", gateway, oneCheck, 401)
	expect("DELETE", s.admin+"/v1/usage?rule=year&key=a", support, "", 200)
	expect("PUT", s.admin+"/v1/rules", deploy, yearRules(7), 200)
	if _, text, _ := s.call("GET", s.admin+"/v1/rules/versions", deploy,
		""); !strings.Contains(text, `"by":"deploy (127.0.0.1)"`) {
		t.Errorf("the versions do not name the token: %s", text)
	}

	for host, want := range map[string]int{"node1.example": 200, "evil.example": 421} {
		req, err := http.NewRequest("GET", s.admin+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: have %d, want %d", host, resp.StatusCode, want)
		}
	}
	s.stop()
	if strings.Contains(s.log.String(), "rlt_") || strings.Contains(s.log.String(), strings.TrimSpace(gatewayLine)) {
		t.Errorf("the log has a token: %s", s.log.String())
	}
}

func TestTokenCommandMistakes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, want string }{
		{"token --scope check", "<name>"}, {"token x", "--scope"},
		{"token x --scope chek", `"chek"`}, {"token x --scope check,check", "is given twice"},
		{"token x= --scope check", "a name consists of letters"},
		{"token rlt_abc --scope check", "not a name"},
		{"token " + strings.Repeat("x", 65) + " --scope check", "64 bytes"},
	} {
		if code, stdout, stderr := tool(t, "", strings.Fields(test.args)...); code != 2 ||
			stdout != "" || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: have %d, %q, %q, want %q", test.args, code, stdout, stderr, test.want)
		}
	}
}

// A node with invalid tokens or names does not start, and reports where they are.
func TestTokenSettingsMistakes(t *testing.T) {
	clearEnv(t)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--tokens-file", "/nowhere.yaml"}, "--tokens-file: "},
		{[]string{"--tokens-file", file(t, "empty.yaml", "")}, "empty.yaml:1:1: tokens is missing"},
		{[]string{"--tokens-file",
			file(t, "bad.yaml", "tokens:\n- {name: a, scopes: [chek], sha256: 00}\n")},
			`bad.yaml:2:21: tokens[0].scopes: there is no scope "chek"`},
		{[]string{"--admin-token", ""}, "--admin-token: it must not be empty"},
		{[]string{"--api-token="}, "--api-token: it must not be empty"},
		{[]string{"--api-token", "a b"},
			"--api-token: a token is at most 4096 visible ASCII characters without spaces\n"},
		{[]string{"--gossip-key", "", "--zone", "z"}, "--gossip-key: it must not be empty"},
		{[]string{"--tokens-file", ""}, "--tokens-file: it must not be empty"},
		{[]string{"--admin-token-file=", "--cluster-secret-file", ""},
			"--admin-token-file: it must not be empty\n--cluster-secret-file: it must not be empty\n"},
		{[]string{"--admin-host", "http://node1"}, "--admin-host: "},
		{[]string{"--admin-host", "node1:8081"}, "--admin-host: "},
		{[]string{"--admin-host", "a,,b"}, "--admin-host: "},
	} {
		var out, errs strings.Builder
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // in case a node does start
		defer cancel()
		if code := run(ctx,
			append([]string{"serve", "--bind", "127.0.0.1", "--data-dir", t.TempDir()}, test.args...),
			strings.NewReader(""), &out, &errs); code != 2 || strings.Count(errs.String(),
			test.want) != 1 {
			t.Errorf("%v: have %d, %q, want %q", test.args, code, errs.String(), test.want)
		}
	}
	c, err := parseServe("--admin-host", "a.example,b", "--admin-host", "c")
	if err != nil || c.tokenSettings.complete() != nil || len(c.AdminHost) != 3 {
		t.Errorf("have %v, %v", c.AdminHost, err)
	}
}

func TestTokenWarnings(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	for _, test := range []struct {
		bind, admin string
		tokens      tokenSettings
		want        []string
	}{
		{"127.0.0.1", "127.0.0.1", tokenSettings{}, nil},
		{"::1", "127.9.9.9", tokenSettings{}, nil},
		{"0.0.0.0", "127.0.0.1", tokenSettings{}, []string{"the data plane"}},
		{"192.0.2.1", "::", tokenSettings{}, []string{"the data plane", "the admin plane"}},
		{"0.0.0.0", "0.0.0.0", tokenSettings{TokensFile: "f"}, nil},
		{"0.0.0.0", "0.0.0.0", tokenSettings{APIToken: "t"}, nil},
		{"0.0.0.0", "0.0.0.0", tokenSettings{AdminToken: "t"}, nil},
	} {
		out.Reset()
		test.tokens.warn(log, test.bind, test.admin)
		have := out.String()
		if strings.Count(have, "\n") != len(test.want) {
			t.Errorf("%s, %s, %+v: have %s", test.bind, test.admin, test.tokens, have)
		}
		for _, want := range test.want {
			if !strings.Contains(have, want) {
				t.Errorf("%s, %s: have %s, want %s", test.bind, test.admin, have, want)
			}
		}
	}
	for args, want := range map[string]string{
		"serve": "", "serve --api-token-file f --admin-token-file=g --gossip-key-file h --tokens-file t": "",
		"serve --api-token xyzzy":                      "--api-token",
		"serve --admin-token=xyzzy --gossip-key xyzzy": `"--admin-token --gossip-key"`,
	} {
		out.Reset()
		warnSecrets(log, strings.Fields(args))
		have := out.String()
		if (want == "") != (have == "") || !strings.Contains(have, "flags="+want) && want != "" ||
			strings.Contains(have, "xyzzy") || strings.Count(have, "\n") > 1 {
			t.Errorf("%s: have %s, want %s", args, have, want)
		}
	}
}
