package localcache

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

// G4: the shares of all nodes add up to the limit, in whole units that differ by at most one.
func TestG4_SharesAddUp(t *testing.T) {
	for _, amount := range []int64{0, 1, 2, 3, 7, 100, 1000, 1<<53 - 1} {
		for nodes := 1; nodes <= 60; nodes++ {
			sum, least, most := int64(0), amount, int64(0)
			for rank := range nodes {
				s := Share(amount, nodes, rank)
				sum, least, most = sum+s, min(least, s), max(most, s)
			}
			if sum != amount || most-least > 1 {
				t.Fatalf("%d among %d: the shares add up to %d, from %d to %d", amount, nodes, sum, least, most)
			}
		}
	}
	for _, tt := range []struct{ nodes, rank int }{{0, 0}, {0, -1}, {3, -1}, {3, 3}} {
		expect.Equal(t, Share(100, tt.nodes, tt.rank), 0, "rank %d of %d", tt.rank, tt.nodes)
	}
}

func TestWithoutShare(t *testing.T) {
	now := algorithms.At(time.Date(2026, 1, 1, 12, 0, 20, 0, time.UTC))
	tests := []struct {
		name  string
		limit algorithms.Limit
		cost  int64
		want  algorithms.Decision
	}{
		{"until the window ends",
			algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 2, Window: time.Minute}, 1,
			algorithms.Decision{RetryAfter: 40 * time.Second}},
		{"a calendar's window",
			algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 2, Window: time.Hour,
				Calendar: algorithms.NewCalendar(algorithms.Hour, time.UTC)},
			1,
			algorithms.Decision{RetryAfter: 59*time.Minute + 40*time.Second}},
		{"a bucket's unit",
			algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 2, Burst: 2, Window: time.Minute}, 1,
			algorithms.Decision{RetryAfter: 30 * time.Second}},
		{"a log's window",
			algorithms.Limit{Kind: algorithms.SlidingLog, Amount: 2, Window: time.Minute}, 1,
			algorithms.Decision{RetryAfter: time.Minute}},
		{"never", algorithms.Limit{Kind: algorithms.SlidingLog, Amount: 2, Window: time.Minute}, 3,
			algorithms.Decision{RetryAfter: algorithms.Never}},
		{"nothing asked",
			algorithms.Limit{Kind: algorithms.SlidingLog, Amount: 2, Window: time.Minute}, 0,
			algorithms.Decision{Allowed: true}},
	}
	for _, tt := range tests {
		if _, ok := ShareOf(&tt.limit, 3, 2); ok {
			t.Errorf("%s: the third of three has a share of 2", tt.name)
		}
		expect.Equal(t, RefuseWithoutCounter(&tt.limit, now, tt.cost), tt.want, "%s", tt.name)
	}
}

func TestCounters(t *testing.T) {
	c := NewFallbackTable(0)
	defer c.Close()
	expect.Equal(t, c.Stats().Max, minFallbackCounters, "a bound")
}
