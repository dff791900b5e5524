package limiter

import (
	"testing"
	"testing/synctest"
	"time"
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
	tests := []struct {
		name    string
		want    int64 // the wall clock's lead on the steady one
		elapsed int64
		have    int64 // the offset afterwards
	}{
		{"set forward: at once", 3600 * s, s, 3600 * s},
		{"set back by an hour: slowly", 0, 64 * s, 3599 * s},
		{"and on", 0, 3598 * 64 * s, s},
		{"until it is in line", 0, 64 * s, 0},
		{"not past it", 0, 64 * s, 0},
		{"jitter back", -1, s, -1},
	}
	for _, tt := range tests {
		c.follow(tt.want, tt.elapsed)
		if c.offset.Load() != tt.have {
			t.Errorf("%s: have %d, want %d", tt.name, c.offset.Load(), tt.have)
		}
	}
}
