package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestVitals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, size := range map[string]int{"a": 1000, "sub/b": 234} {
		path := filepath.Join(dir, name)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		expect.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
	}
	have := (&vitals{dir: dir, maxMemory: 7}).read()
	if have.Disk != 1234 || have.MaxMemory != 7 || have.Memory < 1<<20 || have.DiskFree <= 0 {
		t.Errorf("have %+v, want 1234 bytes on disk of a process with some memory", have)
	}
	if have := (&vitals{}).read(); have.Disk != 0 || have.DiskFree != 0 || have.Memory == 0 {
		t.Errorf("without a directory: have %+v", have)
	}
}
