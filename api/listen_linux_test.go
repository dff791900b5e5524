package api

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rlnode/rlnode/internal/expect"
)

// The bounds of a door's listener hold for the connections that it accepts.
// Those of Multipath TCP would not inherit them.
func TestListen_BoundsWhatWaits(t *testing.T) {
	t.Parallel()
	ln, err := Listen("127.0.0.1:0")
	expect.NoError(t, err)
	defer ln.Close()
	caller, err := net.Dial("tcp", ln.Addr().String())
	expect.NoError(t, err)
	defer caller.Close()
	accepted, err := ln.Accept()
	expect.NoError(t, err)
	defer accepted.Close()

	raw, err := accepted.(*net.TCPConn).SyscallConn()
	expect.NoError(t, err)
	for option, want := range map[int]int{unix.TCP_NOTSENT_LOWAT: sendBuffer, unix.TCP_WINDOW_CLAMP: receiveBuffer} {
		err = raw.Control(func(fd uintptr) {
			have, failed := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option)
			if failed != nil || have != want {
				t.Errorf("option %d is %d, %v, want %d", option, have, failed, want)
			}
		})
		expect.NoError(t, err)
	}
}
