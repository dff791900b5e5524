package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// TestMisuse_Entries: a deploy while an incident's entries are in force touches
// none of them, and a tier that entries name may go and come back.
func TestMisuse_Entries(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	n.run("deny add ip=203.0.113.7 --for 24h --note incident", "", 0)
	process.Eventually(t, n.name+" logs the entry", func() bool {
		return strings.Contains(n.log.String(),
			`level=INFO msg="an entry was changed" self=`+n.name+` change=written kind=deny`)
	})
	n.run("deny add ip=203.0.113.7 --for 24h --note again", "", 0) // as a loop of fail2ban does
	n.run("subject set tenant=globex --tier gold", "", 0)
	n.unchanged(1)
	denied := func(when string) {
		t.Helper()
		expect.Equal(t, n.check(`{"attributes": {"ip": "203.0.113.7"}}`), 403, "%s: for a denied address", when)
	}
	denied("before")

	// The deploy has no such tier: its subject sleeps, which is said, and nothing is lost.
	less := strings.Replace(strings.Replace(teamRules, "{tier: gold}", "{tier: free}", 1),
		"  gold: {limits: [{limit: 99, per: 1h}]}\n", "", 1)
	n.run("diff -", less, 4, `1 subject sleeps`, `tenant="globex"`)
	n.run("apply -f -", less, 0, "- tier gold", "version 2 is in force")
	denied("after a deploy")
	n.run("apply -f - --force", "version: 1\n", 0, "version 3 is in force")
	denied("after an empty document")
	n.run("rollback 1", "", 0, "version 4 is in force")
	denied("after a rollback")
	n.run("try --attr tenant=globex", "", 0, "of 99 requests")
	n.run("entries", "", 0, "203.0.113.7", "globex")
}

// TestMisuse_EntriesToken: a token that only has the scope entries bans an
// address, and changes no rules.
func TestMisuse_EntriesToken(t *testing.T) {
	t.Parallel()
	fail2ban, line := newToken(t, "fail2ban", "--scope", "entries")
	n := startTeam(t, line)
	for range 2 {
		n.run("deny add ip=203.0.113.7 --for 1h --token "+fail2ban, "", 0)
	}
	n.run("apply -f - --force --token "+fail2ban, "version: 1\n", 1, "403", "scope")
	n.run("rollback 1 --force --token "+fail2ban, "", 1, "403", "scope")
	n.run("diff - --token "+fail2ban, teamRules, 1, "403", "scope")
}

// TestMisuse_WhatTheDocumentHas: an entry that only the document has can't be
// removed beside it. The message names its line.
func TestMisuse_WhatTheDocumentHas(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	n.run("apply -f -", teamRules+"lists:\n  deny:\n    - {ip: 203.0.113.9}\n", 0, "version 2 is in force")
	n.run("deny remove ip=203.0.113.9", "", 1, "in-document", "line 19")
	n.run("subject unset tenant=acme", "", 1, "in-document", "line 16")
	n.run("deny remove ip=203.0.113.10", "", 1, "404")
	n.run("deny list", "", 0, "203.0.113.9", "document")
	n.unchanged(2)
}

// TestMisuse_DeletedTier: a rollback to a version without a tier puts the
// entries that name it to sleep, says so, and loses none.
func TestMisuse_DeletedTier(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	n.run("apply -f -",
		strings.Replace(teamRules, "tiers:\n", "tiers:\n  vip: {limits: [{limit: 999, per: 1h}]}\n", 1),
		0, "+ tier vip", "version 2 is in force")
	n.run("subject set tenant=globex --tier vip --note deal", "", 0)
	n.run("entries --asleep", "", 0, "no entry sleeps")
	n.run("try --attr tenant=globex", "", 0, "of 999 requests")

	n.run("rollback 1", "", 0, "1 subject sleeps", `tenant="globex"`, "version 3 is in force")
	n.run("entries --asleep", "", 0, "tenant=globex tier=vip", "deal")
	expect.Equal(t, n.figure("rlnode_entries_asleep"), "1", "entries that sleep, as metrics of %s", n.name)
	if status := n.check(`{"attributes": {"tenant": "globex"}}`); status != 200 {
		t.Errorf("a subject whose entry sleeps: got %d, want 200", status)
	}
	n.run("subject set tenant=initech --tier vip", "", 1, `the tier "vip" is not defined`)

	n.run("rollback 2", "", 0, "+ tier vip", "version 4 is in force")
	n.run("try --attr tenant=globex", "", 0, "of 999 requests")
	n.run("entries --asleep", "", 0, "no entry sleeps")
}

