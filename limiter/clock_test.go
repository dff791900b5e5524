package limiter

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

func TestClockRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock()
		defer c.Close()
		first := c.Now()
		if first.Wall != time.Now().UnixNano() || first.Steady != first.Wall {
			t.Errorf("have %+v, want %d", first, time.Now().UnixNano())
		}
		time.Sleep(time.Hour)
		if now := c.Now(); now.Steady-first.Steady != int64(time.Hour) || now.Wall-first.Wall != int64(time.Hour) {
			t.Errorf("have %+v an hour after %+v", now, first)
		}
	})
}

func TestClockFollowsTheWall(t *testing.T) {
	const s = int64(time.Second)
	c := &Clock{start: time.Now()}
	c.slewed.Store(&algorithms.SlewedClock{})
	tests := []struct {
		name   string
		steady int64
		system int64 // the system's wall clock
		lead   int64 // how far the wall clock is ahead of the steady one, afterwards
	}{
		{"as it should be", s, s, 0},
		{"set forward: at once", 2 * s, 3602 * s, 3600 * s},
		{"set back by an hour: not at once", 3 * s, 3 * s, 3600 * s},
		{"but slowly", 67 * s, 67 * s, 3599 * s},
		{"the same after a long pause", (67 + 64*3598) * s, (67 + 64*3598) * s, s},
		{"until the two agree", 1e6 * s, 1e6 * s, 0},
		{"not past it", 2e6 * s, 2e6 * s, 0},
	}
	last := int64(0)
	for _, tt := range tests {
		before := c.slewed.Load().At(tt.steady)
		c.follow(tt.steady, tt.system)
		after := c.slewed.Load().At(tt.steady)
		expect.Equal(t, after-tt.steady, tt.lead, "%s: a lead", tt.name)
		if before < last || after < before {
			t.Errorf("%s: the clock went back, from %d to %d to %d", tt.name, last, before, after)
		}
		last = after
	}
}
