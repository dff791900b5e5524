//go:build unix

package counters

import (
	"syscall"
	"unsafe"
)

// allocate returns n zeroed groups outside the collected heap. The collector neither scans them nor counts them when it
// decides how much garbage may pile up before the next cycle. Allocations of less than a page stay on the heap: with few
// counters spread over all shards, a page for each shard would cost the processor more than the counters do.
func allocate(n int) []group {
	size := n * groupBytes
	if size < pageBytes {
		return make([]group, n)
	}
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return make([]group, n) // out of mappings: fall back to the heap
	}
	return unsafe.Slice((*group)(unsafe.Pointer(&b[0])), n)
}

// release unmaps groups. Munmap refuses memory that it did not map; the collector frees that.
func release(g []group) {
	if len(g) == 0 {
		return
	}
	size := len(g) * groupBytes
	_ = syscall.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(&g[0])), size))
}