// TestMisuse_BlockOfARenamedRule: a block by hand sleeps while its rule has
// another name, and can be lifted all the same.
func TestMisuse_BlockOfARenamedRule(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	const ask = `{"rule": "login", "key": "203.0.113.9"}`
	n.run("block --rule login --key 203.0.113.9 --for 1h --note scraper", "", 0)
	n.run("block --rule login --key 203.0.113.10 --for 1h", "", 0)
	if status := n.check(ask); status != 429 {
		t.Errorf("a blocked subject: got %d, want 429", status)
	}

	renamed := strings.Replace(teamRules, "name: login", "name: sign-in", 1)
	n.run("diff -", renamed, 4, "2 subjects sleep", `a block of ["203.0.113.9"] by rule login`)
	n.run("apply -f - --remove login", renamed, 0, "version 2 is in force")
	n.run("entries --asleep", "", 0, "rule=login key=203.0.113.9", "scraper")
	n.run("unblock --rule login --key 203.0.113.10", "", 0, "removed")

	n.run("rollback 1 --force", "", 0, "version 3 is in force")
	n.run("entries --asleep", "", 0, "no entry sleeps")
	if status := n.check(ask); status != 429 {
		t.Errorf("the rule is back: got %d, want 429", status)
	}
	if status := n.check(`{"rule": "login", "key": "203.0.113.10"}`); status != 200 {
		t.Errorf("a block that was lifted while it slept: got %d, want 200", status)
	}
	n.run("block --rule logn --key 203.0.113.9 --for 1h", "", 1, `unknown rule "logn"`)
}

// TestMisuse_BlockOfAnotherKey: a block by hand sleeps while its rule's key has
// another number of attributes, and can be lifted all the same.
func TestMisuse_BlockOfAnotherKey(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	n.run("block --rule login --key 203.0.113.9 --for 1h --note scraper", "", 0)
	n.run("block --rule login --key 203.0.113.10 --for 1h", "", 0)

	n.run("apply -f - --force", strings.Replace(teamRules, "key: [ip]", "key: [ip, user]", 1), 0, "version 2 is in force")
	n.run("entries --asleep", "", 0, "rule=login key=203.0.113.9", "scraper")
	n.run("unblock --rule login --key 203.0.113.10", "", 0, "removed")
	n.run("unblock --rule login --key 203.0.113.10", "", 1, "key has 1 values")

	n.run("rollback 1 --force", "", 0, "version 3 is in force")
	if status := n.check(`{"rule": "login", "key": "203.0.113.9"}`); status != 429 {
		t.Errorf("the key is back: got %d, want 429", status)
	}
	if status := n.check(`{"rule": "login", "key": "203.0.113.10"}`); status != 200 {
		t.Errorf("a block that was lifted while it slept: got %d, want 200", status)
	}
}

