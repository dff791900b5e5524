package main

import (
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// askAlone makes checks at a node that has to decide alone. It returns how many were admitted.
func (m *fleetNode) askAlone(rule, key string, times int) (admitted int) {
	m.fleet.t.Helper()
	for range times {
		status, text, err := m.call("POST", m.data+"/v1/check", "", fmt.Sprintf(`{"rule": %q, "key": %q}`, rule, key))
		var a struct {
			DecidedBy string `json:"decided_by"`
		}
		if err == nil {
			err = json.Unmarshal([]byte(text), &a)
		}
		if err != nil || a.DecidedBy != "fallback" || status != 200 && status != 429 {
			m.fleet.t.Fatalf("%s: %v, status %d, %s", m.name, err, status, text)
		}
		if status == 200 {
			admitted++
		}
	}
	return admitted
}

// G4: a node that restarts while the others hang decides alone, by the rules
// and the ring it had. It admits its share, even across another restart. When
// the others resume, everything it admitted is counted.
func TestG4_RestartedWhileCutOff_long(t *testing.T) {
	t.Parallel()
	long(t)
	f := newFleet(t, 3)
	f.nodes[0].apply(exactRules(90))
	lone := f.nodes[2]
	keys := map[*fleetNode]string{}
	for _, key := range subjects(100) {
		keys[f.ownerOf(lone, "year", key)] = key
	}
	timer := time.NewTimer(2 * time.Second) // until the applied state is on disk
	<-timer.C
	lone.kill()
	for _, m := range f.nodes[:2] {
		m.signal(syscall.SIGSTOP)
	}
	admitted := map[string]int{}
	for round := range 3 {
		began := time.Now()
		lone.startProcess()
		lone.waitReady()
		t.Logf("ready %v after the start", time.Since(began))
		for _, key := range keys {
			admitted[key] += lone.askAlone("year", key, 20)
		}
		if round == 1 { // gracefully, which forgets nothing
			lone.signal(syscall.SIGTERM)
			if code := lone.awaitExit(); code != 0 {
				t.Errorf("exit code %d\n%s", code, lone.log)
			}
			continue
		}
		timer.Reset(3 * time.Second / 2) // longer than the interval between checkpoints
		<-timer.C
		lone.kill()
	}
	lone.startProcess()
	for _, m := range f.nodes[:2] {
		m.signal(syscall.SIGCONT)
	}
	f.awaitWhole()
	for _, key := range keys {
		expect.Equal(t, admitted[key], 30, "%s: admitted", key)
		process.Eventually(t, "what was admitted is counted",
			func() bool { return f.nodes[0].used("year", key) >= int64(admitted[key]) })
		t.Logf("%s: %d admitted, %d counted", key, admitted[key], f.nodes[0].used("year", key))
	}
}
