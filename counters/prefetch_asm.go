//go:build amd64 || arm64

package counters

// prefetchGroup begins to load the six cache lines from address on.
func prefetchGroup(address uintptr)
