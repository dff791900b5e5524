package httpd

import (
	"sync/atomic"
	"time"
)

// The server library sets three deadlines per request, most of which nothing ever waits for: a request that arrives in
// one piece is read before its deadline matters. Each would move a runtime timer. So a connection only records them,
// and moves the timer when it reads or writes, if the one already set does not suffice.

// slackPart: a deadline may be late by 1/slackPart of the time that a request has to arrive.
const slackPart = 8

// deadline is the deadline for reading or for writing. Times are nanoseconds since the listener began, 0 for none.
type deadline struct {
	want atomic.Int64 // as requested
	set  atomic.Int64 // as set on the connection below
}

// ask records t, a time after the listener began, or zero for none. It takes effect at the next read or write.
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

// next reports whether the deadline must be moved, and to when. It must be if the one that is set is earlier than
// requested, later by more than slack, or if only one of the two is none. A moved deadline is late by slack.
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
