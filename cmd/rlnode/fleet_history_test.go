package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// historyAnswer is an answer of GET /v1/history, as far as tests look at it.
type historyAnswer struct {
	Nodes []struct {
		Answered bool `json:"answered"`
		Steps    int  `json:"steps"`
	} `json:"nodes"`
	Steps []struct {
		Checks  int64 `json:"checks"`
		Refused int64 `json:"refused"`
		Latency []struct {
			Door   string  `json:"door"`
			Checks int64   `json:"checks"`
			P99    float64 `json:"p99_ms"`
		} `json:"latency"`
	} `json:"steps"`
	Rules []struct {
		Rule    string  `json:"rule"`
		Checks  int64   `json:"checks"`
		Refused int64   `json:"refused"`
		Shadow  int64   `json:"shadow_refused"`
		P99     float64 `json:"p99_ms"`
	} `json:"rules"`
}

func (m *fleetNode) history(query string) (h historyAnswer) {
	m.fleet.t.Helper()
	if text, err := m.get("/v1/history?"+query, &h); err != nil {
		m.fleet.t.Fatalf("history: %v: %s", err, text)
	}
	return h
}

// What the nodes decided is still known, to the check, once all of them have
// been restarted, one after another. Subjects are not kept.
func TestHistorySurvivesARollingRestart(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.nodes[0].apply("rules:\n" +
		"  - {name: login, key: [ip], limits: [{limit: 20, per: 720h}]}\n" +
		"  - {name: trial, shadow: true, key: [ip], limits: [{limit: 5, per: 720h}]}\n")
	const checks = 90
	for i := range checks {
		m := f.nodes[i%3]
		if status, text, err := m.call("POST", m.data+"/v1/check", "",
			`{"attributes": {"ip": "198.51.100.77"}}`); err != nil || status != 200 && status != 429 {
			t.Fatalf("check: %v %d %s", err, status, text)
		}
	}

	for _, m := range f.nodes {
		m.signal(syscall.SIGTERM)
		m.awaitExit()
		m.startProcess()
		f.awaitWhole()
	}
	var h historyAnswer
	process.Eventually(t, "the history of all nodes", func() bool {
		h = f.nodes[1].history("by=hour")
		sum := int64(0)
		for _, s := range h.Steps {
			sum += s.Checks
		}
		return sum == checks && len(h.Nodes) == 3 && len(h.Rules) == 2
	})

	byRule := map[string][4]int64{}
	for _, r := range h.Rules {
		byRule[r.Rule] = [4]int64{r.Checks, r.Refused, r.Shadow}
		if r.P99 <= 0 {
			t.Errorf("%s: got no latency", r.Rule)
		}
	}
	expect.Equal(t, byRule["login"], [4]int64{checks, checks - 20, 0}, "login")
	// A check that a remembered refusal answers does not look at other rules.
	if got := byRule["trial"]; got[0] < 20 || got[0] > checks || got[1] != 0 || got[2] < 15 {
		t.Errorf("trial: got %v", got)
	}
	var measured int64
	for _, s := range h.Steps {
		for _, l := range s.Latency {
			measured += l.Checks
			if l.Door != "data" || l.P99 <= 0 {
				t.Errorf("latency: got %+v", l)
			}
		}
	}
	expect.Equal(t, measured, checks, "latency, checks")

	var size int64
	files, err := filepath.Glob(filepath.Join(f.dir, "*", "history", "*"))
	for _, name := range files {
		if info, err := os.Stat(name); err == nil {
			size += info.Size()
		}
	}
	if err != nil || len(files) < 6 || size > 100<<10 {
		t.Errorf("files: %v, %v, %d bytes", err, files, size)
	}
	if rest := f.nodes[0].history("by=hour&rule=login&n=1"); len(rest.Steps) != 1 {
		t.Errorf("one step of a rule: got %s", fmt.Sprint(rest))
	}
}
