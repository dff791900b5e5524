//go:build race

package rawconn

import "syscall"

// The race detector only knows the calls of package syscall: what was written
// before a write happened before what was read.

func read(fd uintptr, b []byte) (int, syscall.Errno)  { return split(syscall.Read(int(fd), b)) }
func write(fd uintptr, b []byte) (int, syscall.Errno) { return split(syscall.Write(int(fd), b)) }

func split(n int, err error) (int, syscall.Errno) {
	errno, _ := err.(syscall.Errno)
	return n, errno
}
