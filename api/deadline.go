package api

import (
	"sync/atomic"
	"time"
)

// The server library sets three deadlines a request, most of which nothing ever waits for: a request that arrives in one
// piece is read before its deadline matters. Each would move a timer of the runtime's. So a connection only notes them, and
// moves the timer when it reads or writes, if the one that is set does not do.

// slackPart is how late a deadline may be, as a part of the time that a request has to arrive.
const slackPart = 8

// deadline is until when a connection reads, or writes. Times are nanoseconds since the listener began, 0 is none.
type deadline struct {
	want atomic.Int64 // what was asked for
	set  atomic.Int64 // what the connection below has
}

// ask notes t, a time after the listener began or none. It takes effect with the next read or write.
func (d *deadline) ask(t, began time.Time) {
	if t.IsZero() {
		d.want.Store(0)
		return
	}
	want := int64(t.Sub(began))
	if want == 0 {
		want = 1
	}
	d.want.Store(want)
}

// next reports whether the deadline that is set is earlier than what was asked for, or later by more than slack, and what
// it is to be then.
func (d *deadline) next(began time.Time, slack time.Duration) (t time.Time, moves bool) {
	want, have := d.want.Load(), d.set.Load()
	if late := have - want; (have == 0) == (want == 0) && late >= 0 && late <= int64(slack) {
		return t, false
	}
	if want != 0 {
		want += int64(slack)
		t = began.Add(time.Duration(want))
	}
	d.set.Store(want)
	return t, true
}
