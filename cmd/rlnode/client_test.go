package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/rules"
)

const clientRules = `version: 1
rules:
  - {name: login, key: [ip], limits: [{limit: 3, per: 8760h, algorithm: fixed-window}]}
  - {name: chat, key: [tenant, endpoint], limits: [{limit: 100, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: all, match: {plan: x}, key: [], limits: [{limit: 50, per: 1h, algorithm: fixed-window}]}
`

// TestClientCommands drives one node with every client command.
func TestClientCommands(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--name", "n1", "--rules", file(t, "rules.yaml", clientRules))
	newRules := file(t, "new.yaml", strings.Replace(clientRules, "limit: 3", "limit: 4", 1))
	badRules := file(t, "bad.yaml", clientRules+"  - {name: login, key: [ip, ip], limits: []}\n")
	backupFile := filepath.Join(t.TempDir(), "backup.json")
	entriesBackup := filepath.Join(t.TempDir(), "entries.json")
	for _, test := range []struct {
		args  string
		stdin string
		code  int
		want  []string // parts of standard output or error
	}{
		{"check --rule login --key 198.51.100.7", "", 0, []string{"allowed by login: 2 of 3 requests left", "n1"}},
		{"check --rule login --key 198.51.100.7 --peek", "", 0, []string{"1 of 3"}},
		{"check --rule login --key 198.51.100.7 --cost 2", "", 0, []string{"0 of 3"}},
		{"check --rule login --key 198.51.100.7", "", 1, []string{"refused by login: 0 of 3", "retry after"}},
		{"check --rule login --key 198.51.100.7 --cost 9", "", 1, []string{"never"}},
		{"check --rule login --key 198.51.100.7 --json", "", 1, []string{`"allowed":false`, `"rule":"login"`}},
		{"check --rule chat --key acme --key /chat --unit tokens --cost 30", "", 0, []string{"70 of 100 tokens"}},
		{"check --attr tenant=acme --attr endpoint=/chat --unit tokens --cost 30 --detail", "", 0, []string{"40 of 100 tokens", "fixed-window"}},
		{"check --attr nobody=asks", "", 0, []string{"no rule applies"}},
		{"check --rule all", "", 0, []string{"49 of 50"}},
		{"check --rule nosuch --key x", "", 2, []string{"404", "unknown-rule", "nosuch"}},
		{"check --key x", "", 2, []string{"--rule"}},
		{"check", "", 2, []string{"no subject"}},
		{"check --attr x", "", 2, []string{"name=value"}},
		{"check --rule login --key a --attr b=c", "", 2, []string{"exclude"}},
		{"check --rule login --key a --addr ftp://x", "", 2, []string{"--addr"}},
		{"check --rule login --key a --addr http://127.0.0.1:1", "", 2, []string{"can't reach a node at http://127.0.0.1:1"}},
		{"check --limit 3/1h --key user-42", "", 0, []string{"allowed by inline: 2 of 3 requests left"}},
		{"check --limit 3/1h --key user-42 --mode peek", "", 0, []string{"1 of 3"}},
		{"check --limit 3/1h --key user-42 --mode count --cost 5", "", 1, []string{"counted by inline, beyond the limit: 6 of 3 requests used"}},
		{"check --limit 3/1h --key user-42", "", 1, []string{"refused by inline: 0 of 3", "retry after"}},
		{"check --limit 3/1h --key user-42 --namespace shop --exact --json", "", 0, []string{`"used":1`, `"owner"`}},
		{"check --limit 5/1m,algorithm=token-bucket,burst=10 --limit 900/day,unit=tokens,name=day,tz=Asia/Tokyo --key a --cost 1 --cost tokens=300", "", 0,
			[]string{"allowed by inline: 600 of 900 tokens left", "(token-bucket): 9 of 10 requests left"}},
		{"check --limit 2/1h,algorithm=fixed-window,from=first --key b --peek --detail", "", 0, []string{"1 of 2", "fixed-window"}},
		{"check --rule chat --key acme --key /limits --cost 0 --cost tokens=30", "", 0, []string{"70 of 100 tokens"}},
		{"check --rule login --key 192.0.2.9 --mode count --cost 5", "", 1, []string{"5 of 3 requests used"}},
		{"check --limit 5 --key a", "", 2, []string{"--limit", "5/1m"}},
		{"check --limit 5/1m", "", 2, []string{"--key is missing"}},
		{"check --limit 5/1m --key a --rule login", "", 2, []string{"excludes"}},
		{"check --limit 5/1m --key a --attr b=c", "", 2, []string{"excludes"}},
		{"check --limit 5/1m,algorithm=leaky --key a", "", 2, []string{"bad-value", "leaky-bucket"}},
		{"check --namespace shop --key a", "", 2, []string{"--limit is missing"}},
		{"check --exact --rule login --key a", "", 2, []string{"--exact needs --limit"}},
		{"check --peek --mode count --rule login --key a", "", 2, []string{"exclude"}},
		{"check --mode take --rule login --key a", "", 2, []string{"--mode"}},
		{"check --cost x --rule login --key a", "", 2, []string{"--cost"}},
		{"check --cost 1 --cost 2 --rule login --key a", "", 2, []string{"--cost", "once"}},
		{"check --unit tokens --cost tokens=2 --rule login --key a", "", 2, []string{"--unit"}},
		{"check --rule login", "", 2, []string{"give the subject with --key"}},
		{"try --attr ip=198.51.100.8", "", 0, []string{"allowed by login: 2 of 3", "login  yes", "chat   no       key: tenant is absent; key: endpoint is absent", `all    no       plan: it is absent, not "x"`}},
		{"try --attr ip=198.51.100.8 --attr plan=y", "", 0, []string{`plan: "y" is not "x"`}},
		{"try --rule all --attr plan=y", "", 0, []string{"no rule applies", `plan: "y" is not "x"`}},
		{"try --attr ip=198.51.100.7", "", 1, []string{"refused by login"}},
		{"try --rule login --key 198.51.100.8 --json", "", 0, []string{`"status":200`, `"rules":[{"rule":"login","applies":true}]`}},
		{"try --limit 3/1h --key new", "", 0, []string{"2 of 3"}},
		{"try --rule nosuch --attr a=b", "", 2, []string{"unknown-rule"}},
		{"try", "", 2, []string{"no subject"}},
		{"subject --rule login --key 198.51.100.7", "", 0, []string{"login: 198.51.100.7  (owner n1)", "USED", "fixed-window  3     3   0     0       3      requests"}},
		{"subject --rule login --key 198.51.100.7 --json", "", 0, []string{`"blocked_until_ms":0`}},
		{"subject --rule all", "", 0, []string{"all: (all)"}},
		{"subject --rule login", "", 1, []string{"give the subject with --key"}},
		{"subject --rule nosuch --key a", "", 1, []string{"unknown-rule"}},
		{"subject", "", 2, []string{"no subject"}},
		{"adjust --rule login --key adjusted --cost 2", "", 0, []string{"login: adjusted", "2     3   1"}},
		{"adjust --rule login --key adjusted --cost=-1 --request-id a", "", 0, []string{"1     3   2"}},
		{"adjust --rule login --key adjusted --cost=-1 --request-id a --json", "", 0, []string{`"used":1`}},
		{"adjust --rule login --key adjusted", "", 2, []string{"--cost"}},
		{"adjust --namespace shop --key a --cost 1", "", 2, []string{"--limit is missing"}},
		{"reset", "", 2, []string{"no subject"}},
		{"slots --rule login --key 198.51.100.7", "", 0, []string{"it has no limit of slots"}},
		{"slots --limit 3/9s,algorithm=concurrency --key new", "", 0, []string{"inline: new  0 of 3 held"}},
		{"slots", "", 2, []string{"no subject"}},
		{"slots free 0123456789abcdef --limit 3/9s,algorithm=concurrency --key new", "", 1, []string{"unknown-slot"}},
		{"slots free --rule login --key a", "", 2, []string{"<slot>"}},
		{"feedback --rule login --key 198.51.100.7", "", 0, []string{"login should not have refused 198.51.100.7; 1 since"}},
		{"feedback --rule chat --key acme --key /chat --json", "", 0, []string{`"key":["acme","/chat"]`, `"false_positives":1`}},
		{"feedback --rule login", "", 1, []string{"give the subject with --key"}},
		{"feedback --rule nosuch --key a", "", 1, []string{"unknown-rule"}},
		{"feedback --rule login --key a --verdict wrong", "", 2, []string{"--verdict"}},
		{"feedback --key a", "", 2, []string{"--rule"}},
		{"reset --key a", "", 2, []string{"--key needs --rule or --limit", "--namespace (calls without one are in inline)"}},
		{"load db 0.5 --ttl 1h", "", 0, []string{"the load of db is 0.5 for 1h0m0s: no rule follows it"}},
		{"load", "", 0, []string{"SOURCE", "db ", "0.5"}},
		{"load db", "", 2, []string{"rlnode load db 0.9"}},
		{"load db much", "", 2, []string{"much"}},
		{"owner --rule login --key 198.51.100.7", "", 0, []string{"owner n1, standby none"}},
		{"owner --rule chat --key acme --key /chat --json", "", 0, []string{`"partition"`}},
		{"owner --rule nosuch --key x", "", 1, []string{"unknown-rule"}},
		{"members", "", 0, []string{"n1", "4096", "leader", "connected"}},
		{"members --json", "", 0, []string{`"members"`}},
		{"level", "", 0, []string{fmt.Sprint("feature level ", cluster.Newest), "n1", "2025c"}},
		{"level --raise", "", 0, []string{fmt.Sprint("the feature level is ", cluster.Newest)}},
		{fmt.Sprint("level --raise --to ", cluster.Newest+1), "", 1, []string{"level-refused"}},
		{"level --to 2", "", 2, []string{"--to"}},
		{"top", "", 0, []string{"login: 198.51.100.7"}},
		{"top --by used --rule chat", "", 0, []string{"USED  RULE AND SUBJECT", "chat: acme"}},
		{"top --near --rule login", "", 0, []string{"USED  OF  RULE AND SUBJECT", "3   3  login: 198.51.100.7"}},
		{"top --by shadow", "", 0, []string{"no subject would have been refused by a shadow rule"}},
		{"top --by delayed --json", "", 0, []string{`"subjects":[]`, `"nodes"`}},
		{"top --recent", "", 0, []string{"RECENT  REFUSED  CHECKS", "login: 198.51.100.7"}},
		{"top --near --recent", "", 2, []string{"exclude"}},
		{"top --near --by used", "", 2, []string{"exclude"}},
		{"top --by checks", "", 2, []string{"--by"}},
		{"top -n 0", "", 2, []string{"-n"}},
		{"top --watch --interval 1ms", "", 2, []string{"--interval"}},
		{"top --json", "", 0, []string{`"subjects"`, `"refused"`}},
		{"rules", "", 0, []string{"name: login", "limit: 3"}},
		{"rules --json", "", 0, []string{`"login"`}},
		{"backup -o " + backupFile, "", 0, []string{"version 1", backupFile}},
		{"apply -f " + newRules, "", 0, []string{"version 2 is in force"}},
		{"apply -f -", clientRules, 0, []string{"version 3 is in force"}},
		{"apply -f " + newRules + " --if-match 2", "", 1, []string{"412"}},
		{"apply -f " + newRules + " --if-match 3 --json", "", 0, []string{`"version":4`}},
		{"apply -f " + badRules, "", 1, []string{"bad.yaml:6:", "unchanged"}},
		{"apply -f -", "rules: [}", 1, []string{"<stdin>:1:"}},
		{"apply -f /nowhere", "", 1, []string{"/nowhere"}},
		{"apply", "", 2, []string{"--file"}},
		{"rules --versions", "", 0, []string{"VERSION", "4", "1"}},
		{"rules --version 2", "", 0, []string{"limit: 4"}},
		{"rules --version 99", "", 1, []string{"404"}},
		{"rules --version 1 --versions", "", 2, []string{"exclude"}},
		{"restore " + backupFile, "", 0, []string{"restoring version 1", "version 5 is in force"}},
		{"rules", "", 0, []string{"limit: 3"}},
		{"restore " + newRules, "", 1, []string{"rules file", "apply"}},
		{"restore -", `{"format":"x"}`, 1, []string{"not a backup"}},
		{"restore -", `{"format":"rlnode-backup-1","rules":"x","sha256":"00"}`, 1, []string{"damaged"}},
		{"tiers", "", 0, []string{"no tiers"}},
		{"deny add ip=203.0.113.0/24 endpoint=/login --for 1h --note why", "", 0, []string{"written: endpoint=/login ip=203.0.113.0/24, until 2", "(version 1 of the entries)"}},
		{"deny add ip=203.0.113.0/24 endpoint=/login", "", 0, []string{"(version 2 of the entries)"}},
		{"deny list", "", 0, []string{"endpoint=/login ip=203.0.113.0/24", "127.0.0.1"}},
		{"allow add tenant=ops", "", 0, []string{"written: tenant=ops"}},
		{"allow list", "", 0, []string{"tenant=ops"}},
		{"subject set tenant=acme", "", 2, []string{"give --tier"}},
		{"block --rule login --key 198.51.100.99 --for 1h", "", 0, []string{"written: rule=login key=198.51.100.99, until 2"}},
		{"entries", "", 0, []string{"allow", "tenant=ops", "block", "rule=login"}},
		{"entries --kind block --json", "", 0, []string{`"kind":"block"`}},
		{"entries --asleep", "", 0, []string{"no entry sleeps"}},
		{"entries log -n 2", "", 0, []string{"added block rule=login key=198.51.100.99 until 2", "added allow tenant=ops"}},
		{"unblock --rule login --key 198.51.100.99", "", 0, []string{"removed: rule=login key=198.51.100.99"}},
		{"unblock --rule login --key 198.51.100.99", "", 1, []string{"not-found"}},
		{"backup -o " + entriesBackup, "", 0, []string{entriesBackup}},
		{"allow remove tenant=ops", "", 0, []string{"removed: tenant=ops"}},
		{"deny add user=mallory", "", 0, []string{"written: user=mallory"}},
		{"restore " + entriesBackup + " --entries merge", "", 0, []string{"2 entries restored, 0 removed"}},
		{"entries", "", 0, []string{"tenant=ops", "user=mallory", "endpoint=/login"}},
		{"restore " + entriesBackup + " --entries replace", "", 0, []string{"2 entries restored, 1 removed"}},
		{"deny list", "", 0, []string{"endpoint=/login"}},
		{"entries --kind allow", "", 0, []string{"tenant=ops"}},
		{"restore " + entriesBackup + " --entries other", "", 2, []string{"--entries"}},
		{"check --attr ip=203.0.113.9 --attr endpoint=/login", "", 1, []string{"refused by a list"}},
		{"deny remove ip=203.0.113.0/24 endpoint=/login --json", "", 0, []string{`"entries_version":13`}},
		{"deny remove ip=203.0.113.0/24", "", 1, []string{"not-found"}},
		{"deny add 203.0.113.7", "", 2, []string{"name=value"}},
		{"deny add", "", 2, []string{"<entry>", "rlnode deny add --help"}},
		{"deny", "", 2, []string{"add", "rlnode deny --help"}},
		{"apply -f -", clientRules + "tiers: {free: {limits: [{limit: 9, per: 1h}, {limit: 2, per: day, unit: tokens, tz: Asia/Tokyo}]}, paid: {limits: [{limit: 99, per: 1h, algorithm: token-bucket, burst: 3}]}}\n", 0,
			[]string{"version 6"}},
		{"subject set ip=198.51.100.98 --tier paid --limits {\"login\":[{\"limit\":9,\"per\":\"1h\"}]}", "", 0, []string{"tier=paid"}},
		{"subject set ip=198.51.100.98 --tier none", "", 1, []string{"is not defined"}},
		{"entries --kind subject", "", 0, []string{"ip=198.51.100.98 tier=paid"}},
		{"subject unset ip=198.51.100.98", "", 0, []string{"ip=198.51.100.98"}},
		{"subject set ipp=198.51.100.98 --tier paid", "", 0, []string{"ipp=198.51.100.98", `the tier changes nothing: no rule with tiers has "ipp" in its key`}},
		{"tiers", "", 0, []string{"TIER  LIMITS", "free  9/1h  2/day,unit=tokens,tz=Asia/Tokyo", "paid  99/1h,algorithm=token-bucket,burst=3"}},
		{"tiers --json", "", 0, []string{`"tiers"`, `"paid"`}},
		{"--version", "", 0, []string{"rlnode ", "go1."}},
		{"--version --json", "", 0, []string{`"platform"`}},
		{"bench --duration 100ms --connections 2 --keys 10", "", 0, []string{"checks/s", "p99.9", "0 errors"}},
		{"bench --duration 100ms --connections 2 --rule login --batch 50 --json", "", 0, []string{`"errors":0`, `"p50"`}},
		{"bench --duration 100ms --rate 200", "", 0, []string{"0 errors"}},
		{"bench --rule nosuch", "", 1, []string{"unknown-rule"}},
		{"bench --connections 0", "", 2, []string{"--connections"}},
		{"bench --addr 127.0.0.1:1", "", 1, []string{"can't reach"}},
	} {
		code, stdout, stderr := tool(t, test.stdin, atPlanes(s, strings.Fields(test.args))...)
		all := stdout + stderr
		if code != test.code {
			t.Errorf("%s: have exit code %d, want %d: %s", test.args, code, test.code, all)
		}
		for _, want := range test.want {
			if !strings.Contains(all, want) {
				t.Errorf("%s: have %q, want it to have %q", test.args, all, want)
			}
		}
	}
	s.stop()
}

