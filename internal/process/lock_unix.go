//go:build unix

package process

import (
	"os"
	"syscall"
)

// lock waits until no other process has f locked, and locks it until it is closed.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX) }
