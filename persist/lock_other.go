//go:build !unix

package persist

import (
	"os"
	"time"
)

// lockFile does nothing here: bbolt's own lock, taken right afterwards, keeps other processes out.
func lockFile(*os.File, time.Duration) error { return nil }
