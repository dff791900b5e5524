package api

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// Many are asked at the same time, but no more than some, and one after another
// where there is no room.
func TestAskAll(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		capacity   int64
		n, atOnce  int64
		charged    int64
		stopsAfter int
	}{
		{1 << 20, 100, AsksAtOnce, (AsksAtOnce - 1) * askMemory, 100},
		{1 << 20, 3, 3, 2 * askMemory, 100},
		{1 << 20, 1, 1, 0, 100},
		{1 << 20, 0, 0, 0, 100},
		{askMemory, 100, 1, 0, 100},
		{askMemory, 100, 1, 0, 5},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &Budget{Capacity: test.capacity}
			var now, most, all, charged atomic.Int64
			b.AskAll(int(test.n), func(i int) bool {
				all.Add(1)
				most.Store(max(most.Load(), now.Add(1)))
				charged.Store(b.Used())
				time.Sleep(time.Second)
				now.Add(-1)
				return i+1 < test.stopsAfter
			})
			expect.Equal(t, most.Load(), test.atOnce, "%+v: at once", test)
			expect.Equal(t, all.Load(), min(test.n, int64(test.stopsAfter)), "%+v: in all", test)
			expect.Equal(t, charged.Load(), test.charged, "%+v: bytes", test)
			expect.Equal(t, b.Used(), 0, "%+v: bytes afterwards", test)
		})
	}
}

// A panic while others are asked is the caller's.
func TestAskAllPanics(t *testing.T) {
	t.Parallel()
	b := &Budget{}
	defer func() {
		if v := recover(); v == nil {
			t.Error("the caller does not panic")
		}
		expect.Equal(t, b.Used(), 0, "bytes afterwards")
	}()
	b.AskAll(20, func(i int) bool { panic(i) })
}