// atPlanes adds the addresses of the planes that a command asks, unless it has some.
func atPlanes(s *runningNode, args []string) []string {
	data, admin := []string{"--addr", s.data}, []string{"--admin", s.admin}
	has := func(flag string) bool { return slices.Contains(args, flag) }
	switch args[0] {
	case "--version":
	case "deny", "allow":
		if len(args) > 1 { // alone, it has no flags
			args = append(args, admin...)
		}
	case "check", "bench", "adjust", "reset":
		if !has("--addr") {
			args = append(args, data...)
		}
	case "slots":
		args = slices.Concat(args, data, admin)
	case "subject":
		if has("set") || has("unset") {
			args = append(args, admin...)
		} else {
			args = slices.Concat(args, data, admin)
		}
	default:
		if !has("--admin") {
			args = append(args, admin...)
		}
	}
	return args
}

// TestBackupRoundTrip: restoring a backup yields the same document, byte for byte.
// A version that deleted something has no text, which is not the same as an empty one.
func TestVersionWithoutText(t *testing.T) {
	var out strings.Builder
	expect.NoError(t, printVersions(&out, &admin.Versions{Versions: []rules.Version{{Number: 2, What: "rule login"}, {Number: 1, What: "document", Size: 40}}}))
	if !regexp.MustCompile(`(?s)2 +0001\S+ +- .*1 +0001\S+ +40 `).MatchString(out.String()) {
		t.Errorf("got %s", &out)
	}
}

