//go:build race

package rawconn

import "syscall"

// The race detector knows only the calls of package syscall. From these it
// learns that what precedes a write happened before what follows the read.

func read(fd uintptr, b []byte) (int, syscall.Errno)  { return split(syscall.Read(int(fd), b)) }
func write(fd uintptr, b []byte) (int, syscall.Errno) { return split(syscall.Write(int(fd), b)) }

func split(n int, err error) (int, syscall.Errno) {
	errno, _ := err.(syscall.Errno)
	return n, errno
}
