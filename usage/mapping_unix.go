//go:build unix

package usage

import (
	"os"
	"syscall"
)

// mapFile maps the first n bytes of a file, of which more may be there later; what is not there must not be touched.
func mapFile(f *os.File, n int64, writable bool) ([]byte, error) {
	protection := syscall.PROT_READ
	if writable {
		protection |= syscall.PROT_WRITE
	}
	return syscall.Mmap(int(f.Fd()), 0, int(n), protection, syscall.MAP_SHARED)
}

// mapMemory is n bytes of memory that is used only where it is touched, outside of the collected heap.
func mapMemory(n int64) ([]byte, error) {
	return syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
}

func unmap(b []byte) {
	if len(b) > 0 {
		_ = syscall.Munmap(b) // what is no mapping stays
	}
}
