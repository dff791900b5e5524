//go:build !linux

package persist

import "os"

// FreeSpace is unknown here; writes fail when there is no space.
func FreeSpace(string) (free int64, ok bool) { return 0, false }

// syncData waits until the file is on disk.
func syncData(f *os.File) error { return f.Sync() }
