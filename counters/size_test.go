package counters

import (
	"testing"
	"time"
	"unsafe"

	"github.com/rlnode/rlnode/algorithms"
)

// A Take of an existing counter reads one cache line of its shard, and no two
// shards share a cache line.
func TestShardsHaveTheirCacheLines(t *testing.T) {
	var s shard
	if end := unsafe.Offsetof(s.single) + unsafe.Sizeof(s.single.groups); end > 64 {
		t.Errorf("a Take reads the first %d bytes", end)
	}
	if size := unsafe.Sizeof(s); size%64 != 0 {
		t.Errorf("a shard has %d bytes", size)
	}
}

// A prefetch of what the processor's caches hold anyway costs more than it saves.
func TestPrefetchPaysOnceTheTableIsLarge(t *testing.T) {
	table := New(1_000_000)
	limit := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 10, Window: time.Minute}
	for n := range uint64(100_000) {
		if pays := table.PrefetchPays(); pays && n < 50_000 || !pays && n > 70_000 {
			t.Fatalf("with %d counters, PrefetchPays is %t", n, pays)
		}
		take(table, epoch, key(n), limit, 1)
	}
}
