//go:build !linux

package httpd

// hungUp always returns nil: a hang-up is noticed when the answer is sent.
func hungUp([]*waiter) []*waiter { return nil }

// saysMore reports whether w's caller may have sent something that is still unread.
func saysMore(*waiter) bool { return true }

// maxFiles returns how many files the process may have open, as far as is known.
func maxFiles() int { return sparePart * maxWaiting }