// TestMisuse_Fail2banLoop: a loop that bans the same addresses again and again
// makes one entry of each, and takes no version's place.
func TestMisuse_Fail2banLoop(t *testing.T) {
	t.Parallel()
	fail2ban, line := newToken(t, "fail2ban", "--scope", "entries")
	admin, adminLine := newToken(t, "ann", "--scope", "admin")
	n := startTeam(t, line, adminLine)
	for i := range 120 {
		body := fmt.Sprintf(`{"ip": "203.0.113.%d", "for": "1h", "note": "attempt %d"}`, i%3, i)
		n.turn()
		status, text, err := n.call("POST", n.admin+"/v1/lists/deny/entries", fail2ban, body)
		if err != nil || status != 200 || !strings.Contains(text, fmt.Sprintf(`"entries_version":%d`, i+1)) {
			t.Fatalf("ban %d: %d, %v, %s", i, status, err, text)
		}
	}

	var page struct {
		Entries []struct {
			Entry struct{ IP, Note, By string }
		}
		Version int64 `json:"entries_version"`
	}
	expect.NoError(t, json.Unmarshal([]byte(n.run("entries --json --token "+admin, "", 0)), &page))
	if len(page.Entries) != 3 || page.Version != 120 {
		t.Errorf("got %d entries with version %d, want 3 with 120", len(page.Entries), page.Version)
	}
	for i, one := range page.Entries {
		want := fmt.Sprintf("attempt %d", 117+i)
		if one.Entry.Note != want || !strings.HasPrefix(one.Entry.By, "fail2ban") {
			t.Errorf("entry %d: got %+v, want the note %q by fail2ban", i, one.Entry, want)
		}
	}
	n.run("entries log -n 1 --token "+admin, "", 0, "replaced deny ip=203.0.113.2", "before:", "attempt 116")
	n.run("versions --token "+admin, "", 0, "seed")
	if got := strings.Count(n.run("versions --token "+admin, "", 0), "\n"); got != 2 {
		t.Errorf("the list of versions has %d lines, want a title and one version", got)
	}

	// What is unbanned twice is said, and what an admin has banned stays.
	n.run("deny remove ip=203.0.113.1 --token "+fail2ban, "", 0, "removed")
	n.run("deny remove ip=203.0.113.1 --token "+fail2ban, "", 1, "404")
	n.run("deny add ip=203.0.113.200 --note court --token "+admin, "", 0)
	n.run("deny add ip=203.0.113.200 --for 1h --token "+fail2ban, "", 1, "403", "only change what was written under it")
	n.run("deny remove ip=203.0.113.200 --token "+fail2ban, "", 1, "403", "only change what was written under it")
	n.run("entries --token "+admin, "", 0, "203.0.113.200", "court")
}

// TestMisuse_TooMuchForTheScope: a token for bans can't refuse whole networks,
// or for ever, or let anybody in.
func TestMisuse_TooMuchForTheScope(t *testing.T) {
	t.Parallel()
	fail2ban, line := newToken(t, "fail2ban", "--scope", "entries")
	n := startTeam(t, line)
	for args, want := range map[string]string{
		"deny add ip=0.0.0.0/0 --for 1h":                "one value",
		"deny add ip=203.0.113.0/24 --for 1h":           "one value",
		"deny add user=* --for 1h":                      "one value",
		"deny add ip=203.0.113.7":                       "must give an end",
		"deny add ip=203.0.113.7 --for 8d":              "at most 7 days",
		"allow add ip=203.0.113.7 --for 1h":             "one value",
		"subject set tenant=acme --tier gold":           "scope admin",
		"block --rule login --key 203.0.113.7":          "must give an end",
		"block --rule login --key 203.0.113.7 --for 8d": "at most 7 days",
	} {
		n.run(args+" --token "+fail2ban, "", 1, "403", want)
	}
	if status := n.check(`{"attributes": {"ip": "203.0.113.7"}}`); status != 401 {
		t.Errorf("a check without a token: got %d, want 401", status)
	}
}

// TestMisuse_EndOfAnEntry: an end that can't be read, or has passed, is refused
// before anything is written. The message shows a valid one.
func TestMisuse_EndOfAnEntry(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	for args, want := range map[string]string{
		"--for 1":                               "such as 30m, 24h or 7d",
		"--for=-1h":                             "such as 30m, 24h or 7d",
		"--for tomorrow":                        "such as 30m, 24h or 7d",
		"--until tomorrow":                      "such as 2026-11-28T12:00:00Z",
		"--until 2020-01-01T00:00:00Z":          "until is in the past",
		"--for 1h --until 2099-01-01T00:00:00Z": "for or until, not both",
		"--for 1h --note " + strings.Repeat("x", 257): "at most 256 characters",
	} {
		n.run("deny add ip=203.0.113.7 "+args, "", 1, want)
	}
	n.run("deny add ip=203.0.113.7 for=1h", "", 2, "write --for")
	n.run("deny add 203.0.113.7 --for 1h", "", 2, "want name=value")
	n.run("entries", "", 0, "there are no entries")
}

