package persist

import (
	"os"
	"syscall"
)

// FreeSpace returns how many bytes are free for this user on dir's file system.
func FreeSpace(dir string) (free int64, ok bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * s.Bsize, true
}

// syncData waits until the file's content is on disk. It does not wait for metadata such as times.
func syncData(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }
