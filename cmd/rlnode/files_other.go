//go:build !unix

package main

// wantedFiles has no effect on this system.
const wantedFiles = 0

// raiseFiles does nothing: this system has no rlimit on open files.
func raiseFiles() (low uint64) { return 0 }
