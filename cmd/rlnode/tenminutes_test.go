package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestTenMinutes types the commands of the first part of docs/rules.md as they
// stand, and sees what the text says.
func TestTenMinutes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/rules.md")
	expect.NoError(t, err)
	n := start(t, t.TempDir(), "--name", "n1")
	dir := t.TempDir()
	expect.NoError(t, os.Symlink(binary, filepath.Join(dir, "rlnode")))
	x := &readmeCommands{t: t, text: string(text), dir: dir}
	for _, step := range []struct {
		name string
		want []string
	}{
		{"begin",
			[]string{"rules.yaml: valid", "+ tier free", "+ tier gold", "+ subject tenant acme",
				"+ rule tenant", "1 rule added"}},
		{"apply", []string{"version 2 is in force", "9999 of 10000 requests left", "99 of 100 requests left"}},
		{"shadow", []string{
			"version 3 is in force", "only shadow rules apply", "WOULD REFUSE",
			"2       5  exports: ann", `endpoint: "/exports" is not "/export"`,
		}},
		{"enforce",
			[]string{"~ rule exports  shadow: true → (none)", "version 4 is in force", "refused by exports: 0 of 3"}},
		{"back",
			[]string{"exports: 3 an hour", "127.0.0.1, apply", "version 5 is in force", "only shadow rules apply"}},
		{"deny", []string{"version 6 is in force", "refused by a list"}},
	} {
		c := exec.Command("bash", "-c", x.block("run "+step.name))
		c.Dir = dir
		c.Env = append(cleanEnv("RLNODE_ADMIN="+n.admin, "RLNODE_ADDR="+n.data), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := c.CombinedOutput()
		if _, failed := err.(*exec.ExitError); err != nil && !failed {
			t.Fatal(err)
		}
		for _, want := range step.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: got\n%s\nwant it to have %q", step.name, out, want)
			}
		}
	}
	n.stop()
}