// TestMisuse_AllowOfADeniedAddress: an allow entry does not let in what another
// one denies. The command that asks why says which list.
func TestMisuse_AllowOfADeniedAddress(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	n.run("apply -f -", teamRules+"lists:\n  deny:\n    - {ip: 203.0.113.0/24}\n", 0, "version 2 is in force")
	n.run("allow add ip=203.0.113.7", "", 0)
	n.run("try --attr ip=203.0.113.7", "", 1, "refused by a list")
	n.run("allow add ip=198.51.100.7", "", 0)
	n.run("deny add ip=198.51.100.7 --for 1h", "", 0)
	n.run("try --attr ip=198.51.100.7", "", 1, "refused by a list")
	n.run("deny remove ip=198.51.100.7", "", 0)
	n.run("try --attr ip=198.51.100.7", "", 0, "allowed by a list")
	n.run("unblock --rule login --key 203.0.113.7", "", 1, "404", "does not block this")
}

// TestMisuse_DivisionOfAGlobalRule: how regions divide a limit stands in the
// document. An entry that would change it is refused.
func TestMisuse_DivisionOfAGlobalRule(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	const world = "  - {name: world, key: [tenant], scope: global, limits: [{limit: 900, per: 1m, algorithm: fixed-window}]}\n"
	n.run("apply -f -", strings.Replace(teamRules, "rules:\n", "rules:\n"+world, 1), 0, "version 2 is in force")
	const five = `{"limits": {"world": [{"limit": 5, "per": "1m", "algorithm": "fixed-window"}]}}`
	status, text, err := n.call("PUT", n.admin+"/v1/subjects/tenant/acme", "", five)
	if err != nil || status != 422 || !strings.Contains(text, "write it in the document") {
		t.Errorf("got %d, %v, %s", status, err, text)
	}
	n.run("entries", "", 0, "there are no entries")
	n.run("subject set tenant=acme --tier free", "", 0) // another rule's limits may change
	n.unchanged(2)
}

// TestMisuse_TwoWritersAtOnce: of two people who edit the same version, the
// second gets an error, and what the first wrote stays.
func TestMisuse_TwoWritersAtOnce(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	write := func(m *fleetNode, limit int) (status int, text string) {
		r, err := http.NewRequest(http.MethodPut, m.admin+"/v1/rules",
			strings.NewReader(strings.Replace(teamRules, "limit: 100", fmt.Sprint("limit: ", limit), 1)))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		r.Header.Set("If-Match", `"1"`)
		resp, err := m.client.Do(r)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close()
		var body struct{ Detail string }
		_ = json.NewDecoder(resp.Body).Decode(&body)
		return resp.StatusCode, body.Detail
	}
	var statuses [8]int
	var details [8]string
	var group sync.WaitGroup
	for i := range statuses {
		group.Go(func() { statuses[i], details[i] = write(n.fleet.nodes[i%len(n.fleet.nodes)], 200+i) })
	}
	group.Wait()

	won := -1
	for i, status := range statuses {
		switch {
		case status == 200 && won < 0:
			won = i
		case status != 412 || !strings.Contains(details[i], "version 2 is in force, not 1"):
			t.Errorf("writer %d: got %d %s", i, status, details[i])
		}
	}
	if _, text := n.version(); won < 0 || !strings.Contains(text, fmt.Sprint("limit: ", 200+won)) {
		t.Errorf("writer %d won, but in force is\n%s", won, text)
	}
	n.unchanged(2)
}

// answer is somebody at a terminal who does something before they answer.
type answer func() string

func (a answer) Read(b []byte) (int, error) { return copy(b, a()), nil }

