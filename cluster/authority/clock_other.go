//go:build !linux

package authority

import "time"

// boottime: there is none that this package knows of.
func boottime() (time.Duration, bool) { return 0, false }
