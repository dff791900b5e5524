//go:build amd64 || arm64

package counters

// prefetch begins to load the first cache line of s, and the six cache lines of a group.
//
//go:noescape
func prefetch(s *shard, group uintptr)
