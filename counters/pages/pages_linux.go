package pages

import (
	"bytes"
	"os"
	"syscall"
	"unsafe"
)

// madviseCollapse is MADV_COLLAPSE of Linux 6.1 and later.
const madviseCollapse = 25

// Reserve maps addresses for n bytes. area begins at a large page; mapped is
// what Unreserve needs. No memory counts as used, even on a system that never
// promises more than it has, until MakeUsable. Both are nil if the system
// refuses.
func Reserve(n int) (mapped, area []byte) {
	b, err := syscall.Mmap(-1, 0, n+Large, syscall.PROT_NONE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		return nil, nil
	}
	skip := int(-uintptr(unsafe.Pointer(&b[0])) % Large)
	return b, b[skip : skip+n]
}

// MakeUsable makes pages of an area accessible, and returns false if the system
// refuses. They are zero, and take no memory before they are used.
func MakeUsable(pages []byte) bool {
	return syscall.Mprotect(pages, syscall.PROT_READ|syscall.PROT_WRITE) == nil
}

// Unreserve unmaps what Reserve has mapped.
func Unreserve(mapped []byte) { _ = syscall.Munmap(mapped) }

// Discard zeroes whole pages and gives their memory back to the system.
func Discard(pages []byte) {
	if syscall.Madvise(pages, syscall.MADV_DONTNEED) != nil {
		clear(pages) // some are locked
	}
}

// largePagesMode says which programs get large pages: [always], [madvise] or [never].
const largePagesMode = "/sys/kernel/mm/transparent_hugepage/enabled"

// Enlarge moves the contents of a stretch, which must be a large page's size
// and begin at one's address, to a large page. It returns false if the system
// has none to spare, can't do that, or is set to never use large pages. That
// setting must be read, because madvise alone would disregard it.
func Enlarge(stretch []byte) bool {
	mode, err := os.ReadFile(largePagesMode)
	if err != nil || bytes.Contains(mode, []byte("[never]")) {
		return false
	}
	return syscall.Madvise(stretch, madviseCollapse) == nil
}
