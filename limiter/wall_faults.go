//go:build faults

package limiter

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// systemWall returns the system's wall clock at t, in Unix nanoseconds, shifted
// by the number of nanoseconds in the file named by RLNODE_WALL. There is no
// other way for a test to set the clock of one process among several.
func systemWall(t time.Time) int64 {
	path := os.Getenv("RLNODE_WALL")
	if path == "" {
		return t.UnixNano()
	}

	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return t.UnixNano()
	}

	shift, wrong := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || wrong != nil {
		panic("RLNODE_WALL: " + path + " can't be read") // a test whose clock does not move proves nothing
	}

	return t.UnixNano() + shift
}
