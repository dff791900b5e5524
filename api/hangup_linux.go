package api

import "golang.org/x/sys/unix"

// hungUpAtOnce is how many connections are asked about at once.
const hungUpAtOnce = 1024

// hungUp returns those of list whose callers have closed their connection, or at least their side of it.
func hungUp(list []*waiter) (gone []*waiter) {
	var room [hungUpAtOnce]unix.PollFd
	for len(list) > 0 {
		some := list[:min(len(list), hungUpAtOnce)]
		list = list[len(some):]
		for i, w := range some {
			room[i] = unix.PollFd{Fd: int32(w.fd), Events: unix.POLLRDHUP}
		}
		// Without a timeout it does not wait. An error is answered by the next look.
		if n, err := unix.Poll(room[:len(some)], 0); err != nil || n == 0 {
			continue
		}
		for i, w := range some {
			if room[i].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 {
				gone = append(gone, w)
			}
		}
	}
	return gone
}

// saysMore reports whether w's caller has sent something that nobody has read.
func saysMore(w *waiter) bool {
	poll := [1]unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll[:], 0)
	return w.fd >= 0 && err == nil && n > 0
}

// maxFiles is how many files the process may have open. The program has raised it as far as it may.
func maxFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return sparePart * mostWaiting
	}
	return int(min(limit.Cur, 1<<30))
}
