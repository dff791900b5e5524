package httpd

import (
	"slices"
	"time"
)

// A caller that hangs up while its answer is held back leaves its place in the queue to those that wait behind it. Each of them
// takes the place of the one ahead, so nobody goes on later than announced, and the last place is given back to the limiter.

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
}

// notePlace notes what x, a check or a reservation whose answer may be held back, has taken in advance.
func (h *handlers) notePlace(x *exchange) {
	x.place = place{goesOn: x.due.Add(x.delayAfterDue)}
	if p := x.answer.QueuePlace(); p != nil {
		x.place.kind, x.place.giveBack = p.Kind(), p.GiveBack
	}
	if id := x.check.Reservation; x.check.Reserving && id != "" {
		x.place.giveBack = func() { _, _ = h.Decider.Settle(id, nil) } // nobody knows the id any more
	}
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

// moveUp lets those that wait have the places that were left, and gives back the last ones.
func (ws *heldAnswers) moveUp() {
	ws.mu.Lock()
	byKind := make(map[string][]place)
	for _, p := range ws.left {
		byKind[p.kind] = append(byKind[p.kind], p)
	}
	ws.left = nil
	waiting := make(map[string][]*waiter)
	for w := range ws.held {
		if kind := w.place.kind; kind != "" && byKind[kind] != nil {
			waiting[kind] = append(waiting[kind], w)
		}
	}

	var rest []place
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
	ws.mu.Unlock()

	for i := range rest {
		rest[i].giveBack()
	}
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
