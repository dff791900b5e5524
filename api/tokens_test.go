package api

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
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

func TestTokensFileMistakes(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	one := "{name: a, scopes: [check], sha256: " + sum + "}"
	for _, tt := range []struct{ have, want string }{
		{"", ":1:1: tokens is missing: the file is empty"},
		{"# nothing\n", ":1:1: tokens is missing"},
		{"tokens:\n", "tokens: a list is expected"},
		{"tokens: []\n", "tokens: the list is empty"},
		{"tokens: {}\n", ":1:9: tokens: a list is expected"},
		{"- " + one, "a mapping is expected"},
		{"token: [" + one + "]", `:1:1: unknown field "token"`},
		{"tokens: [" + one, ":1:"},
		{"tokens:\n- a\n", ":2:3: tokens[0].name: "},
		{"tokens:\n- {scopes: [check], sha256: " + sum + "}", ":2:3: tokens[0].name is missing"},
		{"tokens:\n- {name: a, sha256: " + sum + "}", "tokens[0].scopes is missing"},
		{"tokens:\n- {name: a, scopes: [check]}", "tokens[0].sha256 is missing"},
		{"tokens:\n- {name: a, scopes: [chek], sha256: " + sum + "}",
			`:2:21: tokens[0].scopes: there is no scope "chek"`},
		{"tokens:\n- {name: a, scopes: [], sha256: " + sum + "}", "at least one scope"},
		{"tokens:\n- {name: a, scopes: check, sha256: " + sum + "}", "a list is expected"},
		{"tokens:\n- {name: a, scopes: [check, check], sha256: " + sum + "}", "check is given twice"},
		{"tokens:\n- {name: a, scopes: [check], sha256: rlt_secret}", ":2:38: tokens[0].sha256: 64 hexadecimal digits"},
		{"tokens:\n- {name: a, scopes: [check], sha256: " + sum + "a}", "64 hexadecimal digits"},
		{"tokens:\n- {name: a, scopes: [check], sha256: " + sum[1:] + "}", "64 hexadecimal digits"},
		{"tokens:\n- {name: a, scopes: [check], sha256: " + sum[1:] + "g}", "64 hexadecimal digits"},
		{"tokens:\n- {name: rlt_secret, scopes: [check], sha256: " + sum + "}",
			"tokens[0].name: this is a token, not a name"},
		{"tokens:\n- {name: 'a b', scopes: [check], sha256: " + sum + "}",
			"tokens[0].name: a name consists of letters"},
		{"tokens:\n- {name: " + strings.Repeat("n", 65) + ", scopes: [check], sha256: " + sum + "}", "1 to 64 bytes"},
		{"tokens:\n- {name: api-token, scopes: [check], sha256: " + sum + "}", "is the token of --api-token"},
		{"tokens:\n- {name: a, scopes: [check], sha256: " + sum + ", token: rlt_secret}",
			"tokens[0].token: there is no such field"},
		{"tokens:\n- {name: a, scopes: [check], namespaces: n, sha256: " + sum + "}",
			"tokens[0].namespaces: a list is expected"},
		{"tokens:\n- {name: a, scopes: [check], namespaces: [], sha256: " + sum + "}",
			":2:42: tokens[0].namespaces: 1 to 100 are expected"},
		{"tokens:\n- {name: a, scopes: [check], namespaces: [''], sha256: " + sum + "}",
			"tokens[0].namespaces: a namespace, or a pattern with *, has 1 to 1024 bytes"},
		{"tokens:\n- {name: a, scopes: [check], namespaces: [n, n], sha256: " + sum + "}",
			`tokens[0].namespaces: "n" is given twice`},
		{"tokens:\n- {name: a, scopes: [check, read], namespaces: [n], sha256: " + sum + "}",
			"tokens[0].namespaces: a token with the scope read or admin can't be confined"},
		{"tokens:\n- " + one + "\n- {name: a, scopes: [read], sha256: " + strings.Repeat("cd", 32) +
			"}", ":3:3: tokens[1].name: a is given twice"},
		{"tokens:\n- " + one + "\n- {name: b, scopes: [read], sha256: " + strings.ToUpper(sum) +
			"}", ":3:3: tokens[1].sha256: a has the same token"},
		{"tokens:\n" + entry("b", "set", "check"), "tokens[0].sha256: admin-token has the same token"},
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
	if err := CheckTokens(&Config{TokensFile: t.TempDir()}); err == nil ||
		!strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: have %v", err)
	}
	for _, have := range []string{`{"tokens":[{"name":"a","scopes":["check","read"],"sha256":"` +
		sum + `"}]}`, "tokens:\n- name: 1e3\n  scopes:\n  - admin\n  sha256: " +
		strings.Repeat("12", 32) + "\n"} {
		file := tokensFile(t)
		writeFile(t, file, have)
		if err := CheckTokens(&Config{TokensFile: file}); err != nil {
			t.Errorf("%q: have %v", have, err)
		}
	}
}

