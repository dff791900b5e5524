package httpd

import (
	"cmp"
	"sync/atomic"
	"time"
)

// The server library sets three deadlines per request, most of which never
// matter: a request that arrives in one piece is read long before its deadline.
// Each would reset a runtime timer. So a connection only records deadlines, and
// resets the timer when it reads or writes, unless the one already set will do.

// slackDivisor is the fraction of the read timeout by which a deadline may be late: 1/slackDivisor.
const slackDivisor = 8

// deadline is the deadline for reading or for writing. Times are nanoseconds
// since the listener started; 0 means none.
type deadline struct {
	requested atomic.Int64 // as requested
	applied   atomic.Int64 // as set on the underlying connection
}

// request records the deadline t; the zero time means none. It takes effect at
// the next read or write.
func (d *deadline) request(t, began time.Time) {
	if t.IsZero() {
		d.requested.Store(0)
		return
	}
	// A deadline is never stored as 0, which would mean that there is none.
	d.requested.Store(cmp.Or(int64(t.Sub(began)), 1))
}

// moveIfDue reports whether the caller must move the underlying deadline, and
// to when: slack after the requested time. It must if the underlying deadline
// is earlier than requested, or later by more than slack, or if only one of the
// two is set.
func (d *deadline) moveIfDue(began time.Time, slack time.Duration) (t time.Time, moves bool) {
	want, have := d.requested.Load(), d.applied.Load()
	late := have - want
	if (have == 0) == (want == 0) && late >= 0 && late <= int64(slack) {
		return t, false
	}
	if want != 0 {
		want += int64(slack)
		t = began.Add(time.Duration(want))
	}
	d.applied.Store(want)
	return t, true
}
