package limiter

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestMoveUpKeepsPlaces: nobody goes on later because another one leaves, each
// learns when it goes on instead, and the places of those that wait are the
// earliest.
func TestMoveUpKeepsPlaces(t *testing.T) {
	l := open(t, "rules: []")
	r := &l.waitingRoom
	random, now := rand.New(rand.NewPCG(1, 2)), time.Now()
	proceedAt := map[*Waiter]time.Time{} // as each was told
	var all []*Waiter
	for i := range 200 {
		var w *Waiter
		place := &QueuePlace{limiter: l, kind: []string{"a", "b"}[i%2],
			ProceedAt: now.Add(time.Duration(i/2+1) * time.Hour)}
		w = place.Wait(func(at time.Time) {
			if !at.Before(proceedAt[w]) {
				t.Errorf("moved from %v to %v", proceedAt[w], at)
			}
			proceedAt[w] = at
		})
		proceedAt[w] = place.ProceedAt
		all = append(all, w)
	}

	given := 0
	for len(all) > 20 {
		var left []*QueuePlace
		for range 1 + random.IntN(10) {
			i := random.IntN(len(all))
			r.remove(all[i])
			left = append(left, all[i].place)
			all = slices.Delete(all, i, i+1)
		}
		given += len(r.fill(left))
		for _, w := range all {
			if !proceedAt[w].Equal(w.place.ProceedAt) {
				t.Fatalf("one that has the place of %v was told %v", w.place.ProceedAt, proceedAt[w])
			}
		}
	}

	if want := 200 - len(all); given != want {
		t.Errorf("got %d places that nobody needs, want %d", given, want)
	}
	for _, kind := range []string{"a", "b"} {
		var list []time.Time
		for _, w := range all {
			if w.place.kind == kind {
				list = append(list, w.place.ProceedAt)
			}
		}
		slices.SortFunc(list, time.Time.Compare)
		for i, at := range list {
			if want := now.Add(time.Duration(i+1) * time.Hour); !at.Equal(want) {
				t.Errorf("%s: place %d is at %v, want %v", kind, i, at.Sub(now), want.Sub(now))
			}
		}
		for _, w := range all {
			if w.place.kind == kind {
				w.Proceed()
			}
		}
	}
	if len(r.waiting) > 0 {
		t.Errorf("got %v that wait, want none", r.waiting)
	}
}
