//go:build unix

package counters

import (
	"syscall"
	"unsafe"
)

// allocate returns n zeroed groups outside the garbage-collected heap. The collector neither scans them nor counts them when
// it decides when to start the next cycle. Allocations of less than a page stay on the heap: with few counters spread over
// all shards, a page per shard would cost more processor time than the counters do.
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

// release unmaps groups. Munmap rejects memory that Mmap did not return; the collector frees that.
func release(g []group) {
	if len(g) == 0 {
		return
	}
	size := len(g) * groupBytes
	_ = syscall.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(&g[0])), size))
}
