package node

import "time"

const (
	// longStandstill is how long a process must not have run for its log to say so.
	longStandstill = 2 * time.Second
	// largeStep is how far the system's wall clock must have been set for the log to say so.
	largeStep = time.Second
)

// clockWatch notices, after the fact, what clocks tell about the process and its machine.
type clockWatch struct {
	looked   bool
	wall     time.Time     // without its monotonic reading
	boottime time.Duration // see environment.boottime
}

// look compares the clocks with those of the last call, which should be planned
// ago. standstill is how long the process did not run in between. step is by
// how much the wall clock was set forward, or back if it is negative. Either is
// 0 if it is small.
func (w *clockWatch) look(wall time.Time, boottime, planned time.Duration) (standstill, step time.Duration) {
	before := *w
	*w = clockWatch{looked: true, wall: wall.Round(0), boottime: boottime}
	if !before.looked {
		return 0, 0
	}

	passed := boottime - before.boottime
	standstill = passed - planned
	if standstill < longStandstill {
		standstill = 0
	}

	step = w.wall.Sub(before.wall) - passed
	if step.Abs() < largeStep {
		step = 0
	}
	return standstill, step
}

// watchClocks logs standstills and steps of the clock, because an operator may
// later ask why a window ended early or late. It must be called at intervals of
// about planned.
func (n *Node) watchClocks(w *clockWatch, planned time.Duration) {
	standstill, step := w.look(time.Now(), n.env.boottime(), planned)
	if standstill > 0 {
		n.log.Warn("this process did not run: it was stopped, or its machine was suspended or overloaded", "for", standstill.Round(time.Millisecond))
	}
	if step != 0 {
		n.log.Warn("the system's clock was set, or this machine was paused together with its clock: windows of the wall clock end early or late",
			"by", step.Round(time.Millisecond))
	}
}
