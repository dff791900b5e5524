package persist

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestNewFileAppearsComplete: a process may be killed at any moment while it
// creates a file, so nobody must ever see a part of one under its name.
func TestNewFileAppearsComplete(t *testing.T) {
	dir := t.TempDir()
	var watched sync.WaitGroup
	for i := range 50 {
		path := filepath.Join(dir, strconv.Itoa(i)+".db")
		watched.Go(func() {
			for t.Context().Err() == nil {
				info, err := os.Stat(path)
				if err != nil {
					continue // not yet
				}
				if want := int64(4 * os.Getpagesize()); info.Size() < want {
					t.Errorf("file %d appeared with %d bytes, want at least %d", i, info.Size(), want)
				}
				return
			}
		})

		f, err := openFile(path, bolt.Options{}, anyMeta)
		expect.NoError(t, err)
		watched.Wait()
		expect.NoError(t, f.close())
	}
}
