package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/replay"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// replayComment returns what a starter set says about its replay.
func replayComment(t *testing.T, name string) string {
	t.Helper()
	doc, err := document.Review(document.StarterSet(name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if w := doc.Warnings(); len(w) > 0 {
		t.Errorf("%s: got warnings %v", name, w)
	}
	set, err := rules.Compile(doc, 1)
	expect.NoError(t, err)
	file, err := os.Open("../../examples/access.log")
	expect.NoError(t, err)
	defer file.Close()
	report, err := replay.Run(context.Background(), replay.DefaultConfig(set),
		replay.Input{Name: "access.log", Reader: file})
	expect.NoError(t, err)

	var b strings.Builder
	fmt.Fprintf(&b, "# On that log, %d of %d requests are refused:\n#\n", report.Refused, report.Checks)
	for _, r := range report.Rules {
		fmt.Fprintf(&b, "#   %-14s applies to %3d requests of %3d subjects, and refuses %d\n",
			r.Name, r.Checks, r.Subjects, r.Refused)
	}
	return b.String()
}

// Each starter set is valid, and says what it does to the example log.
func TestStarterSets(t *testing.T) {
	for _, name := range document.StarterNames[1:] {
		if want := replayComment(t, name); !strings.Contains(string(document.StarterSet(name)), want) {
			t.Errorf("%s: its comment should say:\n%s", name, want)
		}
		if title := document.StarterTitle(name); title == "" || !strings.HasSuffix(title, ".") {
			t.Errorf("%s: its first line is %q, not a sentence", name, title)
		}
	}
	entries, err := os.ReadDir("../../rules/document/starters")
	if err != nil || len(entries) != len(document.StarterNames) {
		t.Errorf("got %d files, %v, and %d names", len(entries), err, len(document.StarterNames))
	}
}