func TestBackupRoundTrip(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--rules", file(t, "rules.yaml", "# a remark <&> é\n"+clientRules))
	_, before, _ := tool(t, "", "rules", "--admin", s.admin)
	code, saved, stderr := tool(t, "", "backup", "--admin", s.admin)
	var b backup
	if err := json.Unmarshal([]byte(saved), &b); code != 0 || err != nil || b.Version != 1 || time.Since(b.TakenAt) > time.Hour {
		t.Fatalf("backup: %d, %v, %s%s", code, err, saved, stderr)
	}
	if code, _, stderr := tool(t, yearRules(3), "apply", "-f", "-", "--force", "--admin", s.admin); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := tool(t, saved, "restore", "-", "--admin", s.admin); code != 0 {
		t.Fatal(stderr)
	}
	if _, after, _ := tool(t, "", "rules", "--admin", s.admin); after != before {
		t.Errorf("after restore: have %q, want %q", after, before)
	}
}

// TestTokensAndTLS: over HTTPS, both planes require their token, and the tools send it.
func TestTokensAndTLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	s := start(t, t.TempDir(), "--http-cert", cert, "--http-key", key, "--admin-token", "admin-secret",
		"--api-token-file", file(t, "token", "api-secret\n"), "--rules", file(t, "rules.yaml", yearRules(1000)))
	if !strings.HasPrefix(s.data, "https://") || !strings.HasPrefix(s.admin, "https://") {
		t.Fatalf("have %s and %s, want https", s.data, s.admin)
	}
	for _, test := range []struct {
		method, url, token, body string
		want                     int
	}{
		{"POST", s.data + "/v1/check", "", oneCheck, 401},
		{"POST", s.data + "/v1/check", "admin-secret", oneCheck, 200},
		{"POST", s.data + "/v1/check", "api-secret", oneCheck, 200},
		{"GET", s.data + "/readyz", "", "", 200},
		{"GET", s.admin + "/v1/rules", "", "", 401},
		{"GET", s.admin + "/v1/rules", "api-secret", "", 403},
		{"GET", s.admin + "/v1/rules", "admin-secret", "", 200},
		{"GET", s.admin + "/metrics", "", "", 200},
		{"PUT", s.admin + "/v1/rules", "", yearRules(5), 401},
		{"PUT", s.admin + "/v1/rules", "api-secret", yearRules(5), 403},
		{"PUT", s.admin + "/v1/rules", "admin-secret", yearRules(5), 200},
	} {
		if have, text, err := s.call(test.method, test.url, test.token, test.body); have != test.want {
			t.Errorf("%s %s with token %q: have %d (%s, %v), want %d", test.method, test.url, test.token, have, text, err, test.want)
		}
	}
	check := []string{"check", "--rule", "year", "--key", "a", "--addr", s.data}
	for _, test := range []struct {
		name string
		env  []string
		args []string
		code int
		want string
	}{
		{"unknown authority", []string{"RLNODE_API_TOKEN=api-secret"}, check, 2, "certificate"},
		{"no token", nil, append(check, "--ca", cert), 2, "401"},
		{"token by environment", []string{"RLNODE_API_TOKEN=api-secret", "RLNODE_CA=" + cert}, check, 0, "allowed"},
		{"token by flag", nil, append(check, "--ca", cert, "--token", "api-secret"), 0, "allowed"},
		{"apply without token", []string{"RLNODE_CA=" + cert}, []string{"apply", "-f", "-", "--admin", s.admin}, 1, "401"},
		{"apply", []string{"RLNODE_CA=" + cert, "RLNODE_ADMIN_TOKEN=admin-secret"}, []string{"apply", "-f", "-", "--admin", s.admin}, 0, "in force"},
		{"bench", []string{"RLNODE_CA=" + cert, "RLNODE_API_TOKEN=api-secret"}, []string{"bench", "--addr", s.data, "-d", "200ms", "--rule", "year"}, 0, " 0 errors"},
		{"no certificates in file", nil, append(check, "--ca", key), 2, "--ca"},
	} {
		code, stdout, stderr := toolEnv(t, test.env, yearRules(9), test.args...)
		if code != test.code || !strings.Contains(stdout+stderr, test.want) {
			t.Errorf("%s: have %d %s%s, want %d %q", test.name, code, stdout, stderr, test.code, test.want)
		}
	}
	s.stop()
}

