// Package pages gets memory from the system, in whole pages, outside the
// garbage-collected heap. On systems other than Linux it gets none: all memory
// is then on the heap.
package pages

// Large is the size of a large page on x86, and on ARM if a page has 4 KiB.
const Large = 2 << 20
