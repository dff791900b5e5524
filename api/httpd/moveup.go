package httpd

import (
	"time"

	"github.com/rlnode/rlnode/limiter"
)

// resetTimeout bounds how long a connection that has been answered early is
// watched for a sign that its caller is gone. If the caller is gone, those that
// wait behind it move up.
const resetTimeout = 250 * time.Millisecond

// prepaid is what a check or a reservation whose answer may be held back has
// taken in advance.
type prepaid struct {
	place *limiter.QueuePlace // others can have it; nil: they can't
	// giveBack gives it back if others can't have it; nil: it stays taken.
	giveBack func()
}

// recordAdvance records what x has taken in advance.
func (h *handlers) recordAdvance(x *exchange) {
	x.prepaid = prepaid{place: x.answer.QueuePlace()}
	if p := x.prepaid.place; p != nil {
		p.ProceedAt = x.due.Add(x.delayAfterDue)
	}

	id := x.check.Reservation
	if !x.check.Reserving || id == "" || x.check.RequestID != "" {
		return // a caller with a request_id may ask again, and would go on with what was given back
	}
	x.prepaid.giveBack = func() { _, _ = h.Decider.Settle(id, nil) } // nobody knows the id now
}

// canReusePlace reports whether w's place is of use to others, or can be given
// back.
func (w *heldAnswer) canReusePlace() bool { return w.waiter != nil || w.prepaid.giveBack != nil }

// moveUp makes w go on at an earlier time than before. Its answer is not held
// longer than planned.
func (ha *heldAnswers) moveUp(w *heldAnswer, proceedAt time.Time) {
	ha.mu.Lock()
	defer ha.mu.Unlock()
	if proceedAt.Before(w.due) {
		w.due = proceedAt
	}
	w.delayAfterDue = proceedAt.Sub(w.due)
	if w.timer != nil && w.timer.Stop() { // unless its answer is about to be sent
		w.timer.Reset(time.Until(w.due))
	}
}

// endWait records that w's answer was sent. gone means that its caller has hung
// up, so that nobody goes on in its place.
func (w *heldAnswer) endWait(gone bool) {
	switch {
	case w.waiter != nil && gone:
		w.waiter.Leave()
	case w.waiter != nil:
		w.waiter.Proceed()
	case gone && w.prepaid.giveBack != nil:
		w.prepaid.giveBack()
	}
}
