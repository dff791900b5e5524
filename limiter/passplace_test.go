package limiter

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// callers are those that wait at one node, each with its place, in the order of their coming.
type callers []*Waiter

// wait makes a caller wait in p.
func (c *callers) wait(p *QueuePlace) { *c = append(*c, p.Wait(func(time.Time) {})) }

// leave makes the i-th caller give up. Its place is passed on at once, rather
// than with others a moment later.
func (c *callers) leave(i int) {
	left := (*c)[i]
	*c = slices.Delete(*c, i, i+1)
	r := &left.limiter.waitingRoom
	r.mu.Lock()
	r.remove(left)
	r.vacated = append(r.vacated, left.place)
	r.mu.Unlock()
	left.limiter.moveUp()
}

// TestThoseBehindAtOtherNodesMoveUp: a place that a caller leaves goes to those
// that wait behind it, wherever they wait, and what is left in the end is the
// last place of the queue, which its owner has back.
func TestThoseBehindAtOtherNodesMoveUp(t *testing.T) {
	const rule = `rules:
  - {name: slow, key: [k], max_delay: 10h, limits: [{limit: 1, per: 1m, algorithm: leaky-bucket, burst: 1000}]}`
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, 3, rule)
			key := w.keyOf("slow", w.nodes[0], nil)
			waiting := make([]callers, len(w.nodes))
			time.Sleep(time.Minute)
			began := time.Now()
			q := byKey("slow", key)
			q.Waits = true
			w.nodes[0].check(q) // goes on at once
			for i := range 9 {
				a := w.nodes[i%3].check(q)
				p := a.QueuePlace()
				p.ProceedAt = time.Now().Add(a.Delay())
				waiting[i%3].wait(p)
			}
			minutes := func() (all []int) {
				for i := range waiting {
					for _, caller := range waiting[i] {
						all = append(all, int((caller.place.ProceedAt.Sub(began)+time.Second)/time.Minute))
					}
				}
				slices.Sort(all)
				return all
			}

			w.setCut(w.nodes[0], w.nodes[1], down)
			waiting[0].leave(0) // waits for the first minute, before callers at all nodes
			waiting[2].leave(1)
			w.setCut(w.nodes[0], w.nodes[1], false)
			// A place that could not be given back while the owner was cut off is given
			// back now.
			time.Sleep(500 * time.Millisecond)
			w.calls.Wait()
			want := []int{1, 2, 3, 4, 5, 6, 7}
			expect.EqualSlices(t, minutes(), want, "cut off %v: got the places", down)
			last := w.nodes[1].check(Query{Rule: "slow", Key: []string{key}, ByKey: true, Waits: true})
			expect.Equal(t, (time.Since(began)+last.Delay()+time.Second)/time.Minute, 8,
				"cut off %v: the next caller goes on in minute", down)
		})
	}
}