// TestTopWatch: top prints repeatedly until it is interrupted, and ends without an error.
func TestTopWatch(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		fmt.Fprint(w, `{"subjects":[{"rule":"r","key":["a","\u001b[31m"],"refused":2,"checks":3}]}`)
	}))
	defer node.Close()
	out := &process.Output{}
	cmd := runTool(t, out, "top", "--watch", "--interval", "100ms", "--admin", node.URL)
	for range 3 {
		select {
		case <-asked:
		case <-time.After(process.Timeout):
			t.Fatal("the node is not asked again")
		}
	}
	expect.NoError(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("have %v, want no error", err)
	}
	if text := out.String(); !strings.Contains(text, `r: a, "\x1b[31m"`) || strings.Contains(text, "\x1b") {
		t.Errorf("have %q, want the key quoted", text)
	}
}

// TestStaleAnswersAreSaid: a node that does not reach the leader answers what it knows. Each command says so, and goes on.
func TestStaleAnswersAreSaid(t *testing.T) {
	t.Parallel()
	for _, stale := range []string{"", "true"} {
		node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if stale != "" {
				w.Header().Set("Rlnode-Stale", stale)
			}
			w.Header().Set("ETag", `"7"`)
			fmt.Fprint(w, map[string]string{
				"/v1/rules": "version: 1\n", "/v1/lists/deny": "[]", "/v1/entries": `{"entries":[]}`, "/v1/rules/versions": `{"versions":[]}`,
				"/v1/rules/diff": `{"from":7,"summary":[],"changes":[]}`, "/v1/entries/log": `{"changes":[]}`,
			}[r.URL.Path])
		}))
		for _, command := range []string{"rules", "rules --json", "versions", "backup", "entries", "deny list", "entries log", "diff -", "apply -f -"} {
			code, stdout, stderr := tool(t, "version: 1\n", append(strings.Fields(command), "--admin", node.URL)...)
			if code != 0 || strings.Contains(stderr, "may lack the latest changes") != (stale != "") {
				t.Errorf("%s, stale %q: got exit code %d, %s%s", command, stale, code, stdout, stderr)
			}
		}
		node.Close()
	}
}

