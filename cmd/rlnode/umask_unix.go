//go:build unix

package main

import "golang.org/x/sys/unix"

// privateFiles has all files that the process makes from now on be its user's alone: rules, counters and bills name
// subjects. Some are made by libraries, with modes of their own: Raft's snapshots. A stricter umask stays.
func privateFiles() {
	const others = 0o077
	if before := unix.Umask(others); before&^others != 0 {
		unix.Umask(before | others)
	}
}
