package httpd

import (
	"sync/atomic"
	"time"
)

// The server library sets three deadlines per request, most of which never matter: a request that arrives in one piece is
// read long before its deadline. Each would reset a runtime timer. So a connection only records deadlines, and resets the
// timer when it reads or writes, unless the one already set will do.

// slackPart is the fraction of the read timeout by which a deadline may be late: 1/slackPart.
const slackPart = 8

// deadline is the deadline for reading or for writing. Times are nanoseconds since the listener started; 0 means none.
type deadline struct {
	want atomic.Int64 // as requested
	set  atomic.Int64 // as set on the underlying connection
}

// ask records the deadline t; the zero time means none. It takes effect at the next read or write.
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

// next reports whether the underlying deadline must be moved, and to when. It must be moved if it is earlier than requested, or
// later by more than slack, or if only one of the two is none. It is moved to slack after the requested time.
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
