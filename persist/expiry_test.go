package persist

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

func TestBucketFor(t *testing.T) {
	const now = 1_000_000_000
	tests := []struct {
		name string
		kind algorithms.Kind
		have int64 // seconds from now
		want int64
	}{
		{"a window's end and a bit", algorithms.FixedWindow, 60, now + 64},
		{"a long window is as exact", algorithms.SlidingWindow, 86_400, now + 86_416},
		{"a bucket that is soon fresh", algorithms.TokenBucket, 3, now + 16},
		{"a quarter of an hour", algorithms.TokenBucket, 900, 1_000_001_024},
		{"expired", algorithms.LeakyBucket, -50, now + 16},
		{"nonsense", algorithms.SlidingLog, 1 << 62, 1<<40 + 1<<38},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if have := bucketFor(tt.kind, now+tt.have, now); have != tt.want {
				t.Errorf("have now%+d, want now%+d", have-now, tt.want-now)
			}
		})
	}
}

// A counter in constant use leaves few copies: the buckets alive at any time that its moving expiry went through.
func TestFewCopies(t *testing.T) {
	for _, life := range []int64{1, 10, 60, 300, 3600, 86_400, 30 * 86_400} {
		alive, most := map[int64]bool{}, 0
		for now := int64(1_000_000_000); now < 1_000_000_000+3*life; now += max(1, life/500) {
			alive[bucketFor(algorithms.TokenBucket, now+life, now)] = true
			for e := range alive {
				if e <= now {
					delete(alive, e)
				}
			}
			most = max(most, len(alive))
		}
		if most > 7 {
			t.Errorf("a life of %d s leaves %d copies", life, most)
		}
	}
}

func TestBucketForNeverEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := algorithms.Kind(rapid.IntRange(0, 4).Draw(t, "kind"))
		now := rapid.Int64Range(0, 1<<34).Draw(t, "now")
		expiry := now + rapid.Int64Range(0, 1<<35).Draw(t, "life")
		e := bucketFor(kind, expiry, now)
		if e < expiry || e%grain != 0 || e > expiry+grain+2+(expiry-now)/2+1 {
			t.Fatalf("bucket %d for expiry %d at %d", e, expiry, now)
		}
	})
}

func TestFilter(t *testing.T) {
	var f filter
	if f.has(counters.Key{}) {
		t.Error("an empty filter has something")
	}
	key := func(i int) counters.Key { return counters.Key{Hi: mix(uint64(i) >> 2), Lo: mix(uint64(i) + 1<<50)} }
	const n = 100_000
	for i := range n {
		f.add(key(i))
	}
	wrong, words := 0, 0
	for i := range n {
		if !f.has(key(i)) {
			t.Fatalf("counter %d is forgotten", i)
		}
		if f.has(key(n + i)) {
			wrong++
		}
	}
	for _, l := range f.layers {
		words += len(l)
	}
	if wrong > n/30 || words*8 > 8*n {
		t.Errorf("%d of %d wrong, %d bytes", wrong, n, words*8)
	}
	room := f.room
	for i := range n {
		f.add(key(i))
	}
	if f.room != room {
		t.Error("counters that were there took room again")
	}
}

func TestTooManyBuckets(t *testing.T) {
	var x expiries
	for i := range int64(maxBuckets) {
		x = x.add(i * 10 * grain)
	}
	for have, want := range map[int64]int64{
		20 * grain:                    20 * grain,
		21 * grain:                    30 * grain,
		10 * (maxBuckets + 5) * grain: 10 * (maxBuckets + 5) * grain,
	} {
		if got := x.choose(have); got != want {
			t.Errorf("bucket %d: have %d, want %d", have, got, want)
		}
	}
}
