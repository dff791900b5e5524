package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestReplayWithEntries: an entry is in force from when it was written until its end.
func TestReplayWithEntries(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		expect.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	rules := write("rules.yaml", "version: 1\nrules: [{name: all, key: [ip], limits: [{limit: 100, per: 1h}]}]\n")
	log := write("log.jsonl", `{"time":"2026-01-01T10:00:00Z","attributes":{"ip":"192.0.2.7"}}
{"time":"2026-01-01T10:00:30Z","attributes":{"ip":"192.0.2.7"}}
{"time":"2026-01-01T10:02:00Z","attributes":{"ip":"192.0.2.7"}}
`)
	beside := write("entries.json",
		`{"entries":[{"kind":"deny","entry":{"ip":"192.0.2.7","when":"2026-01-01T10:00:20Z","until":"2026-01-01T10:01:00Z","by":"ann"}}]}`)
	decisions := filepath.Join(dir, "decisions")
	code, _, stderr := tool(t, "", "replay", "--rules", rules, "--entries", beside, "--decisions",
		decisions, "--json", log)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	text, err := os.ReadFile(decisions)
	expect.NoError(t, err)
	var got []string
	for line := range strings.Lines(string(text)) {
		got = append(got, map[bool]string{true: "allowed", false: "refused"}[strings.Contains(line, `"allowed":true`)])
	}
	if all := strings.Join(got, " "); all != "allowed refused allowed" {
		t.Errorf("decisions %s; want only the second refused: %s", all, text)
	}
	if code, _, stderr := tool(t, "", "replay", "--rules", rules, "--entries", log,
		log); code != 1 || !strings.Contains(stderr, "read ") {
		t.Errorf("a file without entries: exit code %d, %s", code, stderr)
	}
	code, _, stderr = tool(t, "", "replay", "--rules", rules, "--entries", beside, "--decisions", beside, log)
	if code != 2 || !strings.Contains(stderr, "is one of the inputs") {
		t.Errorf("decisions over entries: got %d %s", code, stderr)
	}
}
