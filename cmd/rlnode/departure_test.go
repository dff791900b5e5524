package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// command runs a command against a node's admin plane.
func (m *fleetNode) command(args ...string) (code int, out string) {
	m.fleet.t.Helper()
	code, stdout, stderr := tool(m.fleet.t, "", append(args, "--admin", m.admin)...)
	return code, stdout + stderr
}

// subjectsOf finds a subject that a node owns, and one for which it is the standby.
func (f *fleet) subjectsOf(m *fleetNode, rule string) map[string]string {
	f.t.Helper()
	found := map[string]string{}
	for _, key := range subjects(100) {
		var o struct{ Owner, Standby string }
		text, err := m.get("/v1/owner?rule="+rule+"&key="+key, &o)
		switch {
		case err != nil:
			f.t.Fatalf("owner: %v: %s", err, text)
		case o.Owner == m.name:
			found["owner"] = key
		case o.Standby == m.name:
			found["standby"] = key
		}
	}
	if len(found) < 2 {
		f.t.Fatalf("%s has only %v of 100 subjects", m.name, found)
	}
	return found
}

// awaitMembers waits until every node sees a settled cluster of exactly these
// members, not counting those that have left.
func (f *fleet) awaitMembers(names ...string) {
	f.t.Helper()
	slices.Sort(names)
	for _, m := range f.nodes {
		// A member that was never seen counts as failed half a minute after a start.
		process.Within(f.t, time.Minute, fmt.Sprintf("%s sees %v", m.name, names), func() bool {
			c, err := m.cluster()
			var have []string
			for _, one := range c.Members {
				if one.State == "alive" {
					have = append(have, one.Name)
				} else if one.Voter || one.InRing {
					return false
				}
			}
			slices.Sort(have)
			return err == nil && c.Settled && slices.Equal(have, names)
		})
	}
}

// readiness returns the answer of /readyz.
func (m *fleetNode) readiness() (int, string) {
	status, text, err := m.call("GET", m.data+"/readyz", "", "")
	if err != nil {
		return 0, err.Error()
	}
	return status, text
}

// A node leaves under load. Nothing is forgotten, no check fails, and until it
// is stopped, it asks the other nodes.
func TestG6_LeaveUnderLoad_long(t *testing.T) {
	long(t)
	f := newFleet(t, 3)
	f.nodes[0].apply(exactRules(1_000_000))
	l := f.startTraffic("year", subjects(60), 3, 8*time.Millisecond)
	process.Eventually(t, "traffic flows", func() bool { return l.total() > 200 })
	gone := f.nodes[1]
	if code, out := gone.command("leave"); code != 0 ||
		!strings.Contains(out, "n2 has left the cluster: stop its process") {
		t.Fatalf("leave: %d %s", code, out)
	}
	if status, text := gone.readiness(); status != 503 || !strings.Contains(text, "has left the cluster") {
		t.Errorf("the node that left: have %d %s", status, text)
	}
	if code, out := gone.command("leave"); code != 0 {
		t.Errorf("leaving twice: %d %s", code, out)
	}
	f.nodes = []*fleetNode{f.nodes[0], f.nodes[2]}
	f.awaitMembers("n1", "n3")
	before := l.total()
	process.Eventually(t, "traffic flows on", func() bool { return l.total() > before+100 })
	relayed, twice := map[string]int64{}, int64(0)
	for i := range 200 {
		key := l.keys[i%len(l.keys)]
		status, text, err := gone.call("POST", gone.data+"/v1/check", "",
			fmt.Sprintf(`{"rule": "year", "key": %q}`, key))
		if err != nil || status != 200 || strings.Contains(text, `"decided_by":"owner"`) ||
			strings.Contains(text, `"decided_by":"fallback"`) {
			t.Fatalf("a check at the node that left: %v %d %s", err, status, text)
		}
		if strings.Contains(text, `"decided_by":"standby"`) {
			twice++
		}
		relayed[key]++
	}
	l.end()
	if l.failed.Load() > 0 || l.slow.Load() > 0 {
		t.Errorf("%d checks failed, %d took over a second", l.failed.Load(), l.slow.Load())
	}
	if n, ok := l.by.Load("standby"); ok {
		twice += n.(*atomic.Int64).Load()
	}
	// If an owner is too slow to answer, its standby decides, but the owner may
	// have counted the check as well.
	over := int64(0)
	for i, key := range l.keys {
		want := l.admitted[i].Load() + relayed[key]
		used := f.nodes[i%2].used("year", key)
		over += used - want
		if used < want {
			t.Errorf("%s: have %d used, want %d", key, used, want)
		}
	}
	if over > twice {
		t.Errorf("%d were counted in excess, but standbys decided only %d", over, twice)
	}
	began := time.Now()
	gone.signal(syscall.SIGTERM)
	if code := gone.awaitExit(); code != 0 || time.Since(began) > 5*time.Second ||
		strings.Contains(gone.log.String(), "not all counters") {
		t.Errorf("stopping the node that left: exit code %d after %v", code, time.Since(began))
	}
}

