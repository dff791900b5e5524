package counters

import (
	"testing"
	"unsafe"
)

// A Take of an existing counter reads one cache line of its shard, and no two shards share a cache line.
func TestShardsHaveTheirCacheLines(t *testing.T) {
	var s shard
	if end := unsafe.Offsetof(s.single) + unsafe.Offsetof(s.single.prefixBits) + unsafe.Sizeof(s.single.prefixBits); end > 64 {
		t.Errorf("a Take reads the first %d bytes", end)
	}
	if size := unsafe.Sizeof(s); size%64 != 0 {
		t.Errorf("a shard has %d bytes", size)
	}
}
