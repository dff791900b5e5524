package limiter

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// A node that did not run for a while asks first: it waits until its paths are
// there, and decides alone only once they have really failed, or the check's
// time is over.
func TestANodeThatStalledAsksFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		unsureFor, brokenFor time.Duration
		by                   DecidedBy
		most                 time.Duration
	}{
		"the path comes back":       {time.Second, 300 * time.Millisecond, ByForward, 310 * time.Millisecond},
		"the path has failed":       {200 * time.Millisecond, time.Hour, ByFallback, 210 * time.Millisecond},
		"nothing is known for long": {time.Hour, time.Hour, ByFallback, checkTimeout},
		"not stalled":               {0, time.Hour, ByFallback, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 3,
					"rules:\n  - {name: r, key: [k], limits: [{limit: 50, per: 1h, algorithm: fixed-window}]}")
				n, key := w.nodes[0], w.keyOf("r", w.nodes[1], w.nodes[2])
				cut := func(yes bool) {
					for _, other := range w.nodes[1:] {
						w.setCut(n, other, yes)
					}
				}
				cut(true)
				began := time.Now()
				unsure := func(to ring.NodeID) bool { return time.Since(began) < tt.unsureFor && !n.Reachable(to) }
				n.unsure.Store(&unsure)
				time.AfterFunc(tt.brokenFor, func() { cut(false) })

				a := n.check(byKey("r", key))
				if took := time.Since(began); a.DecidedBy != tt.by || took > tt.most {
					t.Errorf("decided by %s after %v, want by %s after %v at most", a.DecidedBy, took, tt.by, tt.most)
				}
			})
		})
	}
}
