package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestSubjectsOfEitherPlane: commands about a subject ask the right plane with
// the right token, and print its answer.
func TestSubjectsOfEitherPlane(t *testing.T) {
	t.Parallel()
	const usage = `"limits":[{"name":"inline","algorithm":"sliding-window","unit":"requests","limit":5,"window_ms":60000,"used":7,"remaining":0,"leased":2,"share":4,"estimated":true,"reset_after_ms":1400}]`
	var asked []string
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked,
			strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Method, r.URL, r.Header.Get("Authorization"), body)))
		switch {
		case r.Method == http.MethodGet:
			fmt.Fprint(w,
				`{"rule":"global","key":["a","\u001b[31m"],"owner":"n1",`+usage+
					`,"adaptive":{"source":"db","load":0.75,"factor":0.5},"shares":{"eu":3,"us":2},`+
					`"regions":{"eu":{"reachable":true,"limits":[{"name":"l","share":3,"used":7,"own":6,"lent":2,"borrowed":1,"remaining":0}]},"us":{"reachable":false,"limits":[]}},`+
					`"blocked_until_ms":1760000000000}`)
		case strings.Contains(string(body), `"other"`):
			fmt.Fprint(w, `{"namespace":"other","key":"k","limits":[]}`)
		default:
			fmt.Fprint(w, `{"namespace":"shop","key":"user-42",`+usage+`,"unknown":2}`)
		}
	}))
	defer node.Close()
	env := []string{"RLNODE_ADDR=" + node.URL, "RLNODE_ADMIN=" + node.URL, "RLNODE_API_TOKEN=api",
		"RLNODE_ADMIN_TOKEN_FILE=" + file(t, "token", "admin\n")}
	shown := []string{"shop: user-42\n",
		"inline  sliding-window  7     5   0     2       4      requests  1m   1.4s\nan estimate: ",
		"2 more counters"}
	for _, test := range []struct {
		args, asked string
		want        []string
	}{
		{"subject --rule global --key a --key b",
			"GET /v1/usage?key=%5B%22a%22%2C%22b%22%5D&rule=global Bearer admin", []string{
				`global: a, "\x1b[31m"  (owner n1)`, "blocked until 2025-10-09T08:53:20Z\n",
				"lowered to 0.5", "load of db is 0.75",
				"REGION  LIMIT  SHARE  USED  LENT  BORROWED  LEFT\n",
				"eu      l      3      6     2     1         0\n", "us      -      does not answer\n",
			}},
		{"subject --namespace shop --key user-42",
			`POST /v1/usage Bearer api {"key":"user-42","namespace":"shop"}`, shown},
		{"subject --namespace other --key k --token mine",
			`POST /v1/usage Bearer mine {"key":"k","namespace":"other"}`,
			[]string{"nothing is counted"}},
		{"reset --limit 5/1m,name=n --key user-42 --request-id x",
			`POST /v1/reset Bearer api {"key":"user-42","limits":[{"limit":5,"name":"n","per":"1m"}],"request_id":"x"}`,
			shown},
		{"reset --rule r", `POST /v1/reset Bearer api {"key":[],"rule":"r"}`, shown},
		{"reset --namespace shop --key user-42 --json",
			`POST /v1/reset Bearer api {"key":"user-42","namespace":"shop"}`, []string{`"unknown":2}`}},
		{"adjust --limit 5/1m --key a --key b --cost 2 --cost tokens=-9",
			`POST /v1/adjust Bearer api {"cost":2,"costs":{"tokens":-9},"key":["a","b"],"limits":[{"limit":5,"per":"1m"}]}`,
			shown},
	} {
		code, stdout, stderr := toolEnv(t, env, "", strings.Fields(test.args)...)
		if code != 0 {
			t.Errorf("%s: have %d, %s", test.args, code, stderr)
			continue
		}
		expect.Equal(t, asked[len(asked)-1], test.asked, "%s: asked", test.args)
		for _, want := range test.want {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: have\n%swant it to have %q", test.args, stdout, want)
			}
		}
	}
}

