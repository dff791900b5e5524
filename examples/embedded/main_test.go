//go:build unix

package main

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

var long = flag.Bool("long", false, "run the test that takes long, too; make long does")

// TestAsTyped_long runs the commands in the package's comment.
func TestAsTyped_long(t *testing.T) {
	if !*long {
		t.Skip("takes long: see make long")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip(err)
	}
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	// As in an interactive shell, each job is a process group, and kill reaches the whole group.
	script := "set -m\ntrap 'for job in $(jobs -p); do kill -- -$job; done' EXIT TERM\n"
	for line := range strings.Lines(string(source)) {
		if command, ok := strings.CutPrefix(line, "//\t"); ok {
			script += command
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	// go run caches the linked program. Started three times at once, it would link
	// the program three times.
	if out, err := exec.CommandContext(ctx, "go", "run", "-exec", "true", ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	shell := exec.CommandContext(ctx, "bash", "-c", script+"wait\n")
	shell.Dir, shell.WaitDelay = "../..", time.Minute
	shell.Cancel = func() error { return shell.Process.Signal(syscall.SIGTERM) }
	var said strings.Builder
	shell.Stderr = &said
	out, err := shell.Output()
	have := strings.Fields(string(out))
	want := "hello from web-1 hello from web-2 hello from web-3 200 200 200 200 200 200 200 429 429"
	if strings.Join(have, " ") != want {
		t.Errorf("have %q, %v; want %q\n%s", have, err, want, said.String())
	}
}
