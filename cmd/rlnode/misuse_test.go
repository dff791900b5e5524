package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/rules"
)

const teamRules = `# Rules of the team.
version: 1
rules:
  # Five guesses.
  - name: login
    key: [ip]
    limits: [{limit: 5, per: 15m}]
  - name: search
    key: [user]
    limits: [{limit: 100, per: 1h}]
  - {name: tenant, key: [tenant], tiered: true}
tiers:
  free: {limits: [{limit: 9, per: 1h}]}
  gold: {limits: [{limit: 99, per: 1h}]}
subjects:
  tenant: {acme: {tier: gold}}
`

// team is a cluster with a team's rules, whose commands a test types: each at
// another node than the one before.
type team struct {
	*fleetNode // that was asked last
	t          *testing.T
}

// teams bounds how many clusters run at once.
var teams = make(chan struct{}, 4)

// startTeam starts three nodes. If there are lines of a file of tokens, the nodes need tokens.
func startTeam(t *testing.T, tokens ...string) *team {
	t.Helper()
	teams <- struct{}{}
	t.Cleanup(func() { <-teams })
	n, size := newEmptyFleet(t), 3
	args := []string{"--rules", file(t, "rules.yaml", teamRules)}
	if len(tokens) > 0 {
		token, line := newToken(t, "test", "--scope", "read")
		n.token = token
		args = append(args, "--tokens-file", file(t, "tokens.yaml", "tokens:\n"+strings.Join(tokens, "")+line))
	}
	if testing.Short() && raceDetector { // see start
		size = 1
	}

	n.start(size, args...)
	return &team{n.nodes[0], t}
}

// turn turns to the next node that is not killed.
func (n *team) turn() {
	nodes := n.fleet.nodes
	for again := true; again; again = n.killed.Load() {
		n.fleetNode = nodes[(slices.Index(nodes, n.fleetNode)+1)%len(nodes)]
	}
}

// turnAndCatchUp turns to the next node, and waits until what was written at
// others is in force there: a check does not.
func (n *team) turnAndCatchUp() {
	n.t.Helper()
	n.turn()
	process.Eventually(n.t, n.name+" has caught up", func() bool {
		r, err := http.NewRequest(http.MethodGet, n.admin+"/v1/rules/versions", nil)
		expect.NoError(n.t, err)
		r.Header.Set("Authorization", "Bearer "+n.fleet.token)
		resp, err := n.client.Do(r)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.Header.Get("Rlnode-Stale") == ""
	})
}

// check makes a check and returns the status.
func (n *team) check(body string) int {
	n.t.Helper()
	n.turnAndCatchUp()
	return n.fleetNode.check(body)
}

// used returns how much a subject has used of the first limit of a rule.
func (n *team) used(rule, key string) int64 {
	n.t.Helper()
	n.turnAndCatchUp()
	return n.fleetNode.used(rule, key)
}

// run runs a command against the next node, and checks its exit code and that
// its output has all of want.
func (n *team) run(args, stdin string, code int, want ...string) string {
	n.t.Helper()
	if strings.HasPrefix(args, "try ") {
		n.turnAndCatchUp()
	} else {
		n.turn()
	}
	return n.runAt(n.admin, args, stdin, code, want...)
}

// runAt is run at an address.
func (n *team) runAt(admin, args, stdin string, code int, want ...string) string {
	n.t.Helper()
	got, stdout, stderr := tool(n.t, stdin, append(strings.Fields(args), "--admin", admin)...)
	if got != code {
		n.t.Errorf("%s at %s: got exit code %d, want %d: %s%s", args, n.name, got, code, stdout, stderr)
	}
	for _, w := range want {
		if !strings.Contains(stdout+stderr, w) {
			n.t.Errorf("%s at %s: got %q, want it to have %q", args, n.name, stdout+stderr, w)
		}
	}
	return stdout
}

// until types a command, at one node after another, until it succeeds.
func (n *team) until(args, stdin string) {
	n.t.Helper()
	process.Within(n.t, time.Minute, args+" succeeds", func() bool {
		n.turn()
		code, _, _ := tool(n.t, stdin, append(strings.Fields(args), "--admin", n.admin)...)
		return code == 0
	})
}

