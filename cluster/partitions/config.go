package partitions

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/ring"
)

// Config holds a Keeper's dependencies and settings.
type Config struct {
	Self  ring.NodeID
	Boot  uint64          // of this process; changes at each start
	Table *counters.Table // the Keeper opens and shuts its gates
	Now   func() algorithms.Instant
	Calls Calls
	// Authority reports whether this node may act as an owner or a standby now.
	Authority func() bool
	// Interval is the time between pushes to the standbys; 100 ms by default.
	Interval time.Duration
	// Patience is how long a search for the newest copy waits for a node that
	// can't be reached. For a node that can be reached, it may wait slowPatience
	// times as long. 2 s by default.
	Patience time.Duration
	// StandbyCounters bounds the counters kept while acting as a standby; 65,536 by default.
	StandbyCounters int64
	// Save writes the table's counters to disk and returns once they are there.
	// Confirm needs it for partitions without a standby. It may be nil.
	Save   func(ctx context.Context) error
	Logger *slog.Logger
}

// DefaultConfig returns a Config with every default set.
func DefaultConfig() Config {
	return Config{
		Interval: 100 * time.Millisecond, Patience: 2 * time.Second, StandbyCounters: 1 << 16, Logger: slog.Default(),
		Authority: func() bool { return true },
	}
}

// Validate reports the first invalid field.
func (c *Config) Validate() error {
	switch {
	case c.Self.IsZero():
		return errors.New("partitions: Self is zero")
	case c.Table == nil:
		return errors.New("partitions: Table is nil")
	case c.Now == nil:
		return errors.New("partitions: Now is nil")
	case c.Calls == nil:
		return errors.New("partitions: Calls is nil")
	case c.Authority == nil:
		return errors.New("partitions: Authority is nil")
	case c.Logger == nil:
		return errors.New("partitions: Logger is nil")
	case c.Interval <= 0:
		return errors.New("partitions: Interval is not above 0")
	case c.Patience <= 0:
		return errors.New("partitions: Patience is not above 0")
	case c.StandbyCounters < 1:
		return errors.New("partitions: StandbyCounters is below 1")
	}

	return nil
}
