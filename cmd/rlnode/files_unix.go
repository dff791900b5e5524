//go:build unix

package main

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// wantedFiles is how many files a node would like to have open: each connection is one.
const wantedFiles = 1 << 17

// raiseFiles lets the process open as many files as it may, at most wantedFiles or what it may anyway. Go has raised what
// is in force to the hard limit; that one takes a privilege, which a service manager has and a node need not.
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