// version returns the version in force, its text and what the list says about it.
func (n *team) version() (v rules.Version, text string) {
	n.t.Helper()
	n.turn()
	_, text, err := n.call("GET", n.admin+"/v1/rules", "", "")
	expect.NoError(n.t, err)
	var versions struct{ Versions []rules.Version }
	list, err := n.get("/v1/rules/versions", &versions)
	if err != nil || len(versions.Versions) == 0 {
		n.t.Fatalf("versions: %v: %s", err, list)
	}
	return versions.Versions[0], text
}

// unchanged checks that version want is in force.
func (n *team) unchanged(want int64) {
	n.t.Helper()
	if v, _ := n.version(); v.Number != want {
		n.t.Errorf("got version %d in force, want %d: %+v", v.Number, want, v)
	}
}

// put writes a piece at the next node.
func (n *team) put(method, path, body string) string {
	n.t.Helper()
	n.turn()
	status, text, err := n.call(method, n.admin+path, "", body)
	if err != nil || status != 200 {
		n.t.Fatalf("%s %s: %d, %v, %s", method, path, status, err, text)
	}
	return text
}

// TestMisuse_EmptyDocument: an empty document, or nothing at all, from a pipe
// changes nothing, and the message says what to do.
func TestMisuse_EmptyDocument(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	n.run("apply -f -", "version: 1\n", 3, "login", "search", "tenant", "may be in use",
		"a node has counted for", "--remove login", "--force")
	n.run("apply -f -", "", 1, "is empty", "rules document")
	n.run("apply -f -", "# nothing\n", 1, "empty")
	n.run("apply -f "+file(t, "cut.yaml", "version: 1\nrules:\n  - name: log"), "", 1, "cut.yaml:")
	n.run("apply -f /nowhere.yaml", "", 1, "/nowhere.yaml")
	n.run("apply -f "+t.TempDir(), "", 1, "no .yaml, .yml or .json file", "unchanged")
	n.unchanged(1)
	n.run("apply -f - --dry-run", "version: 1\n", 4, "- rule login")
	n.run("apply -f -", teamRules, 0, "no change")
	n.unchanged(1)
}

// TestMisuse_RenamedRule: a rule is renamed while it is asked. Permission for
// just its name is needed, and is enough for it alone.
func TestMisuse_RenamedRule(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	n.check(`{"rule": "login", "key": "198.51.100.7"}`)
	renamed := file(t, "renamed.yaml", strings.Replace(teamRules, "name: login", "name: sign-in", 1))
	n.run("apply -f "+renamed, "", 3, "- rule login", "+ rule sign-in", "1 checks used it",
		"it was named login", "--remove login")
	n.run("apply -f "+renamed+" --remove search", "", 3, "login would vanish")
	n.unchanged(1)
	n.run("diff "+renamed, "", 4, "1 rule removed; login was in use: 1 check in the last hour")

	less := strings.Replace(strings.Replace(teamRules, "name: login", "name: sign-in", 1),
		"name: search", "name: find", 1)
	n.run("apply -f - --remove login", less, 3, "search would vanish", "--remove search")
	n.run("apply -f - --remove login --remove search -m renamed", less, 0, "version 2 is in force")
	n.run("versions", "", 0, "renamed", "127.0.0.1, apply")
	n.run("apply -f - --remove sign-in,find", teamRules, 0, "version 3 is in force")
}

// TestMisuse_RollbackThatRemoves: a rollback has the same guard as apply, and
// what it goes back to is a new version.
func TestMisuse_RollbackThatRemoves(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	less := strings.Replace(strings.Replace(teamRules, "name: login", "name: sign-in", 1),
		"name: search", "name: find", 1)
	n.run("apply -f - --remove login,search", less, 0, "version 2 is in force")
	n.run("apply -f - --remove sign-in,find", teamRules, 0, "version 3 is in force")
	n.run("rollback 2 --dry-run", "", 4, "+ rule sign-in")
	n.unchanged(3)
	n.run("rollback 99", "", 1, "404")
	n.run("rollback 0", "", 2, "begin with 1")
	n.run("rollback 1", "", 0, "no change")
	n.run("rollback 2", "", 3, "login would vanish", "--remove login")
	n.run("rollback 2 --force", "", 0, "version 4 is in force")
	if v, text := n.version(); v.Message != "back to version 2" || v.Via != rules.ViaRollback || text != less {
		t.Errorf("got %+v with\n%s", v, text)
	}
	n.run("diff 1 2", "", 4, "- rule search", "+ rule find")
	n.run("diff 1 3", "", 0, "no change")
	n.run("diff 1 two", "", 2, "want two versions")
	n.run("diff 1", "", 2, "want a file, or two versions")
}

