package counters

import (
	"syscall"
	"unsafe"
)

// madviseCollapse is MADV_COLLAPSE of Linux 6.1 and later.
const madviseCollapse = 25

// reserve maps memory of n zeroed bytes, which begin at a large page. They take no memory before they are used. The area is nil
// if the system refuses.
func reserve(n int) (mapped, area []byte) {
	b, err := syscall.Mmap(-1, 0, n+largePage, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		return nil, nil
	}
	skip := int(-uintptr(unsafe.Pointer(&b[0])) % largePage)
	return b, b[skip : skip+n]
}

// unreserve unmaps what reserve has mapped.
func unreserve(mapped []byte) { _ = syscall.Munmap(mapped) }

// discard zeroes whole pages and gives their memory back to the system.
func discard(pages []byte) {
	if syscall.Madvise(pages, syscall.MADV_DONTNEED) != nil {
		clear(pages) // some are locked
	}
}

// enlarge moves the contents of a stretch the size of a large page to one. It returns false if the system has none to spare, or
// can't do that.
func enlarge(stretch []byte) bool { return syscall.Madvise(stretch, madviseCollapse) == nil }
