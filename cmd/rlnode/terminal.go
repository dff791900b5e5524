package main

import (
	"os"
)

// isTerminal reports whether a person watches w.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // a character device that nobody watches
	return err != nil || !os.SameFile(info, null)
}
