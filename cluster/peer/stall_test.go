package peer

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A process whose connections break, perhaps because it did not run for a while,
// does not take its nodes for lost before it has looked for them. Without a
// stall, it looks at once.
func TestPathsAreUnsureAfterALoss(t *testing.T) {
	for name, tt := range map[string]struct{ stall, gone, back bool }{
		"stalled":                       {stall: true, back: true},
		"not stalled":                   {back: true},
		"stalled, and the node is gone": {stall: true, gone: true},
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
					w.net.Crash(b.ip)
					w.net.Host(b.ip) // the machine is up, and refuses connections
				} else {
					b.closeSockets(func(*socket) bool { return true })
				}
				until := time.Now().Add(time.Millisecond)
				for a.Reachable(b.id) && time.Now().Before(until) {
					time.Sleep(time.Microsecond)
				}
				// That nobody listens at the address may be known by now.
				if !a.Reachable(b.id) && !a.PathUnsure(b.id) && (tt.stall || !tt.gone) {
					t.Error("the node is taken for lost at once")
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
				if !tt.stall && took > 10*time.Millisecond {
					t.Errorf("without a stall, it took %v to know", took)
				}
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
