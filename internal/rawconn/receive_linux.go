//go:build !race && (amd64 || arm64)

package rawconn

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reportMore asks the system to tell, with the bytes that it delivers, how many
// others have arrived. It reports false if the system can't.
func reportMore(raw syscall.RawConn) bool {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_INQ, 1)
	})
	return err == nil && failed == nil
}

// inputQueue is the message that the system adds to the bytes that it delivers.
type inputQueue struct {
	syscall.Cmsghdr
	left int32 // how many bytes have not been read; at least 1 after the end of the stream
}

// receive reads like read. It also reports whether more may have arrived, the end of the stream included.
func receive(fd uintptr, b []byte) (n int, more bool, errno syscall.Errno) {
	var queue inputQueue
	into := syscall.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))}
	message := syscall.Msghdr{
		Iov: &into, Iovlen: 1,
		Control: (*byte)(unsafe.Pointer(&queue)), Controllen: uint64(unsafe.Sizeof(queue)),
	}

	moved, _, errno := syscall.RawSyscall(syscall.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&message)), 0)
	known := queue.Level == unix.IPPROTO_TCP && queue.Type == unix.TCP_CM_INQ

	return int(moved), !known || queue.left != 0, errno
}