// The line that NewToken returns makes the token known.
func TestNewToken(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		text, line, err := NewToken("team/gateway-1", ScopeCheck|ScopeAdmin)
		if err != nil || seen[text] || len(text) != len(tokenPrefix)+43 ||
			!strings.HasPrefix(text, "rlt_") || strings.Contains(line, text[4:]) {
			t.Fatalf("have %q %q %v", text, line, err)
		}
		seen[text] = true
		set := tokensFromSettings("", "")
		if _, err := set.parse([]byte("tokens:\n  " + line + "\n")); err != nil {
			t.Fatal(err)
		}
		if who := set.find("Bearer " + text); who == nil || who.Name != "team/gateway-1" ||
			who.Scopes != ScopeCheck|ScopeAdmin {
			t.Fatalf("have %+v", who)
		}
	}
	text, line, err := NewToken("a", ScopeCheck, "mail/*", `a "b"`)
	set := tokensFromSettings("", "")
	if _, bad := set.parse([]byte("tokens:\n  " + line + "\n")); err != nil || bad != nil {
		t.Fatal(err, bad)
	}
	if who := set.find("Bearer " + text); who == nil || !who.Namespaces.Has("mail/x") ||
		!who.Namespaces.Has(`a "b"`) || who.Namespaces.Has("") || who.Namespaces.Has("mail") {
		t.Errorf("%s: have %+v", line, who)
	}
	if _, _, err := NewToken("a", ScopeRead, "n"); err == nil {
		t.Error("a token with the scope read was confined")
	}
	if _, _, err := NewToken("a b", ScopeCheck); err == nil {
		t.Error("an invalid name was accepted")
	}
}

// openFollowed returns tokens whose file only the test polls, and their log.
func openFollowed(t *testing.T, file string) (*tokens, *strings.Builder) {
	t.Helper()
	var out strings.Builder
	config := &Config{TokensFile: file, AdminToken: "adm"}
	k := &tokens{config: config, onWithdrawn: func() {}, log: slog.New(slog.NewTextHandler(&out, nil))}
	expect.NoError(t, k.open())
	return k, &out
}