// TestOddNodes: if something other than a healthy node answers, the tools say in one line what is wrong.
func TestOddNodes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		answer  func(w http.ResponseWriter)
		want    string
		command []string
	}{
		{"not rlnode", func(w http.ResponseWriter) { w.WriteHeader(404); fmt.Fprint(w, "<html>") }, "is this a node of rlnode", nil},
		{"no JSON", func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") }, "read the node's answer", nil},
		{"problem", func(w http.ResponseWriter) {
			w.WriteHeader(503)
			fmt.Fprint(w, `{"title":"Unavailable","code":"not-ready","detail":"loading"}`)
		}, "503 not-ready: loading", nil},
		{"hangs up", func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, "can't reach", nil},
		{"never answers", nil, "no answer", []string{"check", "--rule", "a", "--key", "b", "--timeout", "100ms"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			over := make(chan struct{})
			node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if test.answer == nil {
					<-over
					return
				}
				test.answer(w)
			}))
			defer node.Close()
			defer close(over)
			command := test.command
			if command == nil {
				command = []string{"check", "--rule", "a", "--key", "b"}
			}
			code, stdout, stderr := tool(t, "", append(command, "--addr", node.URL)...)
			if code != 2 || !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("have %d %s%q, want 2 and %q", code, stdout, stderr, test.want)
			}
		})
	}
}
