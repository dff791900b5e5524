//go:build unix

package counters

import (
	"syscall"
	"unsafe"
)

// allocate returns n zeroed groups outside of the collected heap: the collector neither scans them nor counts
// them when it decides how much garbage may pile up before the next cycle. What is less than a page stays on the heap:
// where few counters are spread over all shards, a page for each would cost the processor more than the counters.
func allocate(n int) []group {
	size := n * groupBytes
	if size < pageBytes {
		return make([]group, n)
	}
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return make([]group, n) // out of mappings: the heap will do
	}
	return unsafe.Slice((*group)(unsafe.Pointer(&b[0])), n)
}

// release gives groups back. Munmap refuses what it did not map, which then is the collector's.
func release(g []group) {
	if len(g) == 0 {
		return
	}
	size := len(g) * groupBytes
	_ = syscall.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(&g[0])), size))
}
