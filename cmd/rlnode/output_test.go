//go:build unix

package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestOutputFile: a command that writes a file leaves what stands at its name as
// it is: a link stays a link and a pipe a pipe, and only content changes.
func TestOutputFile(t *testing.T) {
	t.Parallel()
	const domain, want = "domain: d\n", "version: 1\nenvoy:\n  - domain: d\n"
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string) (code int, stderr string) {
		t.Helper()
		code, _, stderr = tool(t, domain, "import", "envoy", "-", "-o", at(name))
		return code, stderr
	}
	expectFile := func(name string) {
		t.Helper()
		info, err := os.Lstat(at(name))
		expect.NoError(t, err)
		text, err := os.ReadFile(at(name))
		expect.NoError(t, err)
		expect.Equal(t, info.Mode().Type(), 0, "type of %s", name)
		expect.Equal(t, string(text), want, "%s", name)
	}

	expect.NoError(t, os.WriteFile(at("old"), []byte(strings.Repeat("old ", 100)), 0o600))
	expect.NoError(t, os.Mkdir(at("folder"), 0o700))
	for link, target := range map[string]string{"link": "old", "chain": "link", "early": "folder/late", "loop": "loop"} {
		expect.NoError(t, os.Symlink(target, at(link)))
	}

	for name, file := range map[string]string{
		"new": "new", "old": "old", "link": "old", "chain": "old", "early": "folder/late",
	} {
		code, stderr := write(name)
		expect.Equal(t, code, 0, "%s: %s: exit code", name, stderr)
		expectFile(file)
		if name != file {
			info, err := os.Lstat(at(name))
			expect.NoError(t, err)
			expect.Equal(t, info.Mode().Type(), fs.ModeSymlink, "type of %s", name)
		}
	}

	for _, name := range []string{"folder", "loop", "nowhere/file"} {
		if code, stderr := write(name); code != 1 || !strings.Contains(stderr, "write the rules") {
			t.Errorf("%s: got %d, %s", name, code, stderr)
		}
	}

	expect.NoError(t, unix.Mkfifo(at("pipe"), 0o600))
	pipe, err := os.OpenFile(at("pipe"), os.O_RDWR, 0) // both ends, so that no open waits
	expect.NoError(t, err)
	defer pipe.Close()
	code, stderr := write("pipe")
	expect.Equal(t, code, 0, "pipe: %s: exit code", stderr)
	got := make([]byte, len(want))
	_, err = io.ReadFull(pipe, got)
	expect.NoError(t, err)
	expect.Equal(t, string(got), want, "what was written into the pipe")
	info, err := os.Lstat(at("pipe"))
	expect.NoError(t, err)
	expect.Equal(t, info.Mode().Type(), fs.ModeNamedPipe, "type of pipe")
}
