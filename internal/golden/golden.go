// Package golden compares current wire and disk formats, and what commands
// print, with recorded ones.
package golden

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Line is a named encoding.
type Line struct {
	Name  string
	Bytes []byte
}

// Check compares lines with those of a file, each a name and bytes in hex, and
// returns the file's bytes for the caller to decode. With -args -update it
// rewrites the file first, which is allowed only until a release has written
// the format.
func Check(t *testing.T, path string, lines ...Line) [][]byte {
	t.Helper()
	var text strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&text, "%s %x\n", l.Name, l.Bytes)
	}

	if *update {
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	kept := strings.Split(strings.TrimSpace(string(file)), "\n")
	if len(kept) != len(lines) {
		t.Fatalf("%s has %d lines, want %d", path, len(kept), len(lines))
	}

	var out [][]byte
	for i, l := range lines {
		name, text, _ := strings.Cut(kept[i], " ")
		b, err := hex.DecodeString(text)
		if err != nil || name != l.Name {
			t.Fatalf("%s, line %d: have %s, %v, want %s", path, i+1, name, err, l.Name)
		}
		if !bytes.Equal(b, l.Bytes) {
			t.Errorf("%s differs from %s: nodes of other releases have to read it, see CONTRIBUTING.md", name, path)
		}
		out = append(out, b)
	}

	return out
}

// Transcript compares what commands print with what a file says. A command is a
// line of the file that begins with "$ "; what type returns for it follows.
// With -args -update it rewrites the file first.
func Transcript(t *testing.T, path string, typed func(command string) string) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	var updated strings.Builder
	for i, part := range strings.Split("\n"+string(file), "\n$ ") {
		if i == 0 {
			continue // what is before the first command is empty
		}
		command, want, _ := strings.Cut(strings.TrimSuffix(part, "\n")+"\n", "\n")
		got := typed(command)
		fmt.Fprintf(&updated, "$ %s\n%s", command, got)
		if got != want && !*update {
			t.Errorf("%s: got\n%swant\n%s", command, got, want)
		}
	}

	if *update {
		if err := os.WriteFile(path, []byte(updated.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