// TestMisuse_WritesBetween: a deploy from Git does not silently undo what was
// written by pieces or the dashboard.
func TestMisuse_WritesBetween(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	deploy := file(t, "deploy.yaml", strings.Replace(teamRules, "limit: 100", "limit: 200", 1))

	// A piece, written in an incident.
	written := n.put("PUT", "/v1/rules/login?message=incident",
		`{"key": ["ip"], "limits": [{"limit": 2, "per": "1h"}]}`)
	if !strings.Contains(written, "counts begin anew: the window changed from 15m to 1h") {
		t.Errorf("got %s, want it to say that counts begin anew", written)
	}
	if _, text := n.version(); !strings.Contains(text, "# Five guesses.") ||
		!strings.Contains(text, "# Rules of the team.") {
		t.Errorf("the comments are gone:\n%s", text)
	}
	n.run("apply -f "+deploy, "", 3, "version 2 by 127.0.0.1 (rule login) is not in", "--force", "rlnode rules")
	n.run("apply -f "+deploy+" --remove login", "", 3, "version 2")
	n.unchanged(2)

	// Once the file has it, nobody is asked.
	both := strings.NewReplacer("limit: 100", "limit: 200", "limit: 5, per: 15m",
		"limit: 2, per: 1h").Replace(teamRules)
	n.run("apply -f -", both, 0, "version 3 is in force")

	// The dashboard writes whole documents, which no file has.
	n.put("PUT", "/v1/rules?via=dashboard", strings.Replace(both, "limit: 200", "limit: 300", 1))
	n.run("apply -f -", both, 3, "version 4 by 127.0.0.1, dashboard (document) is not in")
	n.run("apply -f - --force", both, 0, "version 5 is in force")
	n.run("apply -f - --if-match 4", teamRules, 1, "is in force, not 4")
	n.run("apply -f -", teamRules, 0, "version 6 is in force", "counts begin anew")

	// A piece that was deleted, and comes back: nothing in use vanishes, but somebody deleted it.
	n.put("DELETE", "/v1/rules/search", "")
	n.run("apply -f "+deploy, "", 3, "delete rule search")
	// A new piece that the file lacks: --remove says that just this may go.
	n.run("apply -f "+deploy+" --force", "", 0, "version 8")
	n.put("PUT", "/v1/rules/new", `{"key": ["ip"], "limits": [{"limit": 2, "per": "1h"}]}`)
	n.run("apply -f "+deploy, "", 3, "rule new")
	n.run("apply -f "+deploy+" --remove new", "", 0, "version 10")

	// A tier is deleted, and a rollback brings it back with the subjects that had it.
	n.run("apply -f -",
		strings.Replace(strings.Replace(teamRules, "{tier: gold}", "{tier: free}", 1),
			"  gold: {limits: [{limit: 99, per: 1h}]}\n", "", 1),
		0, "- tier gold", "version 11")
	n.run("rollback 10", "", 0, "+ tier gold", "version 12 is in force")
	if _, text := n.version(); !strings.Contains(text, "acme: {tier: gold}") {
		t.Errorf("got\n%s\nwant acme to have its tier again", text)
	}

	// Fifty single writes later, what one would roll back to is still there.
	for i := range 35 {
		n.put("PUT", "/v1/tiers/free", fmt.Sprintf(`{"limits": [{"limit": %d, "per": "1h"}]}`, i+10))
	}
	n.run("rollback 12 --force", "", 0, "version 48 is in force")

	// Messages and ways that are none.
	for _, query := range []string{"message=" + strings.Repeat("x", 1025), "message=%ff",
		"via=seed", "via=x", "version=0"} {
		if status, text, _ := n.call("PUT", n.admin+"/v1/rules?"+query, "", teamRules); status != 400 {
			t.Errorf("%s: got %d %s, want 400", query[:9], status, text)
		}
	}
	for _, query := range []string{"", "?from=x", "?to=-1", "?from=0"} {
		if status, text, _ := n.call("POST", n.admin+"/v1/rules/diff"+query, "", ""); status != 400 {
			t.Errorf("diff%s: got %d %s, want 400", query, status, text)
		}
	}
	if status, text, _ := n.call("POST", n.admin+"/v1/rules/diff?to=1", "", teamRules); status != 400 {
		t.Errorf("diff of a document and a version: got %d %s, want 400", status, text)
	}
}

