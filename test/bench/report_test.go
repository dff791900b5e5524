package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestGoals(t *testing.T) {
	tests := []struct {
		goal goal
		have float64
		want bool
	}{
		{atLeast(0.85, "≥ 0.85"), 0.85, true},
		{atLeast(0.85, "≥ 0.85"), 0.8499, false},
		{atMost(64, "≤ 64"), 64, true},
		{atMost(64, "≤ 64"), 64.01, false},
		{atLeast(1, "≥ 1"), math.NaN(), false},
		{atMost(1, "≤ 1"), math.NaN(), false},
	}
	for _, tt := range tests {
		if have := tt.goal.met(tt.have); have != tt.want {
			t.Errorf("%s of %v: have %v, want %v", tt.goal.text, tt.have, have, tt.want)
		}
	}
}

func TestTable(t *testing.T) {
	r := &report{}
	r.add("S7", "late", noGoal(), ratio{1, 1, 1}, "")
	r.add("S2", "good", atLeast(0.85, "≥ 0.85"), ratio{0.9, 0.8, 0.95}, "")
	r.add("S2", "bad", atMost(1.2, "≤ 1.2"), ratio{1.25, 1.1, 1.3}, "a note")
	r.add("S2", "from another", atLeast(10, "≥ 10"), ratio{12, 11, 13}, "")
	r.derived()
	r.add("S2", "short of it", atLeast(10, "≥ 10"), ratio{9, 8, 9}, "")
	r.derived()
	r.add("S2", "nothing", atLeast(1, "≥ 1"), over(nil, nil), "")
	r.missing("S2", "absent", atLeast(1.3, "≥ 1.3"), "no server")
	r.figure("S2", "a server", "", "checks/s", series{68_123, 70_000, 60_000})
	r.figure("S2", "a server", "p50", "µs", series{407})
	r.figure("S3", "another", "", "checks/s", series{1_234_567})
	r.note("A sentence.")
	var b strings.Builder
	if err := r.markdown(&b, machine{CPU: "a CPU", Cores: 2}, "5 rounds."); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| S2 | good | ≥ 0.85 | 0.900 | 0.800 … 0.950 | yes |\n| S2 | bad (a note) | ≤ 1.2 | 1.25 | 1.10 … 1.30 | **no** |\n",
		"| S2 | from another | ≥ 10 | 12.0 | 11.0 … 13.0 | yes (derived) |\n",
		"| S2 | short of it | ≥ 10 | 9.00 | 8.00 … 9.00 | **no** (derived) |\n",
		"| S2 | nothing (too little was measured) | ≥ 1 | – | – | not measured |\n",
		"| S2 | absent (no server) | ≥ 1.3 | – | – | not measured |\n| S7 | late | – | 1.00 | 1.00 … 1.00 | – |\n",
		"| S2 | a server | 68,100 checks/s (60,000 … 70,000); p50 407 µs |\n| S3 | another | 1,230,000 checks/s (1,230,000 … 1,230,000) |\n",
		"\n- A sentence.\n",
		"a CPU, 2 cores",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestJSONReadsBack(t *testing.T) {
	r := &report{}
	r.add("S2", "good", atLeast(0.85, "≥ 0.85"), ratio{0.9, 0.8, 0.95}, "")
	r.add("S2", "nothing", atLeast(1, "≥ 1"), over(nil, nil), "")
	r.figure("S2", "nothing", "", "checks/s", nil)
	path := filepath.Join(t.TempDir(), "figures.json")
	if err := r.writeJSON(path, machine{}, settings{time: time.Second, rounds: 3}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var have struct {
		Rounds int
		Rows   []row
	}
	if err := json.Unmarshal(text, &have); err != nil || have.Rounds != 3 || len(have.Rows) != 2 ||
		have.Rows[0].Measured.Median != 0.9 || have.Rows[1].Measured != nil {
		t.Errorf("have %+v, %v", have, err)
	}
}

func TestShort(t *testing.T) {
	for have, want := range map[float64]string{
		0: "0", 0.0001: "0", 0.4567: "0.457", 0.996: "1.00", 1.234: "1.23", 12.34: "12.3",
		99.96: "100", 407: "407", 9_876: "9,876",
		68_123: "68,100", 1_234_567: "1,230,000", math.Inf(1): "–", -1_234: "-1,234",
	} {
		if s := short(have); s != want {
			t.Errorf("%v: have %s, want %s", have, s, want)
		}
	}
}
