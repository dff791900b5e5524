package peer

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A process that did not run for a while does not take its nodes for lost
// before it has looked for them. Without a stall, or once a path has really
// failed, it does.
func TestPathsAreUnsureAfterAStall(t *testing.T) {
	for name, tt := range map[string]struct {
		stall, gone  bool
		unsure, back bool
	}{
		"stalled":                       {stall: true, unsure: true, back: true},
		"not stalled":                   {back: true},
		"stalled, and the node is gone": {stall: true, gone: true, unsure: true},
		"the node is gone":              {gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			onVirtualTime(t, func(t *testing.T, w *world) {
				began := time.Now()
				var stalled atomic.Int64 // nanoseconds; a node reads it while the test stalls
				a := w.node(1, func(c *Config, _ *node) {
					c.Boottime = func() time.Duration { return time.Since(began) + time.Duration(stalled.Load()) + 1 }
				})
				b := w.node(2)
				a.knows(b)
				b.knows(a)
				time.Sleep(10 * time.Second)
				if !a.Reachable(b.id) || a.PathUnsure(b.id) {
					t.Fatal("not connected")
				}

				// The test goes on right after a pulse. The next one is then at least one
				// interval away.
				<-a.Pulse()
				synctest.Wait()

				if tt.stall {
					stalled.Add(int64(12 * time.Second))
				}
				if tt.gone {
					go b.Peers.Close() // it waits until the calls have ended, for longer than a pulse
				} else {
					b.closeSockets(func(*socket) bool { return true })
				}
				until := time.Now().Add(time.Millisecond)
				for a.Reachable(b.id) && time.Now().Before(until) {
					time.Sleep(time.Microsecond)
				}
				if got := a.PathUnsure(b.id); !a.Reachable(b.id) && got != tt.unsure {
					t.Errorf("PathUnsure() = %v, want %v", got, tt.unsure)
				}

				asked := time.Now()
				for a.PathUnsure(b.id) {
					if time.Since(asked) > settleSilences*defaultSilence {
						t.Fatal("unsure for too long")
					}
					time.Sleep(time.Millisecond)
				}
				// The next pulse makes the link dial. It is at most one and a fifth intervals
				// after the last one.
				took := time.Since(asked)
				if tt.stall && tt.back && (!a.Reachable(b.id) || took > a.interval()*3/2) {
					t.Errorf("Reachable() = %v after %v, want true within %v", a.Reachable(b.id),
						took, a.interval()*3/2)
				}
				time.Sleep(2 * time.Second)
				if a.Reachable(b.id) != tt.back || a.PathUnsure(b.id) {
					t.Errorf("in the end, reachable: %v, unsure: %v", a.Reachable(b.id), a.PathUnsure(b.id))
				}
			})
		})
	}
}
