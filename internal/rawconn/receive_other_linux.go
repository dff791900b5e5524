//go:build race || !(amd64 || arm64)

package rawconn

import "syscall"

// reportMore reports false: receive is not to be called.
func reportMore(syscall.RawConn) bool { return false }

func receive(fd uintptr, b []byte) (n int, more bool, errno syscall.Errno) {
	n, errno = read(fd, b)
	return n, true, errno
}
