package gossip

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// A second process with a node's ID counts only if its claim goes on for longer
// than gossip takes to notice that the first one is gone, which takes longer in
// a WAN pool. A claim that has ended is forgotten.
func TestTwinsPersist(t *testing.T) {
	for _, c := range []struct {
		wan  bool
		want time.Duration
	}{{false, 10 * time.Second}, {true, 40 * time.Second}} {
		config := Config{WAN: c.wan}
		config.ProbeInterval = map[bool]time.Duration{false: 500 * time.Millisecond, true: 2 * time.Second}[c.wan]
		patience := config.twinPatience()
		if patience != c.want || patience >= twinMemory {
			t.Errorf("WAN %v: got %v, want %v", c.wan, patience, c.want)
		}
		claims := secondClaims{}
		began := time.Now()
		for _, step := range []struct {
			after time.Duration
			want  bool
		}{{0, false}, {patience - 1, false}, {patience, true}, {twinMemory + 1, false}} {
			expect.Equal(t, claims.note("id", began.Add(step.after), patience), step.want,
				"WAN %v, after %v", c.wan, step.after)
		}
	}
}
