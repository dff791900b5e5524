//go:build unix

package main

import "golang.org/x/sys/unix"

// restrictUmask makes all files that the process creates from now on private to
// its user, because rules, counters and bills name subjects. It sets the umask
// because libraries create some files, such as Raft's snapshots, with their own
// modes. It keeps a stricter umask.
func restrictUmask() {
	const others = 0o077
	before := unix.Umask(others)
	if before&^others != 0 {
		unix.Umask(before | others)
	}
}
