package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/process"
)

// A million keys over HTTP take at most 100 bytes of resident memory each,
// checkpoints included, and all of them survive a clean stop.
func TestMillionKeys_long(t *testing.T) {
	t.Parallel()
	long(t)
	if raceDetector {
		t.Skip("measures the memory of the real thing")
	}
	dir := t.TempDir()
	s := start(t, dir, "--rules", file(t, "rules.yaml", yearRules(10)))
	before := resident(t, s)
	const batch, keys = 1000, 1_000_000
	var body bytes.Buffer
	for from := 0; from < keys; from += batch {
		body.Reset()
		body.WriteString(`{"checks":[`)
		for i := range batch {
			if i > 0 {
				body.WriteByte(',')
			}
			fmt.Fprintf(&body, `{"rule":"year","key":"key-%d"}`, from+i)
		}
		body.WriteString(`]}`)
		status, answer, err := s.call("POST", s.data+"/v1/check/batch", "", body.String())
		if err != nil || status != http.StatusOK || bytes.Contains([]byte(answer), []byte(`"allowed":false`)) {
			t.Fatalf("from key %d: have %d, %v", from, status, err)
		}
	}
	// Saving them takes memory temporarily, which the node must free.
	var grown int64
	most, deadline := int64(100*keys), time.Now().Add(process.Timeout)
	for grown = resident(t, s) - before; grown > most && time.Now().Before(deadline); grown = resident(t, s) - before {
		timer := time.NewTimer(100 * time.Millisecond)
		<-timer.C
	}
	t.Logf("%.1f bytes resident per key", float64(grown)/float64(keys))
	if grown > most {
		t.Errorf("have %.1f bytes resident per key, want at most 100", float64(grown)/float64(keys))
	}
	s.stop()

	s = start(t, dir)
	if have := figure(t, s, "rlnode_counters"); have != float64(keys) {
		t.Errorf("have %g counters after the restart, want %d", have, keys)
	}
}

// resident returns the node's resident memory in bytes.
func resident(t *testing.T, s *runningNode) int64 {
	t.Helper()
	return statusOf(t, s, "VmRSS")
}

// statusOf returns a size that the kernel reports of the node, in bytes.
func statusOf(t *testing.T, s *runningNode, field string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Skip("resident memory can't be read here")
	}
	var kilobytes int64
	for line := range strings.Lines(string(status)) {
		if n, _ := fmt.Sscanf(line, field+": %d kB", &kilobytes); n == 1 {
			return kilobytes << 10
		}
	}
	t.Fatal("no " + field)
	return 0
}
