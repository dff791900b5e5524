package httpd

import (
	"time"

	"golang.org/x/sys/unix"
)

// maxPolledAtOnce bounds the connections in one call of poll.
const maxPolledAtOnce = 1024

// canSeeHangUps says whether pollHungUp finds anything.
const canSeeHangUps = true

// pollHungUp returns the answers in list whose callers have closed the connection,
// or at least their sending side of it.
func pollHungUp(list []*heldAnswer) (gone []*heldAnswer) {
	var room [maxPolledAtOnce]unix.PollFd
	for len(list) > 0 {
		polled := list[:min(len(list), maxPolledAtOnce)]
		list = list[len(polled):]

		for i, w := range polled {
			room[i] = unix.PollFd{Fd: int32(w.fd), Events: unix.POLLRDHUP}
		}

		// With timeout 0 Poll does not wait. After an error, the next round tries again.
		if n, err := unix.Poll(room[:len(polled)], 0); err != nil || n == 0 {
			continue
		}

		for i, w := range polled {
			if room[i].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 {
				gone = append(gone, w)
			}
		}
	}

	return gone
}

// awaitReset reports whether w's caller is gone altogether, and has not only
// closed its sending side. If it is gone, the answer just sent to it brings a
// reset.
func awaitReset(w *heldAnswer) bool {
	if w.fd < 0 {
		return false
	}

	for pause := time.Millisecond; ; pause *= 2 {
		// No event is asked for: a reset and a full close are reported anyway,
		// and a half-close, which is no sign, is not.
		poll := [1]unix.PollFd{{Fd: int32(w.fd)}}
		n, err := unix.Poll(poll[:], 0)
		if err == nil && n > 0 {
			return poll[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
		}
		if pause > resetTimeout/2 {
			return false
		}
		time.Sleep(pause)
	}
}

// hasUnreadInput reports whether w's caller has sent something that is still unread.
func hasUnreadInput(w *heldAnswer) bool {
	poll := [1]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll[:], 0)
	return w.fd >= 0 && err == nil && n > 0
}
