package counters

import (
	"testing"
	"unsafe"
)

// What a Take of a counter that is there reads of a shard is one cache line, and no two shards share one.
func TestShardsHaveTheirCacheLines(t *testing.T) {
	var s shard
	if end := unsafe.Offsetof(s.one) + unsafe.Offsetof(s.one.bits) + unsafe.Sizeof(s.one.bits); end > 64 {
		t.Errorf("a Take reads the first %d bytes", end)
	}
	if size := unsafe.Sizeof(s); size%64 != 0 {
		t.Errorf("a shard has %d bytes", size)
	}
}
