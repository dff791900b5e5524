package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/replay/replaytest"
)

const minuteRule = "version: 1\nrules:\n  - {name: r, key: [ip], limits: [{limit: 3, per: 1m, algorithm: fixed-window}]}\n"

// TestReplayCommand compares the command with a simple count of a generated
// log, in every format that a log may have.
func TestReplayCommand(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	if _, err := replaytest.Small(5000).WriteTo(&log); err != nil {
		t.Fatal(err)
	}
	checks, refused, subjects := countByHand(t, log.String(), 3)
	want := fmt.Sprintf(`{"checks":%d,"refused":%d,"skipped":0,"rules":{"r":{"checks":%d,"refused":%d,"subjects":%d}},"top":[`,
		checks, refused, checks, refused, subjects)

	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte(log.String())); err != nil {
		t.Fatal(err)
	}
	w.Close()
	rules, plain, zipped := file(t, "rules.yaml", minuteRule), file(t, "access.log",
		log.String()), file(t, "access.log.gz", packed.String())
	half := strings.Index(log.String()[log.Len()/2:], "\n") + log.Len()/2 + 1
	for _, test := range []struct {
		name  string
		stdin string
		args  []string
	}{
		{"flags before", "", []string{"--rules", rules, "--json", plain}},
		{"flags after", "", []string{plain, "--json", "--rules", rules}},
		{"zipped", "", []string{zipped, "--rules=" + rules, "--json"}},
		{"standard input", log.String(), []string{"-", "--rules", rules, "--json"}},
		{"zipped standard input", packed.String(), []string{"--rules", rules, "-", "--json"}},
		{"JSON lines", toJSONLines(t, log.String()), []string{"-", "--rules", rules, "--json"}},
		{"two files", log.String()[half:],
			[]string{file(t, "first.log", log.String()[:half]), "-", "--rules", rules, "--json"}},
	} {
		code, stdout, stderr := tool(t, test.stdin, append([]string{"replay"}, test.args...)...)
		if code != 0 || !strings.HasPrefix(stdout, want) || stderr != "" {
			t.Errorf("%s: have %d, %.300s, %q, want %s", test.name, code, stdout, stderr, want)
		}
	}

	decisions := filepath.Join(t.TempDir(), "decisions.jsonl")
	code, stdout, stderr := tool(t, "", "replay", "--rules", rules, plain, "--decisions", decisions, "--top", "3")
	if code != 0 || !strings.Contains(stdout, "Subjects refused most") || strings.Count(stdout, "r: ") != 4 {
		t.Errorf("the report: have %d, %s, %s", code, stdout, stderr)
	}
	text, err := os.ReadFile(decisions)
	expect.NoError(t, err)
	if lines, no := bytes.Count(text, []byte("\n")), bytes.Count(text,
		[]byte(`"allowed":false`)); lines != checks || no != refused {
		t.Errorf("decisions: have %d, %d refused, want %d, %d", lines, no, checks, refused)
	}
	if code, stdout, _ := tool(t, "", "replay", "--rules", rules, plain, "--decisions",
		"-"); code != 0 || stdout != string(text) {
		t.Error("decisions to standard output differ from those in the file")
	}
}

// countByHand counts checks, refusals of a fixed window of a minute, and addresses.
func countByHand(t *testing.T, log string, limit int) (checks, refused, subjects int) {
	t.Helper()
	counts, seen := make(map[string]int), make(map[string]bool)
	for line := range strings.Lines(log) {
		address, at := addressAndTime(t, line)
		checks++
		seen[address] = true
		window := fmt.Sprint(address, at.Unix()/60)
		counts[window]++
		if counts[window] > limit {
			refused++
		}
	}
	return checks, refused, len(seen)
}

func addressAndTime(t *testing.T, line string) (string, time.Time) {
	t.Helper()
	fields := strings.Fields(line)
	at, err := time.Parse("[02/Jan/2006:15:04:05 -0700]", fields[3]+" "+fields[4])
	expect.NoError(t, err)
	return fields[0], at
}

func toJSONLines(t *testing.T, log string) string {
	t.Helper()
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	for line := range strings.Lines(log) {
		address, at := addressAndTime(t, line)
		expect.NoError(t,
			encoder.Encode(map[string]any{"time": at.UnixMilli(), "attributes": map[string]string{"ip": address}}))
	}
	return b.String()
}

func TestReplayMistakes(t *testing.T) {
	t.Parallel()
	rules, log := file(t, "rules.yaml", minuteRule), file(t, "access.log",
		"garbage\n"+`192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1`+"\n")
	bad := file(t, "bad.yaml", "version: 1\nrules: [{name: r}]\n")
	for _, test := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"a line skipped", []string{"--rules", rules, log, "--json"}, 0,
			"access.log:1: the line does not begin with an address"},
		{"an empty log", []string{"--rules", rules, file(t, "empty.log", "")}, 1, "not tried"},
		{"a wrong file", []string{"--rules", rules, rules, "--json"}, 1, "not tried"},
		{"no rules", []string{log}, 2, "--rules"},
		{"no log", []string{"--rules", rules}, 2, "<log>"},
		{"rules with mistakes", []string{"--rules", bad, log}, 1, "bad.yaml:2:"},
		{"a missing log", []string{"--rules", rules, log, "/nowhere.log"}, 1, "/nowhere.log"},
		{"a directory", []string{"--rules", rules, t.TempDir()}, 1, "directory"},
		{"decisions over the log", []string{"--rules", rules, log, "--decisions", log}, 2, "--decisions"},
		{"decisions over the rules", []string{"--rules", rules, log, "--decisions", rules}, 2, "--decisions"},
		{"decisions nowhere", []string{"--rules", rules, log, "--decisions", "/nowhere/x"}, 1, "/nowhere/x"},
		{"two on standard output", []string{"--rules", rules, log, "--decisions", "-", "--json"}, 2, "standard output"},
		{"two from standard input", []string{"--rules", "-", "-"}, 2, "once"},
		{"top below 0", []string{"--rules", rules, log, "--top=-1"}, 2, "--top"},
		{"no counters", []string{"--rules", rules, log, "--max-counters", "0"}, 2, "--max-counters"},
		{"a setting without effect",
			[]string{"--rules",
				file(t, "unbilled.yaml",
					strings.Replace(minuteRule, "key: [ip],", "key: [ip], shadow: true, usage: monthly,", 1)),
				log},
			0, "usage"},
	} {
		code, _, stderr := tool(t, "", append([]string{"replay"}, test.args...)...)
		if code != test.code || !strings.Contains(stderr, test.stderr) {
			t.Errorf("%s: have %d, %q, want %d, %q", test.name, code, stderr, test.code, test.stderr)
		}
	}
	if text, err := os.ReadFile(log); err != nil || !slices.Equal(text[:7], []byte("garbage")) {
		t.Error("the log was changed")
	}
}
