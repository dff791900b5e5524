package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// Two of three nodes are lost for good. The third continues, cut off but ready.
// It becomes the only voter, and new nodes replace the lost ones. They join
// while it still waits for those, which is half a minute after its start.
func TestG9_RecoverFromLostMajority_long(t *testing.T) {
	t.Parallel()
	long(t)
	f := newFleet(t, 3)
	f.nodes[0].apply(exactRules(5000))
	left := f.nodes[2]
	dir := filepath.Join(f.dir, "n3")
	if code, _, stderr := tool(t, "", "recover", "--data-dir", dir); code != 1 ||
		!strings.Contains(stderr, "stop the node first") {
		t.Errorf("recover under a running node: %d %s", code, stderr)
	}
	keys := f.subjectsOf(left, "year")
	for _, key := range keys {
		for range 40 {
			left.check(fmt.Sprintf(`{"rule": "year", "key": %q}`, key))
		}
	}
	time.Sleep(time.Second) // ten pushes to the standbys
	process.Eventually(t, "the standbys have complete copies", func() bool {
		for _, m := range f.nodes {
			_, text, err := m.call("GET", m.admin+"/metrics", "", "")
			if err != nil || !strings.Contains(text, "\nrlnode_partitions_behind 0\n") ||
				!strings.Contains(text, "\nrlnode_replica_unacked_bytes 0\n") {
				return false
			}
		}
		return true
	})
	for _, m := range f.nodes[:2] {
		m.kill()
		expect.NoError(t, os.RemoveAll(filepath.Join(f.dir, m.name)))
	}
	f.nodes = []*fleetNode{left}
	process.Eventually(t, "the surviving node is cut off, and ready", func() bool {
		status, text := left.readiness()
		return status == 200 && strings.Contains(text, `"view":"cut-off"`) &&
			strings.Contains(text, `"status":"degraded"`)
	})
	if code, out := left.command("apply", "-f",
		file(t, "rules.yaml", exactRules(6000))); code != 1 || !strings.Contains(out, "no-leader") {
		t.Errorf("a write without a majority: %d %s", code, out)
	}
	left.kill() // everything above is on disk by now; what a graceful stop saves is tested elsewhere
	if code, stdout, stderr := tool(t, "", "recover", "--data-dir", dir); code != 0 ||
		!strings.Contains(stdout, "only voter") {
		t.Fatalf("recover: %d %s%s", code, stdout, stderr)
	}
	left.startProcess()
	left.waitReady()
	for i := 1; i <= 2; i++ {
		m := f.newNode(i, 0, "--join", left.ip)
		f.nodes = append(f.nodes, m)
		m.startProcess()
	}
	for _, m := range f.nodes {
		m.waitReady()
	}
	f.awaitMembers("n1", "n2", "n3")
	left.apply(exactRules(7000))
	f.removeFailed(left)
	f.awaitWhole() // all partitions have owners among them
	for role, key := range keys {
		if used := left.used("year", key); used < 40 {
			t.Errorf("have %d used after recovery of a subject for which this node was the %s, want at least 40", used, role)
		}
	}
	if c, err := f.nodes[1].cluster(); err != nil || c.RulesVersion != 3 {
		t.Errorf("rules have version %d (%v), want 3", c.RulesVersion, err)
	}
}

// removeFailed removes every failed member, by its ID, because a new node may have the same name.
func (f *fleet) removeFailed(at *fleetNode) {
	f.t.Helper()
	c, err := at.cluster()
	expect.NoError(f.t, err)
	for _, one := range c.Members {
		if one.State == "alive" {
			continue
		}
		if code, out := at.command("remove", one.ID); code != 0 || !strings.Contains(out, "no longer a member") {
			f.t.Errorf("remove %s: %d %s", one.Name, code, out)
		}
	}
}
