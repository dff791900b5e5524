package main

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// readmeCommands runs the commands of an example's README, on addresses that only this test uses.
type readmeCommands struct {
	t    *testing.T
	text string
	dir  string // the working directory
}

func newReadmeCommands(t *testing.T, folder string) *readmeCommands {
	t.Helper()
	root, err := filepath.Abs("../..")
	expect.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, folder, "README.md"))
	expect.NoError(t, err)
	x := &readmeCommands{t: t, text: string(text), dir: t.TempDir()}
	expect.NoError(t, os.Mkdir(filepath.Join(x.dir, "bin"), 0o700))
	for from, to := range map[string]string{"examples": filepath.Join(root, "examples"), "bin/rlnode": binary} {
		expect.NoError(t, os.Symlink(to, filepath.Join(x.dir, from)))
	}
	return x
}

// block returns the code block after <!-- KIND NAME -->. The program is already built.
func (t *readmeCommands) block(mark string) string {
	t.t.Helper()
	_, rest, ok := strings.Cut(t.text, "<!-- "+mark+" -->\n```sh\n")
	code, _, ends := strings.Cut(rest, "\n```\n")
	if !ok || !ends {
		t.t.Fatalf("the README has no block %q", mark)
	}
	code = strings.ReplaceAll(code, "go build -o bin/rlnode ./cmd/rlnode\n", "")
	return strings.ReplaceAll(code, "127.0.0.", "127.0.35.")
}

// background runs a block until the test ends.
func (t *readmeCommands) background(name string) {
	t.t.Helper()
	log := &process.Output{}
	c := exec.Command("bash", "-e", "-c", t.block("background "+name))
	c.Dir, c.Env, c.Stdout, c.Stderr = t.dir, cleanEnv(), log, log
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	expect.NoError(t.t, c.Start())
	t.t.Cleanup(func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // the whole group; it may have ended
		_ = c.Wait()
		if t.t.Failed() {
			t.t.Logf("%s printed:\n%s", name, log)
		}
	})
}

// run runs a block and returns its output.
func (t *readmeCommands) run(name string) string {
	t.t.Helper()
	c := exec.Command("bash", "-e", "-c", t.block("run "+name))
	c.Dir, c.Env = t.dir, cleanEnv()
	out, err := c.CombinedOutput()
	if err != nil {
		t.t.Fatalf("%s: %v: %s", name, err, out)
	}
	return string(out)
}

// The commands of examples/regions do what its README says.
func TestRegionsExample(t *testing.T) {
	t.Parallel()
	x := newReadmeCommands(t, "examples/regions")
	x.background("serve")
	process.Eventually(t, "the regions know each other", func() bool {
		for _, ip := range []string{"127.0.35.11", "127.0.35.21", "127.0.35.31"} {
			if regionsSeen(ip) != 3 {
				return false
			}
		}
		return true
	})
	for _, want := range []string{"eu", "us", "ap1", "PRIMARY"} {
		if have := x.run("members"); !strings.Contains(have, want) {
			t.Errorf("members: have %s, want it to name %s", have, want)
		}
	}
	if have := x.run("apply"); strings.Count(have, "scope: global") != 6 { // what changes, and then the rules
		t.Errorf("apply: have %s, want three global rules", have)
	} else if strings.Contains(have, "not all nodes of region") {
		t.Errorf("apply: have %s, want all regions to say which rules they used", have)
	}
	process.Eventually(t, "all use the new version", func() bool { return regionsSeen("127.0.35.21") == 3 })
	if have := x.run("borrow"); !strings.Contains(have, "90 200\n") ||
		!strings.Contains(have, "10 429\n") || !strings.Contains(have, `"allowed":false`) {
		t.Errorf("borrow: have %s, want 90 of 100 admitted in one region, and none in another", have)
	}
	var usage struct {
		Shares  map[string]int64
		Regions map[string]struct {
			Limits []struct{ Used, Own, Lent, Borrowed int64 }
		}
	}
	text := x.run("usage")
	if err := json.Unmarshal([]byte(text), &usage); err != nil || usage.Shares["us"] != 30 || len(usage.Regions) != 3 {
		t.Fatalf("usage: have %s, %v", text, err)
	}
	if us := usage.Regions["us"].Limits; len(us) != 1 || us[0].Own != 90 || us[0].Borrowed != 60 {
		t.Errorf("usage: have %s, want 90 used in us, 60 of them borrowed", text)
	}
	away := x.run("away")
	if !strings.Contains(away, `"allowed":true`) || !strings.Contains(away, "no-primary") ||
		!strings.Contains(away, "refused: the primary is away") {
		t.Errorf("away: have %s", away)
	}
}

// regionsSeen returns how many committed regions a node can reach, including
// its own; 0 unless all regions are known to use the node's rules.
func regionsSeen(ip string) (n int) {
	resp, err := http.Get("http://" + ip + ":8081/v1/cluster")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	var c struct {
		RulesVersion int64 `json:"rules_version"`
		Recorded     int64 `json:"recorded_version"`
		Regions      []struct {
			Reachable, Committed bool
		}
	}
	if json.NewDecoder(resp.Body).Decode(&c) != nil || c.Recorded != c.RulesVersion {
		return 0
	}
	for _, r := range c.Regions {
		if r.Reachable && r.Committed {
			n++
		}
	}
	return n
}