// TestMisuse_AnsweredTooLate: while somebody thinks about the question, another
// one writes at another node. That stays, and the message says what to do.
func TestMisuse_AnsweredTooLate(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	c := &applyCmd{File: []string{file(t, "empty.yaml", "version: 1\n")}}
	c.Admin = n.admin
	var out, failure strings.Builder
	env := &environment{ctx: t.Context(), stdout: &out, stderr: &out, terminal: true, stdin: answer(func() string {
		n.put("PUT", "/v1/rules/new", `{"key": ["ip"], "limits": [{"limit": 2, "per": "1h"}]}`)
		return "y\n"
	})}
	code := printError(&failure, c.Run(env))
	if code != 1 || !strings.Contains(failure.String(), "412") ||
		!strings.Contains(failure.String(), "run the command again") {
		t.Errorf("got exit code %d, %s%s", code, out.String(), failure.String())
	}
	n.unchanged(2)
}

// TestMisuse_RestoreDuringAnIncident: a backup from before an incident brings
// the document back. It lifts bans only with a flag.
func TestMisuse_RestoreDuringAnIncident(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	n.run("deny add ip=203.0.113.1 --note old", "", 0)
	backup := filepath.Join(t.TempDir(), "backup.json")
	n.run("backup -o "+backup, "", 0)
	n.run("apply -f - --force", "version: 1\n", 0, "version 2 is in force")
	n.run("deny add ip=203.0.113.2 --for 1h --note incident", "", 0)
	n.run("deny remove ip=203.0.113.1", "", 0)

	n.run("restore --document "+backup, "", 0)
	if _, text := n.version(); text != teamRules {
		t.Errorf("got\n%s\nwant the document of the backup", text)
	}
	if text := n.run("entries", "", 0, "203.0.113.2", "incident"); strings.Contains(text, "203.0.113.1 ") {
		t.Errorf("the document alone was restored, but entries are\n%s", text)
	}

	n.run("restore --entries merge "+backup, "", 0)
	n.run("versions", "", 0, "restore")
	n.run("entries", "", 0, "203.0.113.2", "incident", "203.0.113.1", "old")
	n.run("restore --entries replace "+backup, "", 0)
	if text := n.run("entries", "", 0, "203.0.113.1", "old"); strings.Contains(text, "203.0.113.2") {
		t.Errorf("entries were replaced, but are\n%s", text)
	}
	n.run("entries log", "", 0, "removed deny ip=203.0.113.2") // it can be written again
}

// TestMisuse_WrongPlane: an address where nothing listens, or where the other
// plane does, changes nothing, and the message says which port is which.
func TestMisuse_WrongPlane(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	for _, address := range []string{n.data, "127.0.0.1:1"} {
		n.runAt(address, "apply -f - --force", "version: 1\n", 1, "the admin plane (--admin) on 8081")
		n.runAt(address, "rollback 1", "", 1, "the admin plane (--admin) on 8081")
	}
	n.unchanged(1)
}

// TestMisuse_CountsBeginAnew: a change of a window or a key says that counts
// begin anew, before and after.
func TestMisuse_CountsBeginAnew(t *testing.T) {
	t.Parallel()
	n := startTeam(t)
	for range 3 {
		n.check(`{"rule": "login", "key": "203.0.113.7"}`)
	}
	hourly := strings.Replace(teamRules, "limit: 5, per: 15m", "limit: 5, per: 1h", 1)
	const want = "rule login: counts begin anew: the window changed from 15m to 1h"
	n.run("diff -", hourly, 4, want)
	n.run("apply -f - --dry-run", hourly, 4, want)
	if used := n.used("login", "203.0.113.7"); used != 3 {
		t.Errorf("after a dry run, %d are used, want 3", used)
	}
	n.run("apply -f -", hourly, 0, want, "version 2 is in force")
	if used := n.used("login", "203.0.113.7"); used != 0 {
		t.Errorf("in the new window, %d are used, want 0", used)
	}

	// An amount keeps what is used, and so nothing is said.
	more := strings.Replace(hourly, "limit: 5, per: 1h", "limit: 8, per: 1h", 1)
	n.check(`{"rule": "login", "key": "203.0.113.7"}`)
	if out := n.run("apply -f -", more, 0, "version 3 is in force"); strings.Contains(out, "anew") {
		t.Errorf("an amount has changed, but the command says\n%s", out)
	}
	if used := n.used("login", "203.0.113.7"); used != 1 {
		t.Errorf("under another amount, %d are used, want 1", used)
	}
}
