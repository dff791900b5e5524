//go:build !linux

package counters

// Elsewhere, all memory is on the heap.

func reserve(int) (mapped, area []byte) { return nil, nil }
func makeUsable([]byte) bool            { return false }
func unreserve([]byte)                  {}
func discard([]byte)                    {}
func enlarge([]byte) bool               { return false }
