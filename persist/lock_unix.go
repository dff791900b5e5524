//go:build unix

package persist

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// lockFile takes bbolt's lock on an open file. It waits up to timeout for
// another process to release it. Closing the file releases the lock.
func lockFile(f *os.File, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return err
		case time.Now().After(deadline):
			return ErrInUse
		}
		time.Sleep(lockRetry)
	}
}
