//go:build !faults

package limiter

import "time"

// systemWall returns the system's wall clock at t. A program built for the fault tests can step it: see wall_faults.go.
func systemWall(t time.Time) int64 { return t.UnixNano() }
