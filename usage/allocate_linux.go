package usage

import (
	"errors"
	"os"
	"syscall"
)

// allocate gives a file blocks up to size: a mapping that is written to where the disk has no room would end the
// process.
func allocate(f *os.File, from, size int64) error {
	for {
		err := syscall.Fallocate(int(f.Fd()), 0, from, size-from)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
			return writeZeros(f, from, size)
		}
		return err
	}
}