// A node that can't leave at its stop says so, and how to take its vote away.
func TestStopWithoutLeavingIsAnError(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, "--leave-on-term")
	f.nodes[0].kill()
	f.nodes[2].kill()
	alone := f.nodes[1]
	alone.signal(syscall.SIGTERM)
	code := alone.awaitExit()
	if text := alone.log.String(); code == 0 || !strings.Contains(text, "n2 has not left the cluster and keeps its vote") ||
		!strings.Contains(text, "rlnode remove n2") {
		t.Errorf("got exit code %d and %s", code, text)
	}
}

func TestLeaveAndRemoveRefused(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--name", "n1")
	for args, want := range map[string]string{
		"leave":       "this is the last node: it has the only copy of rules and bills",
		"remove n1":   "member-there",
		"remove n9":   "not-found",
		"remove a/b":  "not-found",
		"remove  -- ": "expected",
	} {
		code, stdout, stderr := tool(t, "", append(strings.Fields(args), "--admin", s.admin)...)
		if code == 0 || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: have %d %s%s, want %q", args, code, stdout, stderr, want)
		}
	}
	expect.Equal(t, s.check(`{"rule": "per-ip", "key": "198.51.100.7"}`), 200, "afterwards")
}

// The last node of a cluster keeps the rules, whatever was forced. The others
// have left, and are still listed for a while.
func TestTheLastNodeDoesNotLeave(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.nodes[0].apply(exactRules(1000))
	for _, m := range f.nodes[:2] {
		code, out := m.command("leave")
		if code != 0 || !strings.Contains(out, "has left the cluster") || strings.Contains(out, "directory") {
			t.Fatalf("%s leaves: got %d %s", m.name, code, out)
		}
	}
	last := f.nodes[2]
	code, out := last.command("leave")
	if code == 0 || !strings.Contains(out, "only-member") || !strings.Contains(out, "only copy of rules and bills") {
		t.Fatalf("the last leaves: got %d %s, want only-member", code, out)
	}

	code, out = last.command("leave", "--force")
	if code != 0 || !strings.Contains(out, "keep its data directory") {
		t.Fatalf("the last leaves by force: got %d %s", code, out)
	}
	last.signal(syscall.SIGTERM)
	last.awaitExit()
	last.startProcess()
	process.Eventually(t, "it has its rules", func() bool {
		_, text, err := last.call("GET", last.admin+"/v1/rules", "", "")
		return err == nil && strings.Contains(text, "year")
	})
}

func TestDurationText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1500 * time.Millisecond: "1.5s", time.Hour: "1h", 90 * time.Minute: "1h30m",
		24 * time.Hour: "1d", 720 * time.Hour: "30d",
		77 * time.Hour: "3d5h", 77*time.Hour + 12*time.Minute + 3*time.Second: "3d5h12m",
		24*time.Hour + time.Second: "1d",
	} {
		expect.Equal(t, durationText(d), want, "%v", d)
	}
}

// Commands about subjects work with the address of either plane alone, with the
// same result. The admin plane holds no answer back, and needs a token where it
// has one.
func TestEitherPlaneIsEnough(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--name", "n1", "--api-token", "api", "--admin-token", "admin",
		"--rules", file(t, "rules.yaml", yearRules(5)))
	run := func(code int, want string, args ...string) {
		t.Helper()
		got, stdout, stderr := tool(t, "", args...)
		if got != code || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%v: got %d %s%s, want %d %q", args, got, stdout, stderr, code, want)
		}
	}
	for i, plane := range [][]string{{"--addr", s.data, "--token", "api"}, {"--admin", s.admin, "--token", "admin"}} {
		key := fmt.Sprint("k", i)
		with := func(args ...string) []string { return append(append(args, "--rule", "year", "--key", key), plane...) }
		run(0, "allowed", with("check")...)
		run(0, key, with("adjust", "--cost", "4")...)
		run(1, "refused", with("check")...)
		run(0, key, with("subject")...)
		run(0, key, with("reset")...)
		run(0, "allowed", with("check")...)
	}

	status, text, err := s.call("POST", s.admin+"/v1/check", "admin", `{"rule":"year","key":"w","wait":true}`)
	if err != nil || status != 400 || !strings.Contains(text, "wait") {
		t.Errorf("wait: got %d %s, %v", status, text, err)
	}
	status, text, err = s.call("POST", s.admin+"/v1/check", "", `{"rule":"year","key":"w"}`)
	if err != nil || status != 401 {
		t.Errorf("no token: got %d %s, %v", status, text, err)
	}
	if n := figure(t, s, `rlnode_requests_total{door="admin"}`); n < 5 {
		t.Errorf("got %g requests at the admin plane, want 5 or more", n)
	}
}

