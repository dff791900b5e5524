package api

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// boundSocket bounds the buffers of the connections that a listener accepts,
// which inherit these options. Unlike SO_SNDBUF and SO_RCVBUF, the options
// bound only the bytes that wait. The system still chooses how many are under
// way to a caller that reads. A sandbox that does not know the options has its
// own bounds.
func boundSocket(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, sendBuffer)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, receiveBuffer)
	})
}

// MaxFiles returns how many files the process may have open. Package main has
// already raised that limit.
func MaxFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return assumedFiles
	}
	return int(min(limit.Cur, 1<<30))
}

// HasHungUp reports whether c's caller has closed the connection, or at least
// its sending side of it.
func (c *Connection) HasHungUp() bool {
	fd := c.Descriptor()
	poll := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(poll[:], 0)
	return fd >= 0 && err == nil && n > 0
}
