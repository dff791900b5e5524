//go:build !faults

package limiter

import "time"

// systemWall returns the system's wall clock at t, in Unix nanoseconds. The
// build for fault tests can shift it: see wall_faults.go.
func systemWall(t time.Time) int64 { return t.UnixNano() }