// TestTextsWithoutAnEnd: what has no end or no limit is not shown with an
// invented one.
func TestTextsWithoutAnEnd(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--rules", file(t, "rules.yaml", `version: 1
rules:
  - {name: few, key: [ip], limits: [{limit: 5, per: 1h}, {limit: 9, per: 1h, unit: tokens}]}
  - {name: free, key: [ip], limits: unlimited}
  - {name: mixed, key: [ip], limits: [{unlimited: true, unit: tokens}, {limit: 5, per: 1h}]}
`))
	for _, test := range []struct {
		command string
		code    int
		want    []string
		never   string // what it must not say; empty for nothing
	}{
		{"block --rule few --key a", 0, []string{"written"}, "until"},
		{"check --rule few --key a --cost 0", 1, []string{"refused by few", ", blocked without an end  ("}, "costs more"},
		{"check --rule few --key a --detail", 1, []string{"few/tokens/1h (sliding-window): 0 of 9 tokens left, blocked without an end\n"},
			"costs more"},
		{"check --rule few --key a --mode count --detail", 1, []string{"counted by few", "left, never\n"}, "costs more"},
		{"subject --rule few --key a", 0, []string{"blocked without an end; rlnode unblock lifts it"}, "36600d"},
		{"reset --rule few --key a", 0, []string{"blocked without an end"}, "36600d"},
		{"subject --rule few --key a --json", 0, []string{`"blocked_until_ms":253402300799999`}, "more_after_ms"},
		{"unblock --rule few --key a", 0, nil, ""},
		{"check --rule few --key b --cost 9", 1, []string{"never: it costs more than the limit"}, ""},
		{"check --rule free --key a", 0, []string{"allowed by free: unlimited  ("}, "0 of 0"},
		{"check --rule free --key a --detail", 0, []string{"  allowed free (unlimited)\n"}, "0 of 0"},
		{"check --rule mixed --key a --detail", 0,
			[]string{"of 5 requests left", "  allowed mixed (unlimited tokens)\n"}, "0 of 0"},
		{"subject --rule free --key a", 0, []string{"unlimited"}, `""`},
	} {
		code, stdout, stderr := tool(t, "", atPlanes(s, strings.Fields(test.command))...)
		expect.Equal(t, code, test.code, "%s: %s%s: exit code", test.command, stdout, stderr)
		for _, want := range test.want {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: got\n%swant it to have %q", test.command, stdout, want)
			}
		}
		if test.never != "" && strings.Contains(stdout, test.never) {
			t.Errorf("%s: got\n%swant it not to have %q", test.command, stdout, test.never)
		}
	}
	s.stop()
}

// TestEmptyArguments: a variable that the shell does not know becomes an empty
// text. It does not stand for an argument that was left out.
func TestEmptyArguments(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"load", "", "1"}, "<source> is empty"},
		{[]string{"load", ""}, "<source> is empty"},
		{[]string{"starter", ""}, "<name> is empty"},
		{[]string{"validate", ""}, "<file> is empty"},
		{[]string{"usage", "--rule", ""}, "--rule is empty"},
		{[]string{"check", "--rule=", "--attr", "ip=192.0.2.1"}, "--rule is empty"},
		{[]string{"entries", "--kind", ""}, "--kind is empty"},
		{[]string{"members", "--admin", ""}, "--admin is empty"},
	} {
		code, stdout, stderr := tool(t, "", test.args...)
		if code != 2 || !strings.Contains(stderr, test.want) || !strings.Contains(stderr, "(see rlnode "+test.args[0]) {
			t.Errorf("%q: got %d, %s%s, want %q", test.args, code, stdout, stderr, test.want)
		}
	}

	// A remark may be empty, and so may a key of a call's own limits.
	for _, args := range [][]string{
		{"apply", "-f", "-", "-m", "", "--token", "", "--admin", "127.0.0.1:1"},
		{"check", "--limit", "5/1m", "--key", "", "--addr", "127.0.0.1:1"},
	} {
		if _, _, stderr := tool(t, "version: 1\n", args...); !strings.Contains(stderr, "can't reach") {
			t.Errorf("%q: got %s", args, stderr)
		}
	}
}

// TestIncompleteUsage: nothing tells whether a copy stood in for a node that can't be asked.
func TestIncompleteUsage(t *testing.T) {
	t.Parallel()
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("format") == "csv" {
			w.Header().Set("Rlnode-Incomplete", `"n2"`)
			return
		}
		fmt.Fprint(w, `{"month":"2026-11","rows":[],"incomplete":["n2"]}`)
	}))
	defer node.Close()
	for _, args := range []string{"usage", "usage --csv --incomplete"} {
		code, _, stderr := tool(t, "", append(strings.Fields(args), "--admin", node.URL)...)
		if code != 1 || !strings.Contains(stderr, "from n2") || !strings.Contains(stderr, "may be too low") {
			t.Errorf("%s: got %d, %s", args, code, stderr)
		}
	}
}

func TestParseLimit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ have, want string }{
		{"5/1m", `{"limit":5,"per":"1m"}`},
		{"5/1m,algorithm=token-bucket,burst=10,unit=u,name=n,tz=UTC,from=first",
			`{"algorithm":"token-bucket","burst":10,"from":"first","limit":5,"name":"n","per":"1m","tz":"UTC","unit":"u"}`},
		{"-5/day", `{"limit":-5,"per":"day"}`}, // the node reports what is wrong
		{"", ""}, {"5", ""}, {"5/", ""}, {"x/1m", ""}, {"5/1m,", `{"limit":5,"per":"1m"}`},
		{"5/1m,,", ""}, {"5/1m,burst", ""}, {"5/1m,burst=", ""}, {"5/1m,burst=x", ""},
		{"5/1m,unit=a,unit=b", ""}, {"5/1m,per=1h", ""}, {"5/1m,limit=2", ""}, {"5/1m,colour=red", ""},
	} {
		l, err := parseLimit(test.have)
		text, _ := json.Marshal(l)
		if (err != nil) != (test.want == "") || err == nil && string(text) != test.want {
			t.Errorf("%q: have %s, %v, want %q", test.have, text, err, test.want)
		}
	}
}

// TestHints: errors about mixed-up flags or ports suggest what the user probably meant.
func TestHints(t *testing.T) {
	t.Parallel()
	odd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, text := 404, `{"status":404,"title":"Not found","code":"not-found","detail":"there is nothing at `+r.URL.Path+`"}`
		switch r.URL.Path {
		case "/v1/usage":
			status, text = 405, `{"status":405,"title":"Method not allowed","code":"method-not-allowed","detail":"/v1/usage takes GET"}`
		case "/v1/check":
			status, text = 401, `{"status":401,"title":"Unauthorized","code":"unauthorized","detail":"no token"}`
		}
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}))
	defer odd.Close()
	for args, want := range map[string]string{
		"apply rules.yaml":                          "rlnode apply -f rules.yaml",
		"check 198.51.100.7":                        "rlnode check --rule RULE --key 198.51.100.7",
		"subject 198.51.100.7":                      "rlnode subject --rule RULE --key 198.51.100.7",
		"validate -f rules.yaml":                    "rlnode validate FILE",
		"members --addr http://127.0.0.1:8080":      "asks the admin plane: set --admin",
		"bench --admin http://127.0.0.1:8081":       "asks the data plane: set --addr",
		"check --rule a --key b --addr 127.0.0.1:1": "is it running? The data plane (--addr) is on port 8080",
		"members --admin " +
			odd.URL: "right plane for --admin? The data plane (--addr) is on port 8080",
		"subject --namespace a --key b --addr " + odd.URL: "right plane for --addr?",
		"check --rule a --key b --addr " + odd.URL:        "--token-file, or RLNODE_API_TOKEN",
		"deny ad":        "rlnode deny --help",
		"completion csh": "--help",
	} {
		if code, _, stderr := tool(t, "", strings.Fields(args)...); code == 0 ||
			!strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: have %d, %q, want %q in one line", args, code, stderr, want)
		}
	}
}

// TestHelpTexts: each command but those without anything to say has a help
// text, and each text belongs to a command.
func TestHelpTexts(t *testing.T) {
	t.Parallel()
	texts := splitHelp()
	delete(texts, "") // what is before the first section
	for command, text := range texts {
		_, stdout, _ := tool(t, "", append(strings.Fields(command), "--help")...)
		printed, want := strings.Join(strings.Fields(stdout), " "), strings.Join(strings.Fields(text), " ")
		if !strings.HasPrefix(printed, "Usage: rlnode "+command) || !strings.Contains(printed, want) {
			t.Errorf("rlnode %s --help: got %q, want it to have %q", command, printed, want)
		}
	}

	_, commands, _ := tool(t, "", completeWord, "")
	for line := range strings.Lines(commands) {
		command, _, _ := strings.Cut(line, "\t")
		plain := command == "import" || command == "version" || command == "help"
		expect.Equal(t, texts[command] == "", plain, "%s: without a help text", command)
	}
}

// TestCompletion: the hidden command suggests the right words to a shell, given
// those before the cursor.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		words string // split at blanks
		want  []string
	}{
		{"che", []string{"check"}},
		{"check --mo", []string{"--mode"}},
		{"check --mode ", []string{"check", "peek", "count", "at_most"}},
		{"check --mode = co", []string{"count"}},
		{"check --rule login --mode p", []string{"peek"}},
		{"check --rule ", nil},
		{"check --peek --det", []string{"--detail"}},
		{"deny ", []string{"add", "remove", "list"}},
		{"deny add --adm", []string{"--admin"}},
		{"help tie", []string{"tiers"}},
		{"completion ", []string{"bash", "zsh", "fish"}},
		{"nosuch", nil},
		{"compl", []string{"completion"}},
	} {
		_, out, _ := tool(t, "", append([]string{"complete"}, strings.Split(test.words, " ")...)...)
		var have []string
		for line := range strings.Lines(out) {
			word, _, _ := strings.Cut(line, "\t")
			have = append(have, word)
		}
		expect.DeepEqual(t, have, test.want, "%q", test.words)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, script, _ := tool(t, "", "completion", shell)
		if code != 0 || !strings.Contains(script, "rlnode complete") {
			t.Errorf("%s: have %d, %s", shell, code, script)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		if out, err := exec.Command(path, "-n", file(t, "script", script)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", shell, err, out)
		}
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	_, script, _ := tool(t, "", "completion", "bash")
	cmd := exec.Command(bash, "-c",
		`rlnode() { "$BINARY" "$@"; }; source "$1"; COMP_WORDS=(rlnode check --mode ""); COMP_CWORD=3; _rlnode; echo "${COMPREPLY[@]}"`,
		"bash", file(t, "script", script))
	cmd.Env = append(cleanEnv(), "BINARY="+binary)
	if out, err := cmd.Output(); err != nil || string(out) != "check peek count at_most\n" {
		t.Errorf("bash: have %q, %v", out, err)
	}
}

// TestColours: only a terminal gets colours, unless NO_COLOR or TERM forbids them.
func TestColours(t *testing.T) {
	expect.Equal(t, palette(true).verdict(true), "\x1b[32mallowed\x1b[0m", "palette(true).verdict(true)")
	expect.Equal(t, palette(false).verdict(false), "refused", "palette(false).verdict(false)")
	script, err := exec.LookPath("script")
	if err != nil {
		t.Skip("script, which makes a terminal, is not installed")
	}
	for _, test := range []struct {
		env  []string
		want bool
	}{{[]string{"TERM=xterm"}, true}, {[]string{"TERM=dumb"}, false}, {[]string{"TERM=xterm", "NO_COLOR=1"}, false}} {
		cmd := exec.Command(script, "-qec", binary+" frobnicate", "/dev/null")
		cmd.Env = cleanEnv(test.env...)
		out, _ := cmd.CombinedOutput()
		if have := strings.Contains(string(out), "\x1b[31mrlnode:\x1b[0m"); have != test.want ||
			!strings.Contains(string(out), "frobnicate") {
			t.Errorf("%v: have %q", test.env, out)
		}
	}
}