// TestMisuse_Files: a directory mounted from a ConfigMap, with its links and
// hidden folders, is one document.
func TestMisuse_Files(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	head, tail, _ := strings.Cut(teamRules, "tiers:\n")
	write("..2026_11_27/rules.yaml", head)
	write("..2026_11_27/tiers.yml", "tiers:\n"+tail)
	expect.NoError(t, os.Symlink("..2026_11_27", filepath.Join(dir, "..data")))
	for _, name := range []string{"rules.yaml", "tiers.yml"} {
		expect.NoError(t, os.Symlink("..data/"+name, filepath.Join(dir, name)))
	}
	write("README.md", "no rules")
	write(".hidden.yaml", "rulez: []")
	write("more/rules.yaml", "rulez: []")
	n.run("diff "+dir, "", 4, "only comments and layout differ")
	n.run("apply -f "+dir, "", 0, "version 2 is in force")
	n.run("apply -f "+dir, "", 0, "no change")
	n.unchanged(2)
}

// TestMisuse_NameInTwoFiles: a name stands once in the files that are one
// document. The message names both places.
func TestMisuse_NameInTwoFiles(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	head, tail, _ := strings.Cut(teamRules, "tiers:\n")
	write("rules.yaml", head)
	write("tiers.yml", "tiers:\n"+tail)
	write("zz.json", `{"rules": [{"name": "login", "key": ["user"], "limits": [{"limit": 1, "per": "1m"}]}]}`)
	n.run("apply -f "+dir, "", 1, `rule "login" is in `+dir+"/rules.yaml:5 and in "+dir+"/zz.json:1", "unchanged")
	write("zz.json", `{"rules": [{"name": "more", "key": ["user"], "limits": [{"limit": -1, "per": "1m"}]}]}`)
	n.run("apply -f "+dir, "", 1, dir+"/zz.json:1:")
	n.unchanged(1)
	write("zz.json", `{"rules": [{"name": "more", "key": ["user"], "limits": [{"limit": 1, "per": "1m"}]}]}`)
	n.run("apply -f "+dir+"/rules.yaml "+dir+"/tiers.yml -f "+dir+"/zz.json", "", 0, "+ rule more",
		"version 2 is in force")
}

// TestMisuse_Tokens: a token that may only read sees what would change, and writes nothing.
func TestMisuse_Tokens(t *testing.T) {
	t.Parallel()
	reader, readerLine := newToken(t, "reader", "--scope", "read")
	ann, annLine := newToken(t, "ann", "--scope", "admin")
	n := startTeam(t, readerLine, annLine)
	n.run("diff - --token "+reader, "version: 1\n", 4, "- rule login")
	n.run("apply -f - --token "+reader, "version: 1\n", 3, "--remove login")
	n.run("apply -f - --force --token "+reader, "version: 1\n", 1, "403", "forbidden", "scope")
	n.run("rollback 1 --force --token "+reader, "", 0, "no change")
	n.run("diff -", teamRules, 1, "401", "RLNODE_ADMIN_TOKEN")
	n.run("apply -f - --force", "version: 1\n", 1, "401")
	n.run("apply -f - --token "+ann, strings.Replace(teamRules, "limit: 100", "limit: 200", 1), 0,
		"version 2 is in force")
	n.run("versions --token "+reader, "", 0, "ann (127.0.0.1), apply")
}

