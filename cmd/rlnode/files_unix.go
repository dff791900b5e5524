//go:build unix

package main

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// wantedFiles is how many open files a node asks for: each connection takes one.
const wantedFiles = 1 << 17

// raiseFiles raises the limit on open files as far as permitted, up to wantedFiles; it never lowers it. Go has already
// raised the soft limit to the hard limit. Raising the hard limit takes a privilege, which a service manager has and a
// node need not have.
func raiseFiles(log *slog.Logger) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur >= wantedFiles {
		return
	}
	more := unix.Rlimit{Cur: wantedFiles, Max: max(wantedFiles, limit.Max)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &more); err != nil {
		log.Info("fewer connections than there could be: the limit on open files is low", "files", limit.Cur, "wanted", wantedFiles)
	}
}
