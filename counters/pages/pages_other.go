//go:build !linux

package pages

// Reserve reserves nothing: all memory is on the heap.
func Reserve(int) (mapped, area []byte) { return nil, nil }

// MakeUsable returns false.
func MakeUsable([]byte) bool { return false }

// Unreserve does nothing.
func Unreserve([]byte) {}

// Discard does nothing.
func Discard([]byte) {}

// Enlarge returns false.
func Enlarge([]byte) bool { return false }
