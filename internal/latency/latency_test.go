package latency

import (
	"testing"
	"time"
)

func TestBucket(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		want int
	}{{-1, 0}, {0, 0}, {2500, 0}, {2501, 1}, {time.Millisecond, 8}, {time.Second, 14}, {time.Second + 1, 15}, {time.Hour, 15}} {
		if got := Bucket(c.d); got != c.want {
			t.Errorf("Bucket(%v): got %d, want %d", c.d, got, c.want)
		}
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
		if got := c.counts.Quantile(c.q); got != c.want {
			t.Errorf("%s, quantile %v: got %v, want %v", c.name, c.q, got, c.want)
		}
	}
}
