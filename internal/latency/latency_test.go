package latency

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestBucket(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		want int
	}{{-1, 0}, {0, 0}, {2500, 0}, {2501, 1}, {time.Millisecond, 8}, {time.Second,
		14}, {time.Second + 1, 15}, {time.Hour, 15}} {
		expect.Equal(t, Bucket(c.d), c.want, "Bucket(%v)", c.d)
	}
}

func TestQuantile(t *testing.T) {
	var none, half, late Counts
	half[0] = 50  // up to 2.5 µs
	half[8] = 50  // 0.5 to 1 ms
	late[15] = 10 // beyond a second
	for _, c := range []struct {
		name   string
		counts *Counts
		q      float64
		want   time.Duration
	}{
		{"none", &none, 0.99, 0},
		{"half", &half, 0.25, 1250},
		{"half", &half, 0.5, 2500},
		{"half", &half, 0.75, 750 * time.Microsecond},
		{"half", &half, 1, time.Millisecond},
		{"late", &late, 0.5, time.Second},
	} {
		expect.Equal(t, c.counts.Quantile(c.q), c.want, "%s, quantile %v", c.name, c.q)
	}
}