// TestApply_AsksOnATerminal: a person is asked once, and anything but yes changes nothing.
func TestApply_AsksOnATerminal(t *testing.T) {
	t.Parallel()
	written := 0
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPost:
			fmt.Fprint(w,
				`{"from":7,"changed":true,"summary":["1 rule removed"],"changes":[{"kind":"rule","name":"login","change":"removed","in_use":true,"checks_last_hour":1204}]}`)
		case http.MethodPut:
			written++
			if got := r.Header.Get("If-Match"); got != `"7"` ||
				r.URL.Query().Get("via") != "apply" || r.URL.Query().Get("message") != "why" {
				t.Errorf("got If-Match %s and %s", got, r.URL.RawQuery)
			}
			fmt.Fprint(w, `{"version":8}`)
		}
	}))
	defer node.Close()
	rulesFile := file(t, "rules.yaml", "version: 1\n")
	for _, test := range []struct {
		answer  string
		code    int
		written int
	}{{"y\n", 0, 1}, {"yes\n", 0, 1}, {"\n", 3, 0}, {"n\n", 3, 0}, {"", 3, 0}, {"yess\n", 3, 0}} {
		written = 0
		var out bytes.Buffer
		c := &applyCmd{File: []string{rulesFile}, Message: "why"}
		c.Admin = node.URL
		env := &environment{ctx: t.Context(), stdin: strings.NewReader(test.answer), stdout: &out,
			stderr: io.Discard, terminal: true}
		if code := printError(io.Discard, c.Run(env)); code != test.code || written != test.written {
			t.Errorf("%q: got exit code %d and %d writes, want %d and %d", test.answer, code,
				written, test.code, test.written)
		}
		if !strings.Contains(out.String(), "1204 checks used it") ||
			!strings.HasSuffix(strings.Split(out.String(), "[y/N]")[0], "Go on? ") {
			t.Errorf("%q: got %q", test.answer, out.String())
		}
	}
}

// TestMisuse_RefusalWithAQuote: what a rule answers may have quotes and
// backslashes, and so may the name of a rule that goes into it. What the end
// user gets is valid JSON, and a body that only looks like it is said.
func TestMisuse_RefusalWithAQuote(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	const rule = `version: 1
rules:
  - name: 'say "no" \ more'
    key: [ip]
    limits: [{limit: 1, per: 1h}]
    refusal:
      status: 403
      title: 'You said "please" too often'
      body: '%s'
profiles: {web: {ip: 'header:X-Forwarded-For'}}
`
	apply := func(body string, code int, want ...string) {
		t.Helper()
		n.run("apply -f - --force", fmt.Sprintf(rule, body), code, want...)
	}
	apply(`{"error": {rule}}`, 1, "refusal.body", "placeholders may stand only within texts")
	apply(`{"error": "{nobody}"}`, 1, "{nobody}")
	n.unchanged(1)
	apply(`{"error": "you said "no""}`, 0, "version 2 is in force",
		"refusal.body: it begins like a JSON object, but is none")
	apply(`{"error": "\"quoted\" by {rule}", "limit": "{limit}"}`, 0, "version 3 is in force")

	n.check(`{"attributes": {"ip": "127.0.0.1"}}`)
	status, text, err := n.call("GET", n.data+"/v1/auth/web", "", "")
	var got struct{ Error, Limit string }
	if err == nil {
		err = json.Unmarshal([]byte(text), &got)
	}
	if want := `"quoted" by say "no" \ more`; err != nil || status != 403 || got.Error != want || got.Limit != "1" {
		t.Errorf("got %d %s, %v; want the error %s", status, text, err, want)
	}

	status, text, err = n.call("POST", n.data+"/v1/check", "", `{"rule": "say \"no\" \\ more", "key": "127.0.0.1"}`)
	var refused struct{ Refusal struct{ Title string } }
	if err == nil {
		err = json.Unmarshal([]byte(text), &refused)
	}
	if err != nil || status != 429 || refused.Refusal.Title != `You said "please" too often` {
		t.Errorf("got %d %s, %v", status, text, err)
	}
}

