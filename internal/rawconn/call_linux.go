//go:build !race

package rawconn

import (
	"syscall"
	"unsafe"
)

func read(fd uintptr, b []byte) (int, syscall.Errno)  { return call(syscall.SYS_READ, fd, b) }
func write(fd uintptr, b []byte) (int, syscall.Errno) { return call(syscall.SYS_WRITE, fd, b) }

// call makes a system call without the knowledge of the scheduler.
func call(number, fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}
