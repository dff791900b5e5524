//go:build !linux

package persist

// freeSpace is not known here; what does not fit shows when it is written.
func freeSpace(string) (free int64, ok bool) { return 0, false }
