//go:build !linux

package authority

import "time"

// boottime returns false: this platform has no known boot-time clock.
func boottime() (time.Duration, bool) { return 0, false }
