package limiter

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// A caller that gives up while it waits for its turn leaves its place in the
// queue to the callers that wait behind it. Each of them takes the place of the
// one ahead, so nobody goes on later than announced. The last place at this
// node then goes to callers that wait at other nodes, or back to the counters;
// see passplace.go.

// gatherPause is how long a node gathers the places that callers leave before
// other callers take them. After a fault, many callers give up at once.
const gatherPause = 2 * time.Millisecond

// Waiter is a caller of this node that waits for its turn, until Proceed or Leave
// is called, once.
type Waiter struct {
	limiter *Limiter
	place   *QueuePlace // guarded by waitingRoom.mu
	move    func(goesOn time.Time)
}

// waitingRoom is where the callers of this node wait.
type waitingRoom struct {
	mu      sync.Mutex                      // guards the rest
	waiting map[string]map[*Waiter]struct{} // by kind of place; no entry is empty
	vacated []*QueuePlace                   // places of callers that gave up; moveUp gives them to others
}

// Wait records that a caller waits at the place until qp.ProceedAt. Whenever the
// caller moves up, move is called with the time at which the caller goes on
// instead. move runs under a lock, so it must not block, nor call a method of a
// Waiter.
func (qp *QueuePlace) Wait(move func(proceedAt time.Time)) *Waiter {
	w := &Waiter{limiter: qp.limiter, place: qp, move: move}
	room := &w.limiter.waitingRoom
	room.mu.Lock()
	defer room.mu.Unlock()

	if room.waiting == nil {
		room.waiting = make(map[string]map[*Waiter]struct{})
	}
	if room.waiting[qp.kind] == nil {
		room.waiting[qp.kind] = make(map[*Waiter]struct{})
	}
	room.waiting[qp.kind][w] = struct{}{}
	return w
}

// Proceed ends the wait of a caller that goes on in its place, now or later.
func (w *Waiter) Proceed() {
	room := &w.limiter.waitingRoom
	room.mu.Lock()
	defer room.mu.Unlock()
	room.remove(w)
}

// Leave ends the wait of a caller that gave up. Others can have its place.
func (w *Waiter) Leave() {
	l := w.limiter
	room := &l.waitingRoom
	room.mu.Lock()
	room.remove(w)
	room.vacated = append(room.vacated, w.place)
	isFirst := len(room.vacated) == 1
	room.mu.Unlock()

	if !isFirst {
		return
	}
	soon := func() {
		time.Sleep(gatherPause)
		l.moveUp()
	}

	// Close waits for the background, but not for a timer. The timer is for a
	// standalone node, or if too much runs in the background.
	cp := l.cluster
	if cp == nil || !cp.background.Go(soon) {
		time.AfterFunc(gatherPause, l.moveUp)
	}
}

// moveUp lets callers here have places that were left, and passes on the rest.
func (l *Limiter) moveUp() {
	room := &l.waitingRoom
	room.mu.Lock()
	rest := room.fill(room.vacated)
	room.vacated = nil
	room.mu.Unlock()
	l.startPassing(rest)
}

// remove removes w, which must wait here. The caller must hold mu.
func (room *waitingRoom) remove(w *Waiter) {
	list := room.waiting[w.place.kind]
	delete(list, w)
	if len(list) == 0 {
		delete(room.waiting, w.place.kind)
	}
}

// fill lets callers that wait move up into the free places. It returns the last
// places, which nobody here needs. The caller must hold mu.
func (room *waitingRoom) fill(free []*QueuePlace) (rest []*QueuePlace) {
	byKind := make(map[string][]*QueuePlace)
	for _, qp := range free {
		byKind[qp.kind] = append(byKind[qp.kind], qp)
	}

	for kind, places := range byKind {
		waiting := slices.Collect(maps.Keys(room.waiting[kind]))
		for _, w := range waiting {
			places = append(places, w.place)
		}
		// The callers' own places are among places, so nobody gets a later one.
		slices.SortFunc(waiting, func(a, b *Waiter) int { return a.place.ProceedAt.Compare(b.place.ProceedAt) })
		slices.SortFunc(places, func(a, b *QueuePlace) int { return a.ProceedAt.Compare(b.ProceedAt) })

		for i, w := range waiting {
			before := w.place.ProceedAt
			w.place = places[i]
			if w.place.ProceedAt.Before(before) {
				w.move(w.place.ProceedAt)
			}
		}
		rest = append(rest, places[len(waiting):]...)
	}
	return rest
}

// servePassed lets callers here have pp's places, and passes on the rest.
func (l *Limiter) servePassed(pp *passedPlaces) {
	for _, place := range pp.places {
		place.limiter = l
		place.kind = place.kindOfTaken()
	}

	room := &l.waitingRoom
	room.mu.Lock()
	pp.places = room.fill(pp.places)
	room.mu.Unlock()
	l.passOn(pp)
}
