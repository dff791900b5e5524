package persist

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// forgetPages must give up only memory inside the file's map, at every size of
// the file: memory past the map is not the file's and would silently become
// zeros.
func TestForgetPagesStaysInTheMap(t *testing.T) {
	src, clock := newTable(), newClock()
	c, _ := openLoaded(t, testConfig(t.TempDir(), src, clock.Now))
	all := sample(clock.Now(), 240_000)
	most := int64(0)
	for round := range 60 {
		for _, r := range all[round*4000 : (round+1)*4000] {
			src.set(r)
		}
		mustCheckpoint(t, c)
		begin := uint64(c.file.db.Info().Data)
		mapped := mappedAt(t, begin)
		if c.file.usedBytes.Load() > mapped {
			t.Fatalf("round %d: %d bytes would be forgotten, %d are mapped", round, c.file.usedBytes.Load(), mapped)
		}
		if info, err := c.file.handle.Stat(); err == nil {
			most = max(most, info.Size()-mapped)
		}
	}
	t.Logf("the file was up to %d bytes longer than its map", most)
	mustClose(t, c)
}

// mappedAt returns how many bytes of the file are mapped at address.
func mappedAt(t *testing.T, address uint64) int64 {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	expect.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x", &from, &to); n == 2 && from == address &&
			strings.Contains(line, countersFile) {
			return int64(to - from)
		}
	}
	t.Fatal("the file is not mapped where bbolt says")
	return 0
}
