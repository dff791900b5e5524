package httpd

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

// A caller that hangs up while its answer is held back leaves its place in the queue to those that wait behind it. Each of them
// takes the place of the one ahead, so nobody goes on later than announced. The last place goes to those that wait at other nodes,
// or back to the limiter.

const (
	// resetTimeout bounds how long a connection that has been answered early is watched for a sign that its caller is gone.
	resetTimeout = 250 * time.Millisecond
	// gatherPause is how long the first place that is left waits for others: after a fault, many callers hang up at once.
	gatherPause = 2 * time.Millisecond
)

// place is a place in a queue that was taken for a check.
type place struct {
	goesOn time.Time // when the check may go on
	kind   string    // places of one kind are alike but for the time; empty: nobody else can have it
	// giveBack gives the place back to the limiter; nil: there is no place.
	giveBack func()
	queue    *limiter.QueuePlace // which callers at other nodes can have, too; nil: they can't
}

// notePlace notes what x, a check or a reservation whose answer may be held back, has taken in advance.
func (h *handlers) notePlace(x *exchange) {
	x.place = place{goesOn: x.due.Add(x.delayAfterDue)}
	if p := x.answer.QueuePlace(); p != nil {
		x.place = placeInQueue(p, x.place.goesOn)
	}
	id := x.check.Reservation
	if !x.check.Reserving || id == "" || x.check.RequestID != "" {
		return // a caller with a request_id may ask again, and would go on with what was given back
	}
	x.place.giveBack = func() { _, _ = h.Decider.Settle(id, nil) } // nobody knows the id any more
}

func placeInQueue(p *limiter.QueuePlace, goesOn time.Time) place {
	return place{goesOn: goesOn, kind: p.Kind(), giveBack: p.GiveBack, queue: p}
}

// setPlace gives w a place, and thereby the time of its answer. A waiter is held no longer than before.
func (w *waiter) setPlace(p place) {
	w.place = p
	if p.goesOn.Before(w.due) {
		w.due = p.goesOn
	}
	w.delayAfterDue = p.goesOn.Sub(w.due)
}

// leave records that w's caller is gone, so that others can have its place.
func (ws *heldAnswers) leave(w *waiter) {
	if w.place.giveBack == nil {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.left = append(ws.left, w.place)
	if len(ws.left) == 1 {
		ws.running.Go(func() {
			time.Sleep(gatherPause)
			ws.moveUp()
		})
	}
}

// moveUp lets those that wait have the places that were left, and passes on the last ones.
func (ws *heldAnswers) moveUp() {
	ws.mu.Lock()
	rest := ws.fill(ws.left)
	ws.left = nil
	ws.mu.Unlock()

	var queued []*limiter.QueuePlace
	for _, p := range rest {
		if p.queue == nil {
			p.giveBack()
			continue
		}
		p.queue.GoesOn = p.goesOn
		queued = append(queued, p.queue)
	}
	limiter.PassOn(queued)
}

// takePlaces lets those that wait have places that callers at other nodes, or of this program itself, have left. It returns the rest.
func (ws *heldAnswers) takePlaces(list []*limiter.QueuePlace) (rest []*limiter.QueuePlace) {
	var offered []place
	for _, p := range list {
		offered = append(offered, placeInQueue(p, p.GoesOn))
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, p := range ws.fill(offered) {
		p.queue.GoesOn = p.goesOn
		rest = append(rest, p.queue)
	}
	return rest
}

// fill lets those that wait have the free places, and returns the last places, which nobody needs. The caller holds ws.mu.
func (ws *heldAnswers) fill(free []place) (rest []place) {
	byKind := make(map[string][]place)
	for _, p := range free {
		byKind[p.kind] = append(byKind[p.kind], p)
	}
	waiting := make(map[string][]*waiter)
	for w := range ws.held {
		if kind := w.place.kind; kind != "" && byKind[kind] != nil {
			waiting[kind] = append(waiting[kind], w)
		}
	}

	for kind, places := range byKind {
		list := waiting[kind]
		for _, w := range list {
			places = append(places, w.place)
		}
		slices.SortFunc(list, func(v, w *waiter) int { return v.place.goesOn.Compare(w.place.goesOn) })
		slices.SortFunc(places, func(p, q place) int { return p.goesOn.Compare(q.goesOn) })
		for i, w := range list {
			ws.give(w, places[i])
		}
		rest = append(rest, places[len(list):]...)
	}
	return rest
}

// give moves w to a place that is no later than its own. The caller holds ws.mu.
func (ws *heldAnswers) give(w *waiter, p place) {
	if !p.goesOn.Before(w.place.goesOn) {
		w.place = p // of the same time, or its own
		return
	}
	w.setPlace(p)
	if w.timer.Stop() { // otherwise its answer is about to be sent
		w.timer.Reset(time.Until(w.due))
	}
}
