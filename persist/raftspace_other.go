//go:build !linux

package persist

// freeSpace is unknown here; a lack of space shows up on writing.
func freeSpace(string) (free int64, ok bool) { return 0, false }