// TestMisuse_Objections: what a whole document may not have is only a warning
// in a piece, and in what one goes back to.
func TestMisuse_Objections(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	const mistake = "its unit is requests, but no limit of the rule has that unit"
	costly := strings.Replace(teamRules, "    limits: [{limit: 100, per: 1h}]",
		"    cost: {by: endpoint, values: {/search: 10}}\n    limits: [{limit: 100, per: 1h, unit: credits}]",
		1)
	n.run("apply -f -", costly, 1, mistake, "did you mean unit: credits?", "unchanged")
	validate(t, costly, 1, mistake)
	n.unchanged(1)

	written := n.put("PUT", "/v1/rules/search",
		`{"key": ["user"], "cost": {"by": "endpoint", "values": {"/search": 10}}, "limits": [{"limit": 100, "per": "1h", "unit": "credits"}]}`)
	if !strings.Contains(written, mistake) {
		t.Errorf("a piece: got %s, want the warning %q", written, mistake)
	}
	n.run("apply -f - --force", teamRules, 0, "version 3 is in force")
	n.run("rollback 2", "", 0, "version 4 is in force", mistake)
	if _, text := n.version(); !strings.Contains(text, "credits") {
		t.Errorf("got\n%s\nwant version 2", text)
	}
}

// validate runs the command on a document, and checks its exit code and that its output has want.
func validate(t *testing.T, document string, code int, want string) {
	t.Helper()
	got, stdout, stderr := tool(t, document, "validate", "-")
	if got != code || !strings.Contains(stdout+stderr, want) {
		t.Errorf("validate: got exit code %d and %q, want %d and %q", got, stdout+stderr, code, want)
	}
}

// TestValidate_Directory: the files of a directory are one document, for replay, too.
func TestValidate_Directory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	head, tail, _ := strings.Cut(teamRules, "tiers:\n")
	log := file(t, "access.log", `192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1`+"\n")
	validate := func(code int, want ...string) {
		t.Helper()
		got, stdout, stderr := tool(t, "", "validate", dir)
		expect.Equal(t, got, code, "%s%s: exit code", stdout, stderr)
		for _, w := range want {
			if !strings.Contains(stdout+stderr, w) {
				t.Errorf("got %s%s, want it to have %q", stdout, stderr, w)
			}
		}
	}
	write := func(name, text string) {
		t.Helper()
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}

	validate(1, "has no .yaml, .yml or .json file")
	write("rules.yaml", strings.Replace(teamRules, "key: [user]", "key: [tenannt]", 1))
	validate(0, filepath.Join(dir, "rules.yaml")+":9:", "did you mean tenant?", dir+": valid")

	write("rules.yaml", strings.Replace(head, "key: [user]", "key: [tenannt]", 1))
	write("tiers.yml", "tiers:\n"+tail)
	validate(0, dir+": warning: rules[1].key", "did you mean tenant?", dir+": valid")
	code, _, stderr := tool(t, "", "replay", "--rules", dir, log)
	expect.Equal(t, code, 0, "replay: %s: exit code", stderr)

	write("tiers.yml", "tiers:\n"+tail+"rules: [{name: x}]\n")
	validate(1, filepath.Join(dir, "tiers.yml")+":6:")
}

// TestMisuse_Names: misspelled names and values of other kinds are said before they are in force.
func TestMisuse_Names(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	misspelled := strings.Replace(teamRules, "key: [user]", "key: [tenannt]", 1)
	validate(t, misspelled, 0, "did you mean tenant?")
	n.run("apply -f - --dry-run", misspelled, 4, "did you mean tenant?")
	n.run("apply -f -", "attributes: [ip, user, tenant]\n"+misspelled, 1,
		`"tenannt" is not declared in attributes; did you mean tenant?`, "unchanged")
	validate(t,
		strings.Replace(teamRules, "key: [user]", "match: {method: '!POST'}\n    key: [user]", 1),
		0, "write it under not")
	validate(t,
		strings.Replace(teamRules, "key: [user]", "match: {beta: true}\n    key: [user]", 1), 0,
		"true is neither text nor an integer")
	n.run("deny add ip=203.0.113 --for 1h", "", 1, "203.0.113")
	n.unchanged(1)
}
