package limiter

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// Clock reads a node's two clocks.
type Clock struct{}

// NewClock returns a running clock; Close ends it.
func NewClock() *Clock { panic("stub") }

// Now reads both clocks.
func (c *Clock) Now() algorithms.Now { panic("stub") }

// Close stops following the wall clock.
func (c *Clock) Close() error { panic("stub") }

var _ = time.Now
