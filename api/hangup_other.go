//go:build !linux

package api

// hungUp finds nobody: whoever hung up is found when it is answered.
func hungUp([]*waiter) []*waiter { return nil }

// saysMore reports whether w's caller may have sent something that nobody has read.
func saysMore(*waiter) bool { return true }

// maxFiles is how many files the process may have open, as far as is known.
func maxFiles() int { return sparePart * mostWaiting }