// An invalid file leaves the old tokens in force, however the file got there.
func TestTokensFollowTheirFile(t *testing.T) {
	a, b := entry("a", "ta", "check"), entry("b", "tb", "read")
	file := tokensFile(t, a)
	k, out := openFollowed(t, file)
	knows := func(when string, texts ...string) {
		t.Helper()
		for _, text := range []string{"ta", "tb", "adm"} {
			expect.Equal(t, k.set.Load().find("Bearer "+text) != nil, slices.Contains(texts, text),
				"%s: knows %s", when, text)
		}
	}
	looks := func() {
		for range 3 {
			k.files.Check()
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
	expect.NoError(t, os.Remove(file))
	if looks(); strings.Count(out.String(), "not reloaded") != 1 {
		t.Errorf("without the file: the log has %s", out)
	}
	knows("without the file", "ta", "adm")
	writeFile(t, file, "tokens:\n"+b)
	looks()
	knows("another token", "tb", "adm")

	// Replace the file with another of the same size and time.
	info, err := os.Stat(file)
	expect.NoError(t, err)
	next := tokensFile(t, strings.Replace(entry("a", "ta", "read"), "name: a", "name: b", 1))
	expect.NoError(t, os.Chtimes(next, info.ModTime(), info.ModTime()))
	expect.NoError(t, os.Rename(next, file))
	looks()
	knows("renamed over it", "ta", "adm")

	// A half-written file may be valid on its own, but is not what its writer intends.
	writeFile(t, file, "tokens:\n"+b)
	k.files.Check()
	writeFile(t, file, "tokens:\n"+b+a)
	k.files.Check()
	knows("while the file is written", "ta", "adm")
	k.files.Check()
	knows("after that", "ta", "tb", "adm")
	if have := out.String(); strings.Contains(have, "ta\n") || strings.Contains(have, "Bearer") {
		t.Errorf("the log has %s", have)
	}
}

// A goroutine follows the file until close.
func TestTokensAreFollowed(t *testing.T) {
	file := tokensFile(t, entry("a", "ta", "check"))
	synctest.Test(t, func(t *testing.T) {
		withdrawn := 0
		k, err := openTokens(&Config{TokensFile: file}, slog.New(slog.DiscardHandler), func() { withdrawn++ })
		expect.NoError(t, err)
		for want, tokens := range []string{
			entry("a", "ta", "check") + entry("b", "tb", "check"), // one more
			entry("b", "tb", "check"),
		} {
			writeFile(t, file, "tokens:\n"+tokens)
			time.Sleep(2*tokensInterval + tokensInterval/2) // virtual time
			synctest.Wait()
			if k.set.Load().find("Bearer tb") == nil {
				t.Error("the changed file was not read")
			}
			expect.Equal(t, withdrawn, want, "sets that lack a token")
		}
		k.close()
	})
}

// Ten thousand tokens load quickly, and each is found.
func TestTenThousandTokens(t *testing.T) {
	var text strings.Builder
	text.WriteString("tokens:\n")
	for i := range maxTokens {
		text.WriteString(entry(fmt.Sprint("service-", i), fmt.Sprint("t", i), "check"))
	}
	if text.Len() > maxTokensFile {
		t.Fatalf("the file has %d bytes, want at most %d", text.Len(), maxTokensFile)
	}
	set := tokensFromSettings("a", "b")
	if at, err := set.parse([]byte(text.String())); err != nil || len(set.byHash) != maxTokens+2 {
		t.Fatalf("have %d, %v %v", len(set.byHash), at, err)
	}
	for i := range maxTokens {
		if who := set.find(fmt.Sprint("Bearer t", i)); who == nil || who.Name != fmt.Sprint("service-", i) {
			t.Fatalf("token %d: have %+v", i, who)
		}
	}
}

// When a token is withdrawn, the connections of all doors are strangers again.
func TestWithdrawnTokensReachAllDoors(t *testing.T) {
	d := &Doors{Config: Config{APIToken: "one", AdminToken: "two"}}
	var err error
	d.tokens, err = openTokens(&d.Config, slog.New(slog.DiscardHandler), d.distrustAll)
	expect.NoError(t, err)
	defer d.Close()

	var all []*Connection
	for _, conns := range []*Connections{d.NewConnections(8), d.DataConnections(), d.DataConnections()} {
		c := conns.add(&fakeConn{address: "10.0.0.1"})
		c.Trust()
		expect.Equal(t, c.IsStranger(), false, "with a token")
		all = append(all, c)
	}

	d.tokens.putInForce(tokensFromSettings("three", "two"))
	for i, c := range all {
		expect.Equal(t, c.IsStranger(), true, "door %d, after a token was withdrawn", i)
	}
}
