//go:build !unix

package persist

import (
	"os"
	"time"
)

// lockFile does nothing here: bbolt takes its own lock right afterwards, which
// keeps other processes out.
func lockFile(*os.File, time.Duration) error { return nil }
