//go:build !unix

package main

// wantedFileLimit has no effect on this system.
const wantedFileLimit = 0

// raiseFileLimit does nothing: this system has no rlimit on open files.
func raiseFileLimit() (low uint64) { return 0 }
