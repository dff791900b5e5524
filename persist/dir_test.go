package persist

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

func TestOpenDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	id, err := OpenDir(dir)
	expect.NoError(t, err)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory is %v, %v", info.Mode(), err)
	}
	again, err := OpenDir(dir)
	if err != nil || again != id || len(id.String()) != 32 {
		t.Errorf("have %v, %v, want %v", again, err, id)
	}
	other, err := OpenDir(t.TempDir())
	if err != nil || other == id {
		t.Errorf("two nodes have the identity %v (%v)", other, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files: %v", left)
	}
}

func TestOpenDirAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	ids := make([]ring.NodeID, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			var err error
			if ids[i], err = OpenDir(dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("identities %v and %v", id, ids[0])
		}
	}
}

func TestDamagedIdentity(t *testing.T) {
	tests := map[string]string{
		"empty":    "",
		"cut":      `{"version": 1, "id": "0123`,
		"version":  `{"version": 2, "id": "0123456789abcdef0123456789abcdef"}`,
		"short id": `{"version": 1, "id": "0123"}`,
		"zero id":  `{"version": 1, "id": "00000000000000000000000000000000"}`,
		"no id":    `{"version": 1}`,
		"large":    strings.Repeat(" ", maxIdentity) + "{}",
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, identityFile)
			expect.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			if _, err := OpenDir(dir); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), file) {
				t.Errorf("have %v, want ErrCorrupt and the file's name", err)
			}
		})
	}
}

func TestNoDirectory(t *testing.T) {
	if _, err := OpenDir(""); err == nil {
		t.Error("an empty path was accepted")
	}
	file := filepath.Join(t.TempDir(), "f")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, filepath.Join(file, "below")} {
		if _, err := OpenDir(path); err == nil {
			t.Errorf("%s was accepted", path)
		}
	}
}
