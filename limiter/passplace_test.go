package limiter

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// waitingRoom is where callers at one node wait. It does what a door does with places that others have left.
type waitingRoom struct {
	mu     sync.Mutex
	places []*QueuePlace
}

// take lets the callers have the earliest places.
func (r *waitingRoom) take(list []*QueuePlace) (rest []*QueuePlace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	waiting := len(r.places)
	r.places = append(r.places, list...)
	slices.SortFunc(r.places, func(a, b *QueuePlace) int { return a.GoesOn.Compare(b.GoesOn) })
	rest = slices.Clone(r.places[waiting:])
	r.places = r.places[:waiting]
	return rest
}

// leave makes the i-th caller hang up.
func (r *waitingRoom) leave(i int) {
	r.mu.Lock()
	left := r.places[i]
	r.places = slices.Delete(r.places, i, i+1)
	r.mu.Unlock()
	PassOn(r.take([]*QueuePlace{left}))
}

// TestThoseBehindAtOtherNodesMoveUp: a place that a caller leaves goes to those that wait behind it, wherever they wait, and what is left
// in the end is the last place of the queue, which its owner has back.
func TestThoseBehindAtOtherNodesMoveUp(t *testing.T) {
	const rule = `rules:
  - {name: slow, key: [k], max_delay: 10h, limits: [{limit: 1, per: 1m, algorithm: leaky-bucket, burst: 1000}]}`
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, 3, rule)
			key := w.keyOf("slow", w.nodes[0], nil)
			rooms := make([]waitingRoom, len(w.nodes))
			for i, n := range w.nodes {
				n.UsePlaces(rooms[i].take)
			}
			time.Sleep(time.Minute)
			began := time.Now()
			q := byKey("slow", key)
			q.Waits = true
			w.nodes[0].check(q) // goes on at once
			for i := range 9 {
				a := w.nodes[i%3].check(q)
				p := a.QueuePlace()
				p.GoesOn = time.Now().Add(a.Delay())
				rooms[i%3].places = append(rooms[i%3].places, p)
			}
			minutes := func() (all []int) {
				for i := range rooms {
					for _, p := range rooms[i].places {
						all = append(all, int((p.GoesOn.Sub(began)+time.Second)/time.Minute))
					}
				}
				slices.Sort(all)
				return all
			}

			w.setCut(w.nodes[0], w.nodes[1], down)
			rooms[0].leave(0) // waits for the first minute, before callers at all nodes
			rooms[2].leave(1)
			w.setCut(w.nodes[0], w.nodes[1], false)
			synctest.Wait()
			w.calls.Wait()
			want := []int{1, 2, 3, 4, 5, 6, 7}
			expect.EqualSlices(t, minutes(), want, "cut off %v: got the places", down)
			last := w.nodes[1].check(Query{Rule: "slow", Key: []string{key}, ByKey: true, Waits: true})
			expect.Equal(t, (time.Since(began)+last.Delay()+time.Second)/time.Minute, 8, "cut off %v: the next caller goes on in minute", down)
		})
	}
}