// A command that gets no answer because of the scheme, or of the certificate, says what to do.
func TestWrongSchemesAreSaid(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	secure := start(t, t.TempDir(), "--name", "n1", "--http-cert", cert, "--http-key", key)
	plain := start(t, t.TempDir(), "--name", "n2")
	for _, test := range []struct{ admin, want string }{
		{strings.Replace(secure.admin, "https://", "http://", 1), "its address begins with https://"},
		{strings.Replace(plain.admin, "http://", "https://", 1), "its address begins with http://"},
		{secure.admin, "--ca FILE"},
	} {
		code, _, stderr := tool(t, "", "members", "--admin", test.admin)
		if code != exitFailed || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: got %d %s, want %q", test.admin, code, stderr, test.want)
		}
	}
}

func TestHealthCommand(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	s := start(t, t.TempDir(), "--name", "n1", "--http-cert", cert, "--http-key", key)
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--addr", s.data, "--insecure"}, 0, "n1 is ready, connected\n"},
		{[]string{"--addr", s.data, "--ca", cert}, 0, "n1 is ready, connected\n"},
		{[]string{"--admin", s.admin, "--ca", cert}, 0, "n1 is ready, connected\n"},
		{[]string{"--addr", s.data}, 1, "certificate"},
		{[]string{"--addr", "127.0.0.1:1"}, 1, "can't reach a node"},
		{[]string{"--addr", "ftp://x"}, 2, "--addr"},
	} {
		code, stdout, stderr := tool(t, "", append([]string{"health"}, test.args...)...)
		if out := stdout + stderr; code != test.code || !strings.Contains(out, test.want) ||
			strings.Count(out, "\n") != 1 {
			t.Errorf("%v: have %d %q, want %d %q", test.args, code, out, test.code, test.want)
		}
	}
}

// A node that waits for others is not ready, and reports what it waits for.
func TestHealthBeforeThereIsACluster(t *testing.T) {
	t.Parallel()
	f := newEmptyFleet(t)
	m := f.newNode(1, 3)
	m.startProcess()
	var code int
	var out string
	process.Eventually(t, "the node answers", func() bool {
		var stdout, stderr string
		code, stdout, stderr = tool(t, "", "health", "--addr", m.data)
		out = stdout + stderr
		return strings.Contains(out, "no cluster yet")
	})
	if code != 1 || !strings.Contains(out, "503 not-ready") {
		t.Errorf("have %d %s", code, out)
	}
	status, text, err := m.call("GET", m.data+"/healthz", "", "")
	if err != nil || status != http.StatusOK || !strings.Contains(text, `"leader_known":false`) ||
		!strings.Contains(text, "degraded") {
		t.Errorf("health: %v %d %s", err, status, text)
	}
}

func TestRecoverRefused(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--data-dir", "/nowhere"}, 1, "/nowhere"},
		{[]string{"--data-dir", empty}, 1, "not the data directory of a node"},
		{[]string{"--data-dir", empty, "--address", "n1"}, 2, "--address"},
		{[]string{"--data-dir", empty, "--address", "10.0.0.1:0"}, 2, "--address"},
		{[]string{"--data-dir", empty, "--skip", "7"}, 2, "--skip and --hash"},
		{[]string{"--data-dir", empty, "--skip", "0"}, 2, "--skip and --hash"},
		{[]string{"--data-dir", empty, "--hash", "7"}, 2, "--skip and --hash"},
		{[]string{"--data-dir", empty, "--skip", "7", "--hash", "7"}, 2, "64 hexadecimal digits"},
		{[]string{"--data-dir", empty, "--skip", "7", "--hash", strings.Repeat("a7", 32),
			"--address", "10.0.0.1:7"}, 2, "--address"},
		{[]string{"--data-dir", empty, "--skip", "7", "--hash", strings.Repeat("a7", 32)}, 1,
			"not the data directory of a node"},
		{nil, 2, "--data-dir"},
	} {
		code, stdout, stderr := tool(t, "", append([]string{"recover"}, test.args...)...)
		if code != test.code || !strings.Contains(stderr, test.want) || stdout != "" {
			t.Errorf("%v: have %d %q, want %d %q", test.args, code, stderr, test.code, test.want)
		}
	}
	if left, _ := os.ReadDir(empty); len(left) > 0 {
		t.Errorf("the command created files: %v", left)
	}
}
