package node

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/persist"
)

// vitalsAge bounds the age of the disk's figures, which take a system call for
// each file to read.
const vitalsAge = 5 * time.Second

// vitals reads how much this node takes of its machine.
type vitals struct {
	dir       string // empty: everything is in memory
	maxMemory int64

	mu   sync.Mutex // guards the rest
	at   time.Time  // when the disk was read
	disk int64
	free int64
}

// read returns what the node takes, except for its counters.
func (v *vitals) read() limiter.Vitals {
	now := limiter.Vitals{Memory: memoryInUse(), MaxMemory: v.maxMemory}
	if v.dir == "" {
		return now
	}

	v.mu.Lock()
	defer v.mu.Unlock()

	if v.at.IsZero() || time.Since(v.at) > vitalsAge {
		v.at = time.Now()
		v.disk = sizeOf(v.dir)
		v.free, _ = persist.FreeSpace(v.dir)
	}

	now.Disk = v.disk
	now.DiskFree = v.free
	return now
}

// memoryInUse returns how many bytes of memory the process has. Where the
// system does not say so, it returns what Go's runtime has taken from the
// system and not given back.
func memoryInUse() int64 {
	var all, resident int64 // in pages
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if _, err := fmt.Sscan(string(text), &all, &resident); err == nil {
			return resident * int64(os.Getpagesize())
		}
	}

	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}

// sizeOf returns the size of the files in a directory. Files that vanish meanwhile don't count.
func sizeOf(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}
