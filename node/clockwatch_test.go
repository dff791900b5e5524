package node

import (
	"testing"
	"time"
)

func TestClockWatch(t *testing.T) {
	const planned = 500 * time.Millisecond
	for _, tt := range []struct {
		name             string
		wall, boottime   time.Duration // that pass between two looks
		standstill, step time.Duration
	}{
		{"nothing happened", planned, planned, 0, 0},
		{"a busy machine", time.Second, time.Second, 0, 0},
		{"a clock that drifts", planned + 10*time.Millisecond, planned, 0, 0},
		{"stopped for 5 s", 5 * time.Second, 5 * time.Second, 4500 * time.Millisecond, 0},
		{"set forward by an hour", planned + time.Hour, planned, 0, time.Hour},
		{"set back by 2 s", planned - 2*time.Second, planned, 0, -2 * time.Second},
		{"paused with its clocks for 5 s, and set since", planned + 5*time.Second, planned, 0, 5 * time.Second},
		{"stopped for 5 s, and set back by 3 s meanwhile", 2 * time.Second, 5 * time.Second,
			4500 * time.Millisecond, -3 * time.Second},
	} {
		w := clockWatch{}
		begin := time.Now()
		if standstill, step := w.look(begin, time.Hour, planned); standstill != 0 || step != 0 {
			t.Errorf("the first look finds %v and %v", standstill, step)
		}
		standstill, step := w.look(begin.Add(tt.wall), time.Hour+tt.boottime, planned)
		if standstill != tt.standstill || step != tt.step {
			t.Errorf("%s: have %v and %v, want %v and %v", tt.name, standstill, step, tt.standstill, tt.step)
		}
	}
}
