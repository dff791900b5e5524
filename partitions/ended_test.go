package partitions

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/agreement"
	"github.com/rlnode/rlnode/ring"
)

// TestTheEndedAreAsked: a node that is ended though it lives, since its disk hangs, gives what it has to who goes on without a
// whole copy. It does not even know that it was ended.
func TestTheEndedAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b, c, d := f.add(), f.add(), f.add(), f.add()
		f.bring(a, b, c, d)
		f.ring(a, b, c, d)
		f.settle()
		const keys, hits = 300, 20
		for i := range keys * hits {
			if _, ok, err := f.take(b, keyOf(i%keys)); err != nil || !ok {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		// The owner applies nothing more. Its standby dies, and another one takes its place; the owner does not know that.
		a.lag.Store(int64(time.Hour))
		f.agree(agreement.Empty{})
		c.kill()
		f.end(c)
		time.Sleep(5 * time.Second)
		f.end(a)
		f.eventually("all partitions have owners", func() bool {
			for p := range ring.Partitions {
				if !b.table.IsOpen(p) && !d.table.IsOpen(p) {
					return false
				}
			}
			return true
		})
		lost := 0
		for i := range keys {
			if have := f.used(keyOf(i)); have < hits {
				lost++
				t.Logf("key %d: %d of %d", i, have, hits)
			}
		}
		if lost > 0 {
			t.Errorf("%d of %d subjects have forgotten hits", lost, keys)
		}
	})
}
