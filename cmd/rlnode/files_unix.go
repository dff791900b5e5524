//go:build unix

package main

import "golang.org/x/sys/unix"

// wantedFileLimit is the limit on open files that a node asks for: each connection takes one.
const wantedFileLimit = 1 << 17

// raiseFileLimit raises the limit on open files as far as permitted, up to
// wantedFileLimit; it never lowers it. It returns the limit if that stays too
// low, else 0. Go has already raised the soft limit to the hard limit; raising
// the hard limit takes a privilege that a node need not have.
func raiseFileLimit() (low uint64) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur >= wantedFileLimit {
		return 0
	}
	raised := unix.Rlimit{Cur: wantedFileLimit, Max: max(wantedFileLimit, limit.Max)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
		return uint64(limit.Cur)
	}
	return 0
}
